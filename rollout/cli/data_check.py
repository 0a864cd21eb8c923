"""`fairbox data check`: compares the truths of code search rows with what their sources give.

Rows with `file_changes` are compared with them; of the others it is said how many could be made.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairbox.config import load, setting
from fairbox.errors import EXIT_FAILURE, ConfigError
from rollout.cli.data_swebench import sources
from rollout.data.records import read_records
from rollout.data.swe.build import build
from rollout.data.swe.truth import Dialect

__all__ = ["DataCheckConfig", "main"]


@dataclass(frozen=True)
class DataCheckConfig:
    """Settings of `fairbox data check`."""

    rows: str = setting(help="A .jsonl or .parquet file.")
    repos: str | None = setting(None, help="Folder of git repositories OWNER__NAME or OWNER/NAME.")
    archives: str | None = setting(None, help="Folder of source archives of releases.")
    dialect: Dialect = setting(Dialect.CODESCOUT, help="LOCAGENT or CODESCOUT: how modules are named.")
    use_patch: bool = setting(False, help="As in fairbox data swebench.")
    json: bool = setting(False, help="Print one JSON object.")

    def validate(self) -> None:
        """ConfigError for what types can't say."""
        if self.repos is None and self.archives is None:
            raise ConfigError("repos and archives are not set; there is nothing to compare with")
        for name in ("repos", "archives"):
            value = getattr(self, name)
            if value is not None and not Path(value).expanduser().is_dir():
                raise ConfigError(f"{name} is {value!r}, which is no folder")


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when no truth differs and no row is bad, 1 otherwise."""
    config = load(
        DataCheckConfig, prefix="FAIRBOX_DATA_CHECK", prog="fairbox data check", description=__doc__ or "", argv=argv
    )
    built = build(
        read_records(Path(config.rows).expanduser()),
        sources(config.repos, config.archives),
        dialect=config.dialect,
        use_patch=config.use_patch,
    )
    report = {
        "rows": len(built.tasks) + len(built.left),
        "rebuilt": len(built.made),
        "differ": built.differs,
        "bad": {each.instance_id or each.where: f"{each.why}: {each.problem}" for each in built.left},
        "no_release_fits": built.unfit,
        "sources": {name: f"{each.source} ({each.evidence.name.lower()})" for name, each in built.made.items()},
    }
    if config.json:
        print(json.dumps(report, ensure_ascii=False, indent=2))
    else:
        print(f"{report['rows']} rows, {len(built.made)} rebuilt, {len(built.differs)} differ, {len(built.left)} bad")
        for name in built.differs:
            print(f"  {name}: differs from what {built.made[name].source} gives")
        for each in built.left:
            print(f"  {each.instance_id or each.where}: {each.why}: {each.problem}")
    return EXIT_FAILURE if built.differs or built.left else 0
