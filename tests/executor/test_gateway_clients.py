"""Clients that were written for SandboxFusion work unmodified: its own from PyPI, and what verl sends and expects."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from tests.executor.gateways import GatewayServer, gateway
from tests.executor.servers import wait_for
from tests.executor.test_leases import limiter_running

sandbox_fusion = pytest.importorskip("sandbox_fusion")
BURN = "x = 0\nfor i in range(400_000): x += i * i\nprint(x)"
"""A few dozen milliseconds of CPU."""
BURNT = str(sum(i * i for i in range(400_000)))


@pytest.fixture
def server(gateway_server: GatewayServer) -> GatewayServer:
    sandbox_fusion.set_endpoint(gateway_server.url)
    return gateway_server


def ask(code: str, **fields: Any) -> Any:
    return sandbox_fusion.RunCodeRequest(**{"code": code, "language": "python", "run_timeout": 30, **fields})


def test_run_code(server: GatewayServer) -> None:
    reply = sandbox_fusion.run_code(ask(f"{BURN}\nprint(input())", stdin="hello"), max_attempts=1)
    assert reply.status == sandbox_fusion.RunStatus.Success
    assert (reply.run_result.stdout, reply.run_result.return_code) == (f"{BURNT}\nhello\n", 0)
    assert reply.run_result.cpu_time > 0


def test_run_code_with_files(server: GatewayServer) -> None:
    code = "open('out', 'w').write(open('a/in').read() * 2)"
    reply = sandbox_fusion.run_code(ask(code, files={"a/in": "QUI="}, fetch_files=["out"]), max_attempts=1)
    assert reply.files == {"out": "QUJBQg=="}


async def test_run_code_async(server: GatewayServer) -> None:
    replies = await asyncio.gather(
        *(sandbox_fusion.run_code_async(ask(f"print({n})"), max_attempts=1) for n in range(5))
    )
    assert [reply.run_result.stdout for reply in replies] == [f"{n}\n" for n in range(5)]


@pytest.mark.parametrize(
    ("code", "fields", "summary"),
    [
        ("print(1)", {}, "Success"),
        ("1 / 0", {}, "run failed"),
        ("import os; os.abort()", {}, "run failed"),
        ("import time; time.sleep(60)", {"run_timeout": 1}, "run timeout"),
        ("import sys\nwhile True: sys.stdout.write('x' * 65536)", {}, "run failed"),
    ],
)
def test_every_reply_has_a_summary(server: GatewayServer, code: str, fields: dict[str, Any], summary: str) -> None:
    names = sandbox_fusion.models.SummaryMapping(RunFailed="run failed", RunTimeout="run timeout")
    reply = sandbox_fusion.run_code(ask(code, **fields), max_attempts=1)
    assert sandbox_fusion.summary_run_code_result(reply, names) == summary


def test_run_concurrent_keeps_the_order(server: GatewayServer) -> None:
    requests_ = [[ask(f"print({n})")] for n in range(30)]
    replies = sandbox_fusion.run_concurrent(sandbox_fusion.run_code, args=requests_, concurrency=20)
    assert [reply.run_result.stdout for reply in replies] == [f"{n}\n" for n in range(30)]


def test_submit_and_prompts(server: GatewayServer) -> None:
    row = {"id": 7, "content": "Add.", "labels": {}, "test": [{"input": {"stdin": "1 2"}, "output": {"stdout": "3"}}]}
    config = sandbox_fusion.TestConfig(dataset_type="CommonOJDataset", language="python", provided_data=row)
    completion = "```python\nprint(sum(map(int, input().split())))\n```"
    verdict = sandbox_fusion.submit(
        sandbox_fusion.SubmitRequest(dataset="mine", id=7, completion=completion, config=config), max_attempts=1
    )
    assert (verdict.accepted, verdict.id, len(verdict.tests)) == (True, 7, 1)
    prompt = sandbox_fusion.get_prompt_by_id(sandbox_fusion.GetPromptByIdRequest(dataset="mine", id=7, config=config))
    assert (prompt.id, prompt.prompt.startswith("Add.")) == (7, True)
    many = config.copy(update={"provided_data": [row, row]})
    assert len(sandbox_fusion.get_prompts(sandbox_fusion.GetPromptsRequest(dataset="mine", config=many))) == 2


def test_a_verdict_that_can_not_be_had_is_a_rejection_for_those_who_ask_so(server: GatewayServer) -> None:
    config = sandbox_fusion.TestConfig(language="python")
    request = sandbox_fusion.SubmitRequest(dataset="nope", id=1, completion="x", config=config)
    with pytest.raises(Exception, match="400"):
        sandbox_fusion.submit(request, max_attempts=1)
    assert sandbox_fusion.submit_safe(request, max_attempts=1).accepted is False


def call_as_verl(url: str, code: str, stdin: str | None, *, seconds: int = 10) -> tuple[int, dict[str, Any] | None]:
    """(times asked, reply): eight fields, a connection of its own, and up to three attempts, for 504 alone."""
    payload = {
        "compile_timeout": seconds,
        "run_timeout": seconds,
        "code": code,
        "stdin": stdin,
        "memory_limit_MB": 1024,
        "language": "python",
        "files": {},
        "fetch_files": [],
    }
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    for attempt in range(3):
        if attempt:
            time.sleep(attempt)
        response = requests.post(url, headers=headers, data=json.dumps(payload), timeout=2 * seconds + 10)
        if response.status_code != 504:
            response.raise_for_status()
            return attempt + 1, response.json()
    return 3, None


@pytest.mark.parametrize(
    ("code", "stdin", "status", "run_status", "stdout"),
    [
        ("print(input())", "x", "Success", "Finished", "x\n"),
        ("print(1)", None, "Success", "Finished", "1\n"),
        ("raise ValueError('no')", None, "Failed", "Finished", ""),
        ("while True: pass", None, "Failed", "TimeLimitExceeded", ""),
        ("x = bytearray(3 << 30)", None, "Failed", "Finished", ""),
    ],
)
def test_what_verl_reads_is_there(
    server: GatewayServer, code: str, stdin: str | None, status: str, run_status: str, stdout: str
) -> None:
    asked, reply = call_as_verl(f"{server.url}/run_code", code, stdin, seconds=3 if "while" in code else 60)
    assert (asked, reply is not None) == (1, True)
    assert reply is not None
    run = reply["run_result"]
    assert (reply["status"], run["status"], run["stdout"]) == (status, run_status, stdout)
    assert isinstance(run["stdout"] + run["stderr"], str)
    assert (run["return_code"] is None) is (run_status == "TimeLimitExceeded")
    assert run["execution_time"] >= 0


def test_a_504_is_asked_again_and_answered(server: GatewayServer) -> None:
    with gateway("max_concurrent=1", "gateway_queue_timeout_s=0.2") as busy, ThreadPoolExecutor(1) as pool:
        first = http.client.HTTPConnection(busy.url.removeprefix("http://"))
        body = {"code": "import time; time.sleep(300)", "run_timeout": 300}
        first.request("POST", "/run_code", json.dumps(body), {"Content-Type": "application/json"})
        wait_for(lambda: busy.server.status().running == 1)
        call = pool.submit(call_as_verl, f"{busy.url}/run_code", "print(1)", None, seconds=60)
        wait_for(lambda: busy.server.status().queued == 1 or call.done())
        wait_for(lambda: busy.server.status().queued == 0 or call.done())  # it was told to ask again
        first.close()  # takes its run with it
        asked, reply = call.result()
    assert asked > 1
    assert reply is None or reply["status"] == "Success"


def test_every_request_takes_a_token_of_the_limiter_and_gives_it_back() -> None:
    with contextlib.ExitStack() as stack:
        limiter = stack.enter_context(limiter_running("buckets.code.max_in_flight=1", "buckets.code.max_queued=20"))
        settings = (f"limiter={limiter.target}", "limiter_timeout_s=1", "gateway_queue_timeout_s=100")
        held = stack.enter_context(gateway(*settings))
        wait_for(lambda: held.server.status().limiter.valid)
        with ThreadPoolExecutor(4) as pool:
            url = f"{held.url}/run_code"
            replies = list(pool.map(lambda n: call_as_verl(url, f"print({n})", None, seconds=60)[1], range(8)))
        assert [reply["run_result"]["stdout"] for reply in replies if reply] == [f"{n}\n" for n in range(8)]
        wait_for(limiter.idle)
        limiter.process.kill()
        wait_for(lambda: not held.server.status().limiter.valid)
        response = held.post("/run_code", {"code": "1"})
        assert response.status_code == 504
        assert held.get("/v1/ping").json() == "pong"


def test_a_hundred_programs_at_once_all_get_their_time_and_ping_answers(server: GatewayServer) -> None:
    done = threading.Event()
    pings: list[bool] = []

    def ping() -> None:
        while not done.wait(0.05):
            pings.append(requests.get(f"{server.url}/v1/ping", timeout=20).json() == "pong")

    with ThreadPoolExecutor(101) as pool:
        pinging = pool.submit(ping)
        url = f"{server.url}/run_code"
        calls = [pool.submit(call_as_verl, url, BURN, None, seconds=60) for _ in range(100)]
        replies = [call.result()[1] for call in calls]
        done.set()
        pinging.result()
    assert all(reply is not None and reply["status"] == "Success" for reply in replies)
    assert {reply["run_result"]["stdout"].strip() for reply in replies if reply is not None} == {BURNT}
    assert pings
    assert all(pings)
