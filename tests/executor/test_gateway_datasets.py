"""Completions are judged in the sandbox, for rows that come with the request."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.executor.gateways import GatewayServer


@pytest.fixture
def server(gateway_server: GatewayServer) -> GatewayServer:
    return gateway_server


def case(stdin: str, stdout: str) -> dict[str, Any]:
    return {"input": {"stdin": stdin}, "output": {"stdout": stdout}}


ROW = {
    "id": "sum",
    "content": "Print the sum.",
    "labels": '{"level": 1}',
    "test": json.dumps([case("1 2", "3"), case("4 5", "9\n"), case("1 1", "2")]),
}
RIGHT = "Here:\n```python\nprint(sum(map(int, input().split())))\n```"
WRONG = "```python\na, b = map(int, input().split())\nprint(3 if a == 1 else 0)\n```"


def submit(server: GatewayServer, completion: str, row: object = ROW, **config: Any) -> dict[str, Any]:
    response = raw(server, "/submit", completion=completion, id="sum", row=row, **config)
    assert response.status_code == 200, response.text
    verdict: dict[str, Any] = response.json()
    return verdict


def raw(server: GatewayServer, path: str, *, row: object, **config: Any) -> Any:
    body = {name: config.pop(name) for name in ("completion", "id", "dataset", "results") if name in config}
    settings = {"dataset_type": "CommonOJDataset", "language": "python", "run_timeout": 30, "provided_data": row}
    return server.post(path, {"dataset": "mine", **body, "config": {**settings, **config}})


def test_a_right_completion_is_accepted(server: GatewayServer) -> None:
    verdict = submit(server, RIGHT)
    assert (verdict["accepted"], verdict["id"]) == (True, "sum")
    assert verdict["extracted_code"] == "print(sum(map(int, input().split())))"
    assert [test["passed"] for test in verdict["tests"]] == [True] * 3
    assert verdict["tests"][0]["exec_info"]["run_result"]["stdout"] == "3\n"
    assert verdict["tests"][0]["test_info"] == case("1 2", "3")


@pytest.mark.parametrize(("run_all", "passed"), [(False, [True, False]), (True, [True, False, False])])
def test_the_first_wrong_case_ends_it_unless_all_are_to_be_run(
    server: GatewayServer, run_all: bool, passed: list[bool]
) -> None:
    verdict = submit(server, WRONG, extra={"run_all_cases": run_all})
    assert verdict["accepted"] is False
    assert [test["passed"] for test in verdict["tests"]] == passed


def test_a_completion_without_code_is_rejected(server: GatewayServer) -> None:
    verdict = submit(server, "I don't know.")
    assert (verdict["accepted"], verdict["extracted_code"]) == (False, "")


def test_a_program_that_fails_is_rejected_even_if_it_printed_the_answer(server: GatewayServer) -> None:
    verdict = submit(server, "```python\nprint(sum(map(int, input().split())), flush=True); 1 / 0\n```")
    assert verdict["accepted"] is False


def test_long_inputs_are_shortened_where_the_case_passed(server: GatewayServer) -> None:
    row = {**ROW, "test": [case("x" * 5000, "5000")]}
    completion = "```python\nprint(len(input()))\n```"
    assert len(submit(server, completion, row)["tests"][0]["test_info"]["input"]["stdin"]) == 999
    full = submit(server, completion, row, extra={"return_full_case": True})
    assert len(full["tests"][0]["test_info"]["input"]["stdin"]) == 5000


def test_a_right_answer_is_not_cut(server: GatewayServer) -> None:
    row = {**ROW, "test": [case("2000000", "x" * 2_000_000)]}
    verdict = submit(server, "```python\nprint('x' * int(input()))\n```", row)
    assert verdict["accepted"] is True


def test_more_cases_than_run_at_once_keep_their_order(server: GatewayServer) -> None:
    row = {**ROW, "test": [case(f"{n} 1", str(n + 1)) for n in range(11)]}
    verdict = submit(server, RIGHT, row)
    assert verdict["accepted"] is True
    assert [test["test_info"]["input"]["stdin"] for test in verdict["tests"]] == [f"{n} 1" for n in range(11)]


def test_bash_is_judged_as_well(server: GatewayServer) -> None:
    verdict = submit(server, "```bash\nread a b\necho $((a + b))\n```", language="bash")
    assert verdict["accepted"] is True


def test_a_clients_own_logic_of_extraction_runs_in_a_sandbox(server: GatewayServer) -> None:
    logic = """import os
