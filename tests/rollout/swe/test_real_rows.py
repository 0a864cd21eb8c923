"""Rows of SWE-bench Lite and SWE-smith: every patch is read exactly, and truths made from the releases are right."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rollout.data.records import read_records
from rollout.data.swe import Changes, Dialect, parse_patch
from rollout.data.swe.build import Built, build
from rollout.data.swe.trees import Archives
from tests.rollout.swe.fetch_sdists import present, wanted
from tests.rollout.swe.naive import naive_truth

HAND_CHECKED = {
    "pallets__flask-4045": ("src/flask/blueprints.py", "Blueprint.__init__", "Blueprint.add_url_rule"),
    "psf__requests-3362": ("requests/utils.py", "stream_decode_response_unicode"),
    "pylint-dev__pylint-7080": ("pylint/lint/expand_modules.py", "_is_ignored_file"),
    "pytest-dev__pytest-5692": ("src/_pytest/junitxml.py", "LogXML.pytest_sessionfinish"),
    "pydata__xarray-4248": ("xarray/core/formatting.py", "inline_variable_array_repr"),
}
"""instance_id -> file and edited entities, read off the patch and the file by a person."""


def records(*path: str) -> list[tuple[str, dict[str, Any]]]:
    place = Path(os.environ.get("FAIRBOX_DATA", ""), *path)
    if not os.environ.get("FAIRBOX_DATA") or not place.is_file():
        pytest.skip(f"set FAIRBOX_DATA to a folder with {'/'.join(path)}")
    return list(read_records(place))


@pytest.fixture(scope="module")
def archives() -> Archives:
    folder = os.environ.get("FAIRBOX_SDISTS")
    if not folder or not Path(folder).is_dir():
        pytest.skip("set FAIRBOX_SDISTS to a folder with source archives; `make test-truth` fetches them from PyPI")
    if len(found := present(Path(folder))) < len(wanted()) * 2 // 3:
        pytest.skip(f"{folder} has only {len(found)} of {len(wanted())} archives; `make test-truth` fetches them")
    return Archives(Path(folder))


@pytest.mark.parametrize("path", [("swebench", "swebench_lite.jsonl"), ("swe_smith", "code_search.parquet")])
def test_every_patch_is_read_and_printed_exactly(path: tuple[str, str]) -> None:
    columns = [record.get(name, "") for _, record in records(*path) for name in ("patch", "test_patch")]
    texts = [text for text in columns if text]
    assert len(texts) >= 82
    for text in texts:
        patch = parse_patch(text)
        assert patch.files
        assert str(patch) == text
        assert str(patch.reversed().reversed()) == text


@pytest.mark.timeout(600)
def test_truths_of_swe_bench_lite_are_those_of_the_rules(archives: Archives, tmp_path: Path) -> None:
    built = build(records("swebench", "swebench_lite.jsonl"), [archives], dialect=Dialect.LOCAGENT)
    assert not built.left
    print(f"{len(built.made)} of {len(built.tasks)} rows of SWE-bench Lite rebuilt")  # noqa: T201 - the figure
    assert len(built.made) >= 20
    _check_by_rules(built, tmp_path, "locagent")
    truths = {task.instance_id: task.file_changes for task in built.tasks if task.instance_id in built.made}
    for instance_id, (file, *entities) in HAND_CHECKED.items():
        [change] = truths[instance_id] or ()
        assert change.file == file
        assert set(change.changes.edited_entities) == {f"{file}:{entity}" for entity in entities}
        assert not change.changes.added_entities


@pytest.mark.timeout(600)
def test_truths_of_swe_smith_are_the_given_ones(archives: Archives, tmp_path: Path) -> None:
    built = build(records("swe_smith", "code_search.parquet"), [archives], dialect=Dialect.CODESCOUT, use_patch=True)
    assert not built.left
    print(f"{len(built.made)} of {len(built.tasks)} rows of SWE-smith rebuilt")  # noqa: T201 - the figure
    assert len(built.made) >= 20
    assert built.differs == []
    _check_by_rules(built, tmp_path, "codescout")


def _check_by_rules(built: Built, folder: Path, dialect: str) -> None:
    for task in built.tasks:
        if (situation := built.made.get(task.instance_id)) is None:
            continue
        paths = [file.old_path for file in situation.fix.files if file.old_path is not None]
        before = {path: situation.read(path) or "" for path in paths}
        expected = naive_truth(str(situation.fix), before, folder / task.instance_id, dialect)
        parts = sorted(Changes.__slots__)
        made = {
            each.file: {part: set(getattr(each.changes, part)) for part in parts} for each in task.file_changes or ()
        }
        assert made == expected, task.instance_id
