"""Rows of SWE-smith: whoever answers with the truth gets everything, in every dialect that can say it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollout.rewards.localization import (
    file_localization_f1_reward,
    file_localization_reward,
    line_localization_reward,
    multilevel_localization_f1_reward,
)
from rollout.rewards.localization.truth import changed_truth, target_lines
from tests.rollout.rewards.localization.samples import answered, finished, place


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """SWE-smith's rows, which are not part of the repository."""
    roots = [os.environ.get("FAIRBOX_DATA"), Path(__file__).parents[5] / "shared" / "data"]
    for root in roots:
        if root and (path := Path(root) / "swe_smith" / "code_search.parquet").is_file():
            import pyarrow.parquet

            found: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
            return found
    pytest.skip("SWE-smith is not here: set FAIRBOX_DATA to a folder with swe_smith/code_search.parquet")


def places(row: Any) -> Iterator[dict[str, Any]]:
    """The truth as the finish tool takes it."""
    truth = changed_truth(answered("", row=row))
    yield from (place(file) for file in truth.files)
    for entity in truth.entities:
        file, _, name = entity.rpartition(":")
        owner, _, function = name.rpartition(".")
        yield place(file, owner or None, function)
    yield from (place(file, name) for file, _, name in (module.rpartition(":") for module in truth.modules))


def test_the_truth_gets_everything(rows: list[dict[str, Any]]) -> None:
    assert len(rows) == 100
    for row in rows:
        truth = changed_truth(answered("", row=row))
        most = sum(bool(level) for level in (truth.files, truth.modules, truth.entities))
        assert multilevel_localization_f1_reward(finished(*places(row), row=row)).value == pytest.approx(most)
        assert multilevel_localization_f1_reward(finished(place("none.py"), row=row)).value == 0
        paths = "\n".join(truth.files)
        assert file_localization_reward(answered(f"<files>{paths}</files>", row=row)).value == 1
        listed = answered(f"<files>{json.dumps(sorted(truth.files))}</files>", row=row)
        assert file_localization_f1_reward(listed, dialect="files").value == 1


def test_lines_of_the_patch_get_everything(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        spans = target_lines(answered("", row=row))
        spoken = "\n".join(f"{span.file}:{span.first}-{span.last} (here)" for span in spans)
        sample = answered(f"<final_answer>\n{spoken}\n</final_answer>", row=row)
        assert line_localization_reward(sample).value == 1
        assert {span.file for span in spans} == changed_truth(sample).files