assert os.getcwd() == "/sandbox", os.getcwd()
assert len(extract_fenced_code(completion)) == 1
code = completion.split("<answer>")[1].split("</answer>")[0]
submit_code_blocks([CodeBlock(priority=40, code=code, language="python")])"""
    completion = "```python\nprint(0)\n```<answer>print(sum(map(int, input().split())))</answer>"
    verdict = submit(server, completion, custom_extract_logic=logic)
    assert (verdict["accepted"], verdict["extracted_code"]) == (True, "print(sum(map(int, input().split())))")


@pytest.mark.parametrize(
    ("logic", "problem"),
    [
        ("1 / 0", "failed: ZeroDivisionError"),
        ("submit_code_blocks([CodeBlock(priority='x', code=1)])", "can't be read"),
        ("import os; os._exit(0)", "failed"),
    ],
)
def test_logic_that_fails_is_a_400_and_says_why(server: GatewayServer, logic: str, problem: str) -> None:
    response = raw(server, "/submit", completion=RIGHT, id=1, row=ROW, custom_extract_logic=logic)
    assert response.status_code == 400
    assert problem in response.json()["detail"]


HUMAN = {
    "task_id": "HumanEval/0",
    "prompt": "def add(a, b):\n    '''Adds.'''",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    "entry_point": "add",
}


@pytest.mark.parametrize(
    ("completion", "freeform", "accepted"),
    [
        ("    return a + b\n\nprint(add)", False, True),
        ("    return a - b", False, False),
        ("```python\ndef add(a, b):\n    return math.floor(a) + b\n```", True, True),
        ("```python\ndef add(a, b):\n    return 0\n```", True, False),
    ],
)
def test_humaneval(server: GatewayServer, completion: str, freeform: bool, accepted: bool) -> None:
    extra = {"is_freeform": freeform}
    verdict = submit(server, completion, HUMAN, dataset="humaneval_python", dataset_type=None, extra=extra)
    assert verdict["accepted"] is accepted
    assert verdict["full_code"].endswith("check(add)")


MBPP = {
    "id": 1,
    "content": "Write add.",
    "labels": {"test_setup_code": "one = 1"},
    "test_list": ["assert add(1, one) == 2", "assert add(2, 2) == 4"],
}


@pytest.mark.parametrize(("body", "accepted"), [("return a + b", True), ("return 2", False)])
def test_mbpp(server: GatewayServer, body: str, accepted: bool) -> None:
    completion = f"```python\ndef add(a, b):\n    {body}\nassert add(1, 1) == 2\n```[DONE]```python\nx\n```"
    assert submit(server, completion, MBPP, dataset="mbpp")["accepted"] is accepted


AUTO = {
    "id": 3,
    "content": "What is in data.csv?",
    "labels": {"programming_language": "python", "context": "You know Python."},
    "test": {
        "code": "#<INSERT>\nassert answer() == 42\n",
        "asset": json.dumps({"data.csv": base64.b64encode(b"42\n").decode(), "skipped": None}),
    },
}


@pytest.mark.parametrize(
    ("code", "extra", "accepted"),
    [
        ("def answer(): return int(open('data.csv').read())", {}, True),
        ("def answer(): return int(open('data.csv').read())", {"append_flag": True}, True),
        ("def answer(): return 0", {}, False),
        ("import os; os._exit(0)", {"append_flag": True}, False),
    ],
)
def test_autoeval(server: GatewayServer, code: str, extra: dict[str, Any], accepted: bool) -> None:
    completion = f"```python\n{code}\n```"
    assert submit(server, completion, AUTO, dataset_type="AutoEvalDataset", extra=extra)["accepted"] is accepted


def test_prompts_are_made_of_the_rows(server: GatewayServer) -> None:
    rows = [{**ROW, "id": n} for n in range(3)]
    prompts = raw(server, "/get_prompts", row=rows).json()
    assert [prompt["id"] for prompt in prompts] == [0, 1, 2]
    assert prompts[0]["prompt"].startswith("Print the sum.\n\n")
    assert prompts[0]["labels"] == {"level": 1}
    assert raw(server, "/list_ids", row=rows).json() == [0, 1, 2]
    assert raw(server, "/get_prompt_by_id", row=AUTO, id=3, dataset_type="AutoEvalDataset").json() == {
        "id": 3,
        "prompt": "You know Python.\n\nQuestion:What is in data.csv?\n\nAnswer:\n",
        "labels": AUTO["labels"],
    }


def test_the_data_sets_that_are_listed_are_those_that_are_judged(server: GatewayServer) -> None:
    listed = server.get("/list_datasets").json()
    assert listed == ["code_contests", "humaneval_python", "mbpp"]
    for dataset in listed:
        assert raw(server, "/get_metrics", row=None, dataset=dataset, dataset_type=None, results=[]).json() == {}


def test_no_judge_has_metrics_of_its_own(server: GatewayServer) -> None:
    assert raw(server, "/get_metrics", row=None, results=[submit(server, RIGHT)]).json() == {}
    assert raw(server, "/get_metrics_function", row=None).json() == {"function": None}


@pytest.mark.parametrize(
    ("config", "detail"),
    [
        ({"dataset_type": None}, "no eval class found for dataset mine"),
        ({"dataset_type": "Nope"}, "eval class Nope not found"),
        ({"row": None}, "this server has no data sets of its own"),
        ({"row": [ROW]}, "config.provided_data is a list, must be one object"),
        ({"row": {}}, "this server has no data sets of its own"),
        ({"row": {"id": 1}}, "config.provided_data has no 'test'"),
        ({"row": {"test": "["}}, "'test' is text that is not JSON"),
        ({"row": {"test": {}}}, "'test' is dict, must be a list"),
        ({"row": {"test": []}}, "'test' has 0 cases"),
        ({"row": {"test": [{}]}}, "test[0].input.stdin is missing"),
        ({"row": {"test": [case("\ud800", "x")]}}, "test[0].input.stdin is missing or not text"),
        ({"language": None}, "config.language is not set"),
    ],
)
def test_a_row_that_can_not_be_judged_is_a_400(server: GatewayServer, config: dict[str, Any], detail: str) -> None:
    response = raw(server, "/submit", completion=RIGHT, id=1, **{"row": ROW, **config})
    assert response.status_code == 400
    assert detail in response.json()["detail"]


def test_a_language_that_does_not_run_here_is_a_422(server: GatewayServer) -> None:
    response = raw(server, "/submit", completion=RIGHT, id=1, row=ROW, language="cobol")
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == ["body", "config", "language"]
