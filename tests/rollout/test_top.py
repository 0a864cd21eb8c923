"""`fairbox top`: its figures and sentences, and the command against real services."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from executor_service import ExecutorClient
from executor_service.v1 import executor_pb2
from limiter.v1 import limiter_pb2
from rollout.service import RolloutTask
from rollout.v1 import rollout_pb2
from rollout.watch.status import _plain
from rollout.watch.top import Moment, screen, wrong
from tests.executor.servers import running
from tests.limiter.servers import ROOT, limiter_server
from tests.rollout.service.conftest import tier
from tests.rollout.service.serving import Tier

__all__ = ["tier"]


def moment(
    at_s: float,
    *,
    limiter: dict[str, Any] | None = None,
    executor: dict[str, Any] | None = None,
    rollout: dict[str, Any] | None = None,
    step: dict[str, Any] | None = None,
) -> Moment:
    """A moment in which these have answered, with these fields of their messages."""

    def answered(message: Any) -> dict[str, Any]:
        return {
            "target": "here:1",
            "problem": "",
            "status": _plain(message),
            "leases": [],
            "sessions": [],
            "leader": "",
        }

    found = {
        "limiter": None if limiter is None else answered(limiter_pb2.GetStatusResponse(**limiter)),
        "executors": [] if executor is None else [answered(executor_pb2.GetStatusResponse(**executor))],
        "rollouts": [] if rollout is None else [answered(rollout_pb2.GetStatusResponse(**rollout))],
    }
    return Moment(at_s, found, step or {})


def shown(now: Moment, before: Moment | None = None) -> str:
    console = Console(width=120, force_terminal=False)
    with console.capture() as capture:
        console.print(screen(now, before))
    return " ".join(capture.get().split())


def bucket(**values: Any) -> dict[str, Any]:
    config = limiter_pb2.BucketConfig(name="code", max_in_flight=8)
    return {"buckets": [limiter_pb2.BucketStatus(config=config, **({"effective_limit": 8} | values))]}


def tenant(**values: Any) -> dict[str, Any]:
    return {"tenants": [rollout_pb2.TenantTrajectories(**values)], "concurrency": 4}


FINE = {"streaming": True}


@pytest.mark.parametrize(
    ("before", "now", "sentences"),
    [
        ({}, {"limiter": bucket(held=8, queued=3, oldest_wait_s=2.0)}, []),
        (
            {},
            {"limiter": bucket(held=8, queued=3, oldest_wait_s=45.0)},
            ["bucket code: 3 requests waiting, the first for 45.0 s"],
        ),
        (
            {},
            {"limiter": bucket(effective_limit=2, queued=1)},
            ["bucket code: 2 of 8 tokens can be given now, with 1 request waiting"],
        ),
        (
            {},
            {"limiter": {"recovering": True, "recovering_for_s": 4.0, "missing_executors": ["a"]}},
            ["the limiter grants nothing for 4.0 s; executors it waits for: a"],
        ),
        ({}, {"executor": {"draining": True}}, ["executor here:1 is ending: it begins no more programs"]),
        (
            {"executor": {"outcomes": {"OUTCOME_SANDBOX_ERROR": 2}}},
            {"executor": {"outcomes": {"OUTCOME_SANDBOX_ERROR": 5, "OUTCOME_FINISHED": 1}}},
            ["executor here:1 failed 3 programs by itself; its log says why"],
        ),
        (
            {"executor": {"outcomes": {"OUTCOME_SANDBOX_ERROR": 2}, "uptime_s": 9}},
            {"executor": {"outcomes": {"OUTCOME_SANDBOX_ERROR": 5}, "uptime_s": 1}},  # another process
            [],
        ),
        (
            {},
            {"executor": {"results": executor_pb2.ResultsStatus(failure="disk full")}},
            ["executor here:1 keeps no results for its next life: disk full"],
        ),
        (
            {},
            {"executor": {"limiter": executor_pb2.LimiterStatus(target="x:1")}},
            ["executor here:1 is not vouched for by its limiter, and takes no leases"],
        ),
        (
            {},
            {"rollout": tenant(tenant="a", ended=7)},
            ["rollout service here:1 has 7 trajectories of a that ended, and nobody takes"],
        ),
        ({}, {"rollout": tenant(ended=7, streaming=True)}, []),
        ({}, {"rollout": {"paused_s": 9.0}}, ["rollout service here:1 has a paused engine, for 9.0 s more"]),
        (
            {"rollout": tenant(**FINE) | {"ended_total": 10, "masked_total": 1}},
            {"rollout": tenant(**FINE) | {"ended_total": 20, "masked_total": 3}},
            ["rollout service here:1 masked 2 of 10 trajectories, because a service failed them"],
        ),
        (
            {"rollout": tenant(**FINE) | {"ended_total": 10, "masked_total": 1}},
            {"rollout": tenant(**FINE) | {"ended_total": 40, "masked_total": 2}},
            [],
        ),
        (
            {"rollout": tenant(running=4, **FINE) | {"engine_busy_s": 5.0}},
            {"rollout": tenant(running=4, **FINE) | {"engine_busy_s": 5.1}},
            ["rollout service here:1 samples 5% of the time, with 4 trajectories running"],
        ),
    ],
)
def test_what_is_wrong_is_said(before: dict[str, Any], now: dict[str, Any], sentences: list[str]) -> None:
    earlier, later = moment(10.0, **before), moment(12.0, **now)
    assert wrong(later, earlier) == sentences
    assert (sentences or ["nothing is wrong"])[0] in shown(later, earlier)


def test_what_is_counted_a_second_is_the_difference() -> None:
    outcomes = ({"OUTCOME_FINISHED": 10}, {"OUTCOME_FINISHED": 16, "OUTCOME_TIME_LIMIT": 2})
    values = [
        {
            "executor": {"outcomes": each, "running": 3, "max_running": 6, "program_memory_bytes": 8 << 30},
            "rollout": tenant(running=2, **FINE) | {"ended_total": number, "engine_busy_s": number},
            "step": {"step": 12, "reward": 0.53214, "kl": None},
        }
        for each, number in zip(outcomes, (4, 6), strict=True)
    ]
    earlier, later = (moment(at_s, **each) for at_s, each in zip((10.0, 14.0), values, strict=True))
    text = shown(later, earlier)
    assert "here:1 3/6 ██░░░ 0 0 0.0/8 2.0 2 TIME_LIMIT" in text
    assert "2/4 ██░░░ 0 0.5 0 50%" in text
    assert "step reward 12 0.5321" in text
    assert "2.0" not in shown(later)  # there is no earlier moment


def test_names_that_others_chose_are_no_markup() -> None:
    hostile = "[/x] [red]"
    now = moment(
        1.0,
        limiter={"buckets": [limiter_pb2.BucketStatus(config=limiter_pb2.BucketConfig(name=hostile))]},
        rollout=tenant(tenant=hostile, ended=1) | {"model": hostile},
    )
    assert shown(now).count(hostile) == 3


async def top(*words: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rollout.cli", "top", "timeout_s=50", *words), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(100):
        out, _ = await process.communicate()
    return process.returncode, " ".join(out.decode().split())


async def test_real_services_are_shown(tier: Tier, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{json.dumps({"step": 3, "reward": 0.25})}\n{{"step": 4, "rew')
    async with limiter_server() as limiter, tier.process() as rollouts, rollouts.client() as client:
        await client.submit([RolloutTask("t1", problem=0)])
        while not rollouts.trajectories.totals.ended:
            await asyncio.sleep(0.01)
        with running() as executor:
            async with ExecutorClient(executor.target) as programs:
                assert (await programs.execute("print(1)")).ok
            words = (f"executor={executor.target}", f"limiter={limiter.admin_address}", f"rollout={rollouts.address}")
            code, out = await top(*words, f"run={tmp_path}", "looks=2", "every_s=0.2")
    assert code == 0
    assert out.count(f"limiter on {limiter.admin_address}") == 2
    assert f"{executor.target} 0/" in out
    assert f"rollout service {rollouts.address} has 1 trajectory that ended, and nobody takes" in out
    assert "step reward 3 0.25" in out


async def test_who_is_away_is_said_and_looked_at_again() -> None:
    code, out = await top("executor=127.0.0.1:1", "limiter=", "looks=2", "every_s=0.1")
    assert (code, out.count("executor on 127.0.0.1:1 is not available")) == (0, 2)
