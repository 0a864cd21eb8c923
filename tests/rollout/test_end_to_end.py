"""The whole of it: a real model, a real limiter, a real sandbox, one command."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollout.dump import read_dump
from rollout.dump_check import check_dump
from rollout.envs.gsm8k_prompts import EXAMPLES
from rollout.stack import LocalStack, StackPorts
from tests.rollout.conftest import find_gsm8k_test
from tests.rollout.scripted import scripted_command
from tests.rollout.services import limiter_status

ROOT = Path(__file__).parents[2]
RAN = {"ok", "program_error", "time_limit", "resource_limit"}
SHORT = "limits.max_turn_tokens=80"
"""Most answers of the model take fewer tokens; those that don't would take most of a test's time."""
FEW = ("n=3", "samples_per_prompt=2", "concurrency=4", "limits.max_turns=2", SHORT)

pytestmark = pytest.mark.timeout(600)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "rollout.cli", "rollout", *words]


def ran_own_code(record: dict[str, Any]) -> bool:
    known = {example.code for example in EXAMPLES}
    return any(call["outcome"] in RAN and call["arguments"]["code"] not in known for call in record["tool_calls"])


SESSIONS = """
tools:
  - class_name: rollout.tools.code.CodeInterpreter
    config: {mode: session, rate_limit: 4}
"""


def test_model_calls_tools_in_the_sandbox_and_every_token_is_exact(tmp_path: Path, model_dir: Path) -> None:
    count, data = 4, find_gsm8k_test()
    (tmp_path / "tools.yaml").write_text(SESSIONS)
    chosen = [f"tools={tmp_path / 'tools.yaml'}", *([] if data is None else [f"data={data}"])]
    words = command("--up", f"out={tmp_path / 'out'}", f"n={count}", SHORT, *chosen)
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    records = list(read_dump(tmp_path / "out" / "1.jsonl"))
    assert len(records) == count
    assert sum(ran_own_code(record) for record in records) * 3 >= count
    assert not any(record["masked"] for record in records)
    assert all(record["score"] in (0.0, 1.0) for record in records)
    for call in (call for record in records for call in record["tool_calls"]):
        assert call["text"].startswith("Error:") == (call["outcome"] not in RAN)
    found = check_dump(tmp_path / "out" / "1.jsonl", model_dir)
    assert found.problems == ()
    assert found.sampled_tokens > 100
    assert found.max_logprob_difference < 1e-4, found.worst
    assert f"{count} of {count} rollouts" in done.stdout
    for row in ("score", "tool calls", "time a rollout", "dump"):
        assert row in done.stdout


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_of(pid: int) -> str:
    """Empty: it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


async def started(out: Path, words: list[str]) -> asyncio.subprocess.Process:
    """A run in a group of its own, once it has handed over its first trajectory."""
    process = await asyncio.create_subprocess_exec(
        *words, f"out={out}", cwd=ROOT, stderr=asyncio.subprocess.PIPE, start_new_session=True
    )
    async with asyncio.timeout(200):
        while not ((out / "1.jsonl").exists() and (out / "1.jsonl").stat().st_size):
            assert process.returncode is None
            await asyncio.sleep(0.1)
    return process


async def test_executor_killed_in_the_middle_masks_and_the_run_ends_normally(tmp_path: Path, model_dir: Path) -> None:
    goes_on = tmp_path / "goes-on"
    async with LocalStack() as stack:
        services = (f"executor={stack.ports.executor}", f"limiter={stack.ports.limiter}")
        process = await started(tmp_path, scripted_command(goes_on, *services, *FEW, "tool.outage_timeout=2"))
        os.kill(stack.pid("executor_service"), signal.SIGKILL)
        goes_on.touch()
        _, errors = await asyncio.wait_for(process.communicate(), 300)
    assert process.returncode == 0, errors.decode()
    assert b"Traceback" not in errors
    records = list(read_dump(tmp_path / "1.jsonl"))
    assert len(records) == 6
    masked = [record for record in records if record["masked"]]
    assert masked
    for record in masked:
        assert (record["cause"], record["stop_reason"], record["score"]) == ("INFRA", "infra", None)
        assert record["error"]
        assert record["error"] not in str(record["messages"])
    assert all(record["score"] is not None for record in records if not record["masked"])


