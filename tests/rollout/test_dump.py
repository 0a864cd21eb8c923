"""Dumps: what is written is what is read, in verl's format, and broken files are named."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor_service import Cause
from rollout.dump import DumpError, DumpWriter, read_dump, record_of, trainer_file, write_trainer_logprobs
from rollout.engines import SamplingParams
from rollout.loop import Task, ToolCallRecord, TrajectoryResult
from rollout.tokens import ChatTemplate
from rollout.tools import ToolOutcome
from tests.interop.results import result, sampled, tool

TASK = Task("u", ({"role": "user", "content": "What?"},), "6", "test", "here:1")
VERL_FIELDS = {"input", "output", "gts", "score", "step", "request_id", "uid"}


@pytest.fixture
def record(chat: ChatTemplate) -> dict[str, Any]:
    return record_of(finished(chat), TASK, step=3, model="scripted", decode=chat.decode_plain)


def finished(chat: ChatTemplate, *, cause: Cause = Cause.POLICY) -> TrajectoryResult:
    turn = sampled((504, 3575, 2), version="w", logprob=float.fromhex("-0x1.99999a0000000p-4"))  # -0.1 in float32
    return result(
        chat.prompt_ids(TASK.messages),
        *(turn, tool(chat.between_turns(["6 ☃"], ended=True)), turn),
        infra=cause is Cause.INFRA,
        reward=None if cause is Cause.INFRA else 1.0,
        messages=(*TASK.messages, {"role": "assistant", "content": "#### 6 \ud800"}),
        tool_calls=(ToolCallRecord(1, "echo", {"text": "six ☃ \ud800"}, "{}", ToolOutcome.OK, "6"),),
        sampling=SamplingParams(temperature=0.5, seed=1),
    )


def write(path: Path, *records: dict[str, Any]) -> Path:
    with DumpWriter(path, 3) as dump:
        for record in records:
            dump.write(record)
    return dump.path


def test_dump_is_read_back_as_it_was_written(tmp_path: Path, record: dict[str, Any]) -> None:
    path = write(tmp_path / "new" / "folder", record, record)
    assert path.name == "3.jsonl"
    first, second = read_dump(path)
    assert first == second == json.loads(json.dumps(record))
    assert first["logprobs"] == record["logprobs"]  # to the last bit


def test_record_has_verls_fields_and_the_exact_tokens(record: dict[str, Any]) -> None:
    assert record.keys() >= VERL_FIELDS
    assert (record["score"], record["step"], record["uid"], record["gts"]) == (1.0, 3, "u", "6")
    assert record["where"] == "here:1"
    assert "<|im_start|>" not in record["input"] + record["output"]
    assert record["input"].endswith("user\nWhat?\nassistant\n")
    assert len(record["response_ids"]) == len(record["response_mask"]) == len(record["logprobs"])
    assert [(part["kind"], part["weight_version"]) for part in record["segments"]] == [
        ("prompt", None),
        ("sampled", "w"),
        ("tool", None),
        ("sampled", "w"),
    ]


def test_masked_trajectory_has_no_score(chat: ChatTemplate, tmp_path: Path) -> None:
    masked = record_of(finished(chat, cause=Cause.INFRA), TASK, step=3, model="m", decode=chat.decode_plain)
    (read,) = read_dump(write(tmp_path, masked))
    assert (read["score"], read["masked"], read["cause"], read["stop_reason"]) == (None, True, "INFRA", "infra")


def test_a_row_that_nothing_could_score_is_masked_and_is_no_contradiction(chat: ChatTemplate) -> None:
    check = pytest.importorskip("rollout.dump_check", reason="torch is not installed (extra `engine`)")
    unscored = replace(finished(chat), reward=None, unscored=True, cause=Cause.TASK, error="scoring: no tests")
    read = record_of(unscored, TASK, step=3, model="m", decode=chat.decode_plain)
    assert (read["score"], read["masked"], read["cause"], read["turn_rewards"]) == (None, True, "TASK", [])
    assert check.contradictions(read) == []
    assert check.contradictions(read | {"cause": "POLICY"}) == ["masked is True, but the cause is POLICY"]
    assert check.contradictions(read | {"masked": False, "cause": "INFRA"})


def test_existing_dump_is_not_overwritten(tmp_path: Path, record: dict[str, Any]) -> None:
    path = write(tmp_path, record)
    before = path.read_bytes()
    with pytest.raises(DumpError, match="exists, and dumps are not overwritten"), DumpWriter(tmp_path, 3):
        pass
    assert path.read_bytes() == before


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DumpError, match="can't be written"), DumpWriter(tmp_path / "file" / "below", 1):
        pass


def test_a_trainers_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = trainer_file(tmp_path, "1")
    write_trainer_logprobs(path, [("a", [[-0.12345678, float("-inf")]]), ("b", [[-1.0], []])])
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"request_id": "a", "trainer_logprobs": [-0.123457, None], "earlier": []},
        {"request_id": "b", "trainer_logprobs": [], "earlier": [{"trainer_logprobs": [-1.0]}]},
    ]
    before = path.read_text()
    with pytest.raises(ZeroDivisionError):
        write_trainer_logprobs(path, (("a", [[1 / number]]) for number in (1, 0)))
    assert path.read_text() == before
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(DumpError, match="can't be written"):
        write_trainer_logprobs(path / "2.ndjson", [])


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_numbers_that_json_has_not_are_refused(tmp_path: Path, record: dict[str, Any], number: float) -> None:
    with DumpWriter(tmp_path, 3) as dump, pytest.raises(ValueError, match="Out of range"):
        dump.write(record | {"score": number})
    assert dump.path.read_bytes() == b""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"uid": None}, "uid is 'None', which has the wrong type"),
        ({"score": "1"}, "score is '1', which has the wrong type"),
        ({"logprobs": [0.0]}, "differ in length"),
        ({"segments": []}, "the segments' lengths"),
    ],
)
def test_broken_record_is_named_with_file_and_line(
    tmp_path: Path, record: dict[str, Any], change: dict[str, Any], problem: str
) -> None:
    path = tmp_path / "1.jsonl"
    path.write_text(f"{json.dumps(record)}\n{json.dumps(record | change)}\n")
    records = read_dump(path)
    next(records)
    with pytest.raises(DumpError) as caught:
        next(records)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"), [("{", "is not JSON"), ("[]", "must be an object"), ("{}", "input is missing")]
)
def test_lines_that_are_no_records_are_named(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "1.jsonl").write_text(text + "\n")
    with pytest.raises(DumpError, match=f"1.jsonl:1: {problem}"):
        list(read_dump(tmp_path / "1.jsonl"))
    with pytest.raises(DumpError, match="No such file"):
        list(read_dump(tmp_path / "2.jsonl"))


def test_a_trajectory_is_shown_in_a_notebook() -> None:
    hostile = "</pre><script>alert(1)</script>"
    messages = ({"role": "user", "content": hostile}, {"role": "<b>", "content": "long " * 1000})
    shown = result([1, 2], sampled([4, 5]), reward=0.5, messages=messages)._repr_html_()
    assert shown.startswith("<div><p><b>reward 0.5, answered, 1 turns, cause POLICY</b>")
    assert "<script" not in shown
    assert "<details><summary><small>&lt;b&gt;, 5,000 characters</small></summary>" in shown
    masked = result([1, 2], sampled([4]), infra=True)._repr_html_()
    assert "<b>reward none, infra, 1 turns, cause INFRA, masked</b>" in masked
