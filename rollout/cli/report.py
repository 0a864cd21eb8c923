"""`fairbox report`: writes a run as one page for a browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairbox.config import load, setting
from rollout.cli.commands import with_first


@dataclass(frozen=True)
class ReportConfig:
    """Settings of `fairbox report`."""

    path: str = setting(help="The folder of a run, or a dump; also the first word without a name.")
    to: str | None = setting(None, help="The page's file; none: report.html in the run's folder.")
    tokenizer: str | None = setting(
        None, help="Folder of the tokenizer, or smollm2; none: that of the model that a row names."
    )


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when the page is written."""
    config = load(
        ReportConfig,
        prefix="FAIRBOX_REPORT",
        prog="fairbox report [PATH]",
        description=__doc__ or "",
        argv=with_first(argv, "path"),
    )
    from rollout.page import write_page  # jinja2 and rewards take a while

    to = None if config.to is None else Path(config.to).expanduser()
    print(write_page(Path(config.path).expanduser(), to, config.tokenizer))
    return 0
