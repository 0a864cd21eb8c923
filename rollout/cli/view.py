"""`fairbox view`: looks at dumps in the terminal, or serves their page."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairbox.config import load, setting
from fairbox.errors import ConfigError, FairboxError
from fairbox.extras import require
from fairbox.net.serving import run_service
from rollout.cli.commands import with_first
from rollout.viewer.rows.filters import FilterError, parse_filter
from rollout.viewer.rows.index import DumpFolder


@dataclass(frozen=True)
class ViewConfig:
    """Settings of `fairbox view`."""

    path: str = setting(help="A folder with {step}.jsonl, or one such file; also the first word without a name.")
    step: str | None = setting(None, help="The step to begin with; none: the newest.")
    filter: str = setting("", help="The filter to begin with; docs/how-to/viewer.md has the language.")
    follow: bool = setting(False, help="Go to new rows and new steps as they are written.")
    tokenizer: str | None = setting(
        None, help="Folder of the tokenizer, or smollm2; none: that of the model that a row names."
    )
    web: bool = setting(False, help="Serve the page of `fairbox report` instead, which follows the run.")
    listen: str = setting("127.0.0.1:0", help="Address on loopback of that page; port 0: a free one.")

    def validate(self) -> None:
        """Raises ConfigError for what has no meaning for a page."""
        for name in ("step", "filter", "follow") if self.web else ("listen",):
            if getattr(self, name) != getattr(ViewConfig, name):
                raise ConfigError(f"{name} is set, which has no meaning {'with' if self.web else 'without'} web")


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 after q."""
    config = load(
        ViewConfig,
        prefix="FAIRBOX_VIEW",
        prog="fairbox view [PATH]",
        description=__doc__ or "",
        argv=with_first(argv, "path", flags=("--web", "--follow")),
    )
    if config.web:
        return serve(config)
    folder = DumpFolder(Path(config.path).expanduser())
    step = None if config.step is None else folder.named(config.step)
    try:
        parse_filter(config.filter)
    except FilterError as error:
        if "is not a field" not in error.problem:  # it may be one of the dump's own
            raise ConfigError(f"filter is {config.filter!r}: {error}") from None
    require("the viewer", "viewer", "textual")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise FairboxError("the viewer needs a terminal")
    from rollout.viewer.app import ViewerApp  # an extra's
    from rollout.viewer.screens.base import Session

    app = ViewerApp(Session(folder, config.tokenizer), filter=config.filter, step=step, follow=config.follow)
    app.run()
    return app.return_code or 0


def serve(config: ViewConfig) -> int:
    """Serves the page until Ctrl-C; 130 then."""
    require("--web", "gateway", "aiohttp")
    from rollout.page.live import LivePage  # an extra's

    path = Path(config.path).expanduser()
    DumpFolder(path)  # which says what is wrong with it

    async def work(stop: asyncio.Event) -> None:
        with tempfile.TemporaryDirectory(prefix="fairbox-view-") as folder:
            async with LivePage(path, Path(folder), listen=config.listen, tokenizer=config.tokenizer) as live:
                print(f"{live.address} shows {path}; Ctrl-C ends it", flush=True)
                await stop.wait()

    return run_service(work, name="fairbox view")
