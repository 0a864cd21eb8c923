"""The translation between SandboxFusion's interface and the executor's, without a server."""

from __future__ import annotations

import base64
import json
import math
import tracemalloc
from typing import Any

import pytest

from executor_service.gateway.errors import Unacceptable, details_of, encode
from executor_service.gateway.extraction import all_blocks, best_code
from executor_service.gateway.replies import run_code_reply, run_result
from executor_service.gateway.requests import budget_of, execution_of, input_files
from executor_service.gateway.schemas import RunCodeRequest, SubmitRequest, checked
from executor_service.gateway.submissions import same_output, shortened
from executor_service.model import Cause, ExecutionResult, Outcome, Output

pydantic = pytest.importorskip("pydantic")
LANGUAGES = {"python", "bash"}


def request(**fields: Any) -> RunCodeRequest:
    return checked(RunCodeRequest, {"code": "1", **fields}, LANGUAGES)


def result(outcome: Outcome, **facts: Any) -> ExecutionResult:
    return ExecutionResult(outcome, Cause.POLICY, **facts)


def test_what_is_not_sent_has_the_defaults_of_sandboxfusion_and_python() -> None:
    asked = request()
    assert (asked.language, asked.compile_timeout, asked.run_timeout, asked.memory_limit_mb) == ("python", 10, 10, -1)
    assert (asked.stdin, asked.files, asked.fetch_files) == (None, {}, [])


def test_unknown_fields_are_ignored_and_numbers_may_be_text() -> None:
    asked = request(run_timeout="5", memory_limit_MB="64", nonsense={"a": 1})
    assert (asked.run_timeout, asked.memory_limit_mb) == (5.0, 64)


@pytest.mark.parametrize(
    ("fields", "kind", "loc"),
    [
        ({"code": None}, "string_type", ["body", "code"]),
        ({"code": "\ud800"}, "string_unicode", ["body", "code"]),
        ({"stdin": "a\udfff"}, "string_unicode", ["body", "stdin"]),
        ({"language": "js"}, "literal_error", ["body", "language"]),
        ({"run_timeout": None}, "float_type", ["body", "run_timeout"]),
        ({"run_timeout": "soon"}, "float_parsing", ["body", "run_timeout"]),
        ({"run_timeout": math.nan}, "finite_number", ["body", "run_timeout"]),
        ({"memory_limit_MB": 1.5}, "int_from_float", ["body", "memory_limit_MB"]),
        ({"files": ["a"]}, "dict_type", ["body", "files"]),
        ({"files": {"a": 1}}, "string_type", ["body", "files", "a"]),
        ({"fetch_files": "a"}, "list_type", ["body", "fetch_files"]),
    ],
)
def test_a_bad_field_is_named_as_fastapi_names_it(fields: dict[str, Any], kind: str, loc: list[str]) -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        request(**fields)
    details = details_of(caught.value)
    assert [(detail["type"], detail["loc"]) for detail in details] == [(kind, loc)]
    json.loads(encode(details), parse_constant=pytest.fail)


def test_an_error_body_echoes_little() -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        checked(RunCodeRequest, {"stdin": "x" * 100_000}, LANGUAGES)
    assert len(encode(details_of(caught.value))) < 1000


@pytest.mark.parametrize(
    ("outcome", "exit_code", "status", "command", "code"),
    [
        (Outcome.FINISHED, 0, "Success", "Finished", 0),
        (Outcome.NONZERO_EXIT, 3, "Failed", "Finished", 3),
        (Outcome.SIGNALED, 139, "Failed", "Finished", -11),
        (Outcome.TIME_LIMIT, 137, "Failed", "TimeLimitExceeded", None),
        (Outcome.CPU_LIMIT, 137, "Failed", "TimeLimitExceeded", None),
        (Outcome.MEMORY_LIMIT, 137, "Failed", "Finished", 137),
        (Outcome.PROCESS_LIMIT, 137, "Failed", "Finished", 137),
        (Outcome.OUTPUT_LIMIT, 137, "Failed", "Finished", 137),
    ],
)
def test_every_outcome_has_a_status_that_clients_know(
    outcome: Outcome, exit_code: int, status: str, command: str, code: int | None
) -> None:
    facts = {"exit_code": exit_code, "stdout": Output(b"part", 4), "message": "Killed: why."}
    reply = run_code_reply(result(outcome, **facts), ())
    run = reply["run_result"]
    assert (reply["status"], run["status"], run["return_code"]) == (status, command, code)
    assert (run["stdout"], reply["message"], reply["compile_result"]) == ("part", "", None)
    assert (run["stderr"] == "Killed: why.\n") is (code == 137)
    assert (reply["outcome"], reply["cause"]) == (outcome.value, "POLICY")


def test_the_reason_of_a_limit_is_a_line_of_its_own() -> None:
    run = run_result(result(Outcome.MEMORY_LIMIT, stderr=Output(b"half a line", 11), message="Killed."))
    assert run["stderr"] == "half a line\nKilled.\n"


def test_input_files_are_decoded_leniently_and_placeholders_skipped() -> None:
    files = {"a/./b": "QUJD\n", "c": "QUI", "d": None, "x_IGNORE_THIS_FILE": "!", "/sandbox/e": "QQ=="}
    found = [(file.path, file.content) for file in input_files(files)]
    assert found == [("a/b", b"ABC"), ("c", b"AB"), ("e", b"A")]


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "/sandbox/../etc/x", "", ".", "a\0b", "x" * 300])
def test_input_files_outside_the_work_folder_are_refused(path: str) -> None:
    with pytest.raises(Unacceptable) as caught:
        input_files({path: base64.b64encode(b"x").decode()})
    assert caught.value.detail[0]["loc"][:2] == ["body", "files"]


