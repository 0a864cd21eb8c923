"""`fairbox data repos`: fetches the repositories that the rows of a file need, each once, so that runs can mount them.

What is there already is not fetched again: after an interruption the same command goes on.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairbox.config import load, setting
from fairbox.errors import EXIT_FAILURE, EXIT_INTERRUPTED, FieldErrors
from rollout.data import DataError, read_records
from rollout.data.repos import Checkout, Progress, RepoError, RepoStore, Want, check_template, fetch_all, row_want

_MOST_SAID = 20
"""Bad rows, and failures, that are printed one by one."""


@dataclass(frozen=True)
class DataReposConfig:
    """Settings of `fairbox data repos`."""

    rows: str = setting(help="Rows of code search: a .jsonl or .parquet file with repo, base_commit, patch, use_patch.")
    out: str = setting(
        help="Folder of the repositories; made, or gone on with. The executor needs it as a workspace root."
    )
    source: str = setting(
        "https://github.com/{repo}.git",
        help="Where they come from: a URL, or the path of a repository or bundle, with {repo}, {owner}, {name}, "
        "{commit} or {instance_id} of the row.",
    )
    limit: int | None = setting(None, least=1, help="Only the first so many rows; none: all.")
    parallel: int = setting(8, help="Repositories at once; from 1.")
    timeout_s: float = setting(900.0, help="Longest attempt, seconds; then every process of it is killed.")


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when all are there, 1 when some could not be had, 2 for bad settings and rows."""
    config = load(
        DataReposConfig, prefix="FAIRBOX_REPOS", prog="fairbox data repos", description=__doc__ or "", argv=argv
    )
    check_template(config.source)
    wants = _wants(config)
    store = RepoStore(config.out, parallel=config.parallel, timeout_s=config.timeout_s)
    ended, total = itertools.count(1), len({want.repo for want in wants})
    try:
        found = asyncio.run(fetch_all(store, wants, report=lambda each: _say(each, f"[{next(ended)}/{total}]")))
    except KeyboardInterrupt:
        print("interrupted; what is finished stays, and the same command goes on", file=sys.stderr)
        return EXIT_INTERRUPTED
    return _summary(wants, found)


def _wants(config: DataReposConfig) -> list[Want]:
    """One of each row. DataError that names the rows which can't be."""
    wants, bad = [], []
    for where, row in itertools.islice(read_records(Path(config.rows)), config.limit):
        try:
            if not isinstance(row, dict):
                raise DataError("is no object")
            wants.append(row_want(row, config.source))
        except (DataError, FieldErrors) as error:
            bad.append(f"{where}: {error}")
    if bad:
        more = f"\n... and {len(bad) - _MOST_SAID} more" if len(bad) > _MOST_SAID else ""
        raise DataError("\n".join(bad[:_MOST_SAID]) + more)
    if not wants:
        raise DataError(f"{config.rows}: holds no rows")
    return wants


def _say(progress: Progress, count: str) -> None:
    if not progress.failures:
        print(f"{count} {progress.repo}: {progress.wanted} there, {progress.seconds:.1f} s", file=sys.stderr)
        return
    error = progress.failures[0]
    print(f"{count} {progress.repo}: {len(progress.failures)} of {progress.wanted} failed: {error}", file=sys.stderr)


def _summary(wants: list[Want], found: dict[Want, Checkout | RepoError]) -> int:
    failed = {want: error for want, error in found.items() if isinstance(error, RepoError)}
    rows = sum(want in failed for want in wants)
    repos = len({want.repo for want in wants})
    print(f"{len(wants) - rows} of {len(wants)} rows ready: {repos} repositories")
    for want, error in itertools.islice(failed.items(), _MOST_SAID):
        commit = want.commit[:12] if want.commit else "default branch"
        print(f"  {want.repo} ({commit}): {error.kind}: {error}")
    if len(failed) > _MOST_SAID:
        print(f"  ... and {len(failed) - _MOST_SAID} more")
    return EXIT_FAILURE if failed else 0
