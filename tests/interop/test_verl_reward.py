"""verl's own reward client for SandboxFusion, unmodified, against the executor's gateway."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.executor.gateways import GatewayServer, gateway

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("verl", reason="verl is not installed: make test-interop")
    from verl.utils.reward_score import default_compute_score
    from verl.utils.reward_score.sandbox_fusion import compute_score
    from verl.utils.reward_score.sandbox_fusion.utils import check_correctness

pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("ignore")]

SUM = "print(sum(map(int, input().split())))"
CASES = {"inputs": ["1 2", "5 5", "0 0"], "outputs": ["3", "10", "0"]}


@pytest.fixture(scope="module")
def server() -> Iterator[GatewayServer]:
    with gateway("max_concurrent=4", "gateway_queue_timeout_s=100") as started:
        yield started


def check(server: GatewayServer, code: str, cases: dict[str, Any], timeout: int = 30) -> tuple[list[Any], list[str]]:
    results, details = check_correctness(f"{server.url}/run_code", cases, code, timeout=timeout, language="python")
    return results, [detail["status"] for detail in details]


def test_right_and_wrong_answers(server: GatewayServer) -> None:
    assert check(server, SUM, CASES) == ([True] * 3, ["success"] * 3)
    half = check(server, "print(3)", CASES)
    assert half == ([True, False, False], ["success", "wrong_answer", "wrong_answer"])


@pytest.mark.parametrize(
    ("code", "timeout", "result", "status"),
    [
        ("raise ValueError", 30, -2, "runtime_error"),
        ("import time; time.sleep(60)", 1, -3, "timeout"),
        ("x = bytearray(3 << 30)", 30, -2, "runtime_error"),
    ],
)
def test_failures_are_the_ones_that_verl_tells_apart(
    server: GatewayServer, code: str, timeout: int, result: int, status: str
) -> None:
    assert check(server, code, {"inputs": [""], "outputs": [""]}, timeout) == ([result], [status])


def test_function_calls_of_livecodebench_are_judged(server: GatewayServer) -> None:
    code = "class Solution:\n    def add(self, a: int, b: int) -> int:\n        return a + b"
    cases = {"fn_name": "add", "inputs": ["1\n2", "3\n4"], "outputs": ["3", "8"]}
    assert check(server, code, cases)[0] == [True, False]


@pytest.mark.parametrize("continuous", [True, False])
def test_scores_of_whole_completions(server: GatewayServer, continuous: bool) -> None:
    url, semaphore = f"{server.url}/run_code", threading.Semaphore(2)
    completion = f"Here:\n```python\n{SUM}\n```"
    score, details = compute_score(url, semaphore, 1024, completion, json.dumps(CASES), continuous=continuous)
    assert (float(score), len(details)) == (1.0, 3)
    score, _ = compute_score(url, semaphore, 1024, "no code here", json.dumps(CASES), continuous=continuous)
    assert float(score) == 0.0


def test_reward_of_a_data_set_goes_through_the_gateway(server: GatewayServer) -> None:
    score = default_compute_score(
        "codecontests",
        f"```python\n{SUM}\n```",
        json.dumps(CASES),
        sandbox_fusion_url=f"{server.url}/run_code",
        concurrent_semaphore=threading.Semaphore(2),
        memory_limit_mb=1024,
    )
    assert float(score) == 1.0
