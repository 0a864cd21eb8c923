"""`fairbox view`: looks at dumps in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairbox.config import load, setting
from fairbox.errors import ConfigError, FairboxError
from fairbox.extras import require
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


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 after q."""
    config = load(
        ViewConfig,
        prefix="FAIRBOX_VIEW",
        prog="fairbox view [PATH]",
        description=__doc__ or "",
        argv=with_first(argv, "path"),
    )
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