async def test_an_executor_that_is_started_again_costs_no_trajectory(tmp_path: Path, model_dir: Path) -> None:
    """Trajectories that it failed are played again behind the outage, so nothing is chosen by who calls tools."""
    ports, goes_on = StackPorts.free(), tmp_path / "goes-on"
    async with LocalStack(ports) as stack:
        services = (f"executor={ports.executor}", f"limiter={ports.limiter}")
        process = await started(tmp_path, scripted_command(goes_on, *services, *FEW))
        os.kill(stack.pid("executor_service"), signal.SIGKILL)
        granted = (await limiter_status(stack)).buckets[0].granted_total
        goes_on.touch()
        async with asyncio.timeout(200):  # until calls have failed, each in two attempts, and a probe has
            while (await limiter_status(stack)).buckets[0].granted_total < granted + 5:
                assert process.returncode is None
                await asyncio.sleep(0.1)
        assert not (tmp_path / "summary.json").exists()
    async with LocalStack(ports):
        _, errors = await asyncio.wait_for(process.communicate(), 300)
    assert process.returncode == 0, errors.decode()
    records = list(read_dump(tmp_path / "1.jsonl"))
    assert [record["masked"] for record in records] == [False] * 6
    assert max(record["attempts"] for record in records) == 2


async def test_up_starts_its_services_again(tmp_path: Path, model_dir: Path) -> None:
    goes_on = tmp_path / "goes-on"
    process = await started(tmp_path, scripted_command(goes_on, "--up", *FEW))
    for service in ("executor_service", "limiter"):
        (child,) = [pid for pid in children_of(process.pid) if f"\0-m\0{service}\0" in command_of(pid)]
        os.kill(child, signal.SIGKILL)
    goes_on.touch()
    _, errors = await asyncio.wait_for(process.communicate(), 300)
    assert process.returncode == 0, errors.decode()
    for service in ("executor_service", "limiter"):
        assert f"{service} ended with exit code -9; it is started again" in errors.decode()
    assert [record["masked"] for record in read_dump(tmp_path / "1.jsonl")] == [False] * 6


async def test_interrupted_run_keeps_what_had_ended(tmp_path: Path, model_dir: Path) -> None:
    process = await started(tmp_path, command("--up", "samples_per_prompt=8", "concurrency=2", SHORT))
    process.send_signal(signal.SIGINT)
    _, errors = await asyncio.wait_for(process.communicate(), 300)
    assert process.returncode == 130
    assert b"interrupted; what had ended is in the dump" in errors
    assert b"Traceback" not in errors
    kept = len(list(read_dump(tmp_path / "1.jsonl")))
    assert 1 <= kept < 64
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["complete"], summary["finished"], summary["planned"]) == (False, kept, 64)


OWN_TOOL = """
from rollout.tools.code import CodeInterpreter

class Interpreter(CodeInterpreter):
    pass
"""


@pytest.mark.ray
def test_a_run_over_ray_is_a_run(tmp_path: Path, model_dir: Path) -> None:
    """With a tool of the current folder, in which a file has the name of a package of ours."""
    (tmp_path / "own_tool.py").write_text(OWN_TOOL)
    (tmp_path / "tools.yaml").write_text("tools:\n  - class_name: own_tool.Interpreter\n    config: {}\n")
    (tmp_path / "limiter.py").write_text("raise RuntimeError('limiter.py of the current folder was loaded')\n")
    few = ("n=2", "limits.max_turns=2", "limits.max_turn_tokens=48", "spread.workers=1", "tools=tools.yaml")
    fairbox = Path(sys.executable).with_name("fairbox")
    words = [str(fairbox), "rollout", "--up", "--ray", "ray_address=local", f"out={tmp_path / 'out'}", *few]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    records = list(read_dump(tmp_path / "out" / "1.jsonl"))
    assert len(records) == 2
    assert not any(record["masked"] for record in records), records
    assert check_dump(tmp_path / "out" / "1.jsonl", model_dir).problems == ()
    assert "workers: 1 ready" in done.stdout