def test_limits_are_those_of_the_request_or_the_servers() -> None:
    asked = execution_of(request(run_timeout=3, memory_limit_MB=64)).limits
    assert (asked.wall_time_s, asked.memory_bytes, asked.compile_time_s) == (3.0, 64 << 20, 0.0)
    assert execution_of(request(memory_limit_MB=-1)).limits.memory_bytes == 0


@pytest.mark.parametrize(("compile_s", "run_s"), [(10, 10), (0, 30), (30, 0.5), (-1, -1), (300, 600)])
def test_queueing_leaves_a_program_all_its_time_before_the_client_gives_up(compile_s: float, run_s: float) -> None:
    budget = budget_of(request(compile_timeout=compile_s, run_timeout=run_s), 18.0)
    gives_up = max(compile_s, 0) + max(run_s, 0) + 10
    assert 1.0 <= budget.queue_s <= 18.0
    assert budget.queue_s + max(run_s, 0) < budget.total_s < gives_up


FENCED = "Sure:\n```python\nprint(1)\n```\nand\n```cpp\nint main() {}\n```\n"


@pytest.mark.parametrize(
    ("completion", "language", "code"),
    [
        (FENCED, "python", "print(1)"),
        (FENCED, "cpp", "int main() {}"),
        (FENCED, "rust", "print(1)"),
        ("```py\nx = 1\n```", "python", "x = 1"),
        ("```\nx = 1\n```", "python", "x = 1"),
        ("```python\nx = 1\n  ```", "python", "x = 1"),
        ("```python\nx = 1", "python", "x = 1"),
        ("Here:\nimport os\ndef f():\n    return 1\n\nDone.", "python", "import os\ndef f():\n    return 1\n"),
        ("```python\nx = 1\n\n   \n```", "python", "x = 1"),
        ("```\n\n```", "python", ""),
        ("```a\n1\n``````python\n2\n```", "python", "2"),
        (
            "import os\n\nx\n# about f\ndef f():\n    return 1\nclass A:\nend",
            "python",
            "# about f\ndef f():\n    return 1\n",
        ),
        ("no code", "python", ""),
        ("", "python", ""),
    ],
)
def test_the_best_block_of_a_completion_is_its_code(completion: str, language: str, code: str) -> None:
    assert best_code(all_blocks(completion, language), language) == code


@pytest.mark.parametrize(
    "text", ["x```a\nx", "```", "#a\n", "def f():\n", "```\n", " ```\n \n", "with x as\n", "import a\n x\n"]
)
def test_no_completion_takes_more_than_linear_time(text: str) -> None:
    # In quadratic time this would take hours.
    for language in ("python", "sql"):
        all_blocks(text * (1_000_000 // len(text)), language)


@pytest.mark.parametrize("field", ["files", "fetch_files"])
def test_so_many_entries_are_refused_as_one(field: str) -> None:
    many: Any = [1] * 1_000_000 if field == "fetch_files" else {str(i): 1 for i in range(100_000)}
    with pytest.raises(pydantic.ValidationError) as caught:
        request(**{field: many})
    assert [detail["type"] for detail in details_of(caught.value)] == ["too_long"]


def test_a_completion_is_no_longer_than_a_program() -> None:
    body = {"dataset": "x", "id": 1, "config": {}, "completion": "```\n" * (1 << 19)}
    with pytest.raises(pydantic.ValidationError) as caught:
        checked(SubmitRequest, body, LANGUAGES)
    assert [(detail["type"], detail["loc"]) for detail in details_of(caught.value)] == [
        ("too_long", ["body", "completion"])
    ]


def test_the_first_block_of_the_best_kind() -> None:
    assert best_code(all_blocks("text ```\na\n```\n```python\nb\n```", "python")) == "a"
    assert best_code(all_blocks("text ```python\na", "python")) == "a"


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("1 2\n", "1 2", True),
        ("  1 2  \n\n", "1 2", True),
        ("YES\n", "yes", True),
        ("a \nb", "a\nb  ", True),
        ("0.333333", "0.3333334", True),
        ("0.3333", "0.3334", False),
        ("1e3", "1000", True),
        ("1\n2", "1", False),
        ("1", "1\n2", False),
        ("a", "b", False),
        ("nan", "1", False),
        ("inf", "1", False),
        ("", "", True),
        ("0", "1e-20", True),
    ],
)
def test_outputs_are_compared_line_by_line(printed: str, expected: str, same: bool) -> None:
    assert same_output(printed, expected) is same


def test_lines_of_large_outputs_are_not_all_made_at_once() -> None:
    text = "ab\n" * 100_000
    tracemalloc.start()
    assert same_output(text, text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * len(text)


def test_long_texts_keep_both_ends() -> None:
    assert shortened("x" * 1000) == "x" * 1000
    assert shortened("a" * 5000 + "z" * 5000) == "a" * 498 + "..." + "z" * 498


def test_a_reply_that_is_made_in_pieces_says_the_same() -> None:
    reply: dict[str, Any] = {
        "cells": [{"display": [{"a": "\0ü" * (1 << 20), "b": [[1], {}]}] * 2, "error": []}],
        "n": None,
        "s": {},
    }
    assert encode(reply) == json.dumps(reply, ensure_ascii=False, separators=(",", ":")).encode()
