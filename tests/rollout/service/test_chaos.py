"""Services that are killed all the time, alone and together: rollout service, engine, limiter and executor. Each is a
process of its own, and real but for what the engine says, which is a script's.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fairbox.net.ports import free_port
from rollout import stack as stacks
from rollout.engines import EngineUnavailable
from rollout.engines.model_store import find_model
from rollout.engines.replicas.replicated import ReplicatedEngine
from rollout.engines.sglang.engine import SglangEngine
from rollout.service import RolloutClient, RolloutTask, trajectories
from rollout.stack import LocalStack
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools.code import CodeInterpreter, CodeInterpreterConfig
from tests.rollout.kept import KeptProcess, listens
from tests.rollout.service import counted_executor, scripted_server
from tests.rollout.service.serving import PROBLEMS, VOCABULARY, Tier, essence

CONCURRENCY, RETRIES = 8, 12
LEAST = 40
"""Trajectories that are played whatever happens."""
OFTEN = {"rollout": 0.6, "engine": 0.3, "executor_service": 0.5, "limiter": 0.15}
"""Who is killed, each for itself. A limiter that was started again first hears for seconds what runs."""
KILLS = int(os.environ.get("FAIRBOX_TEST_KILLS", "100"))


class Counted(LocalStack):
    """Its executor writes down in `begun` which programs it starts."""

    begun: Path

    async def _scope(self) -> Sequence[str]:
        return (sys.executable, "-m", counted_executor.__name__, str(self.begun))


class Behind(Tier):
    """Its engine is a server."""

    url = ""

    def engine(self) -> ReplicatedEngine:  # type: ignore[override]
        return ReplicatedEngine({self.url: SglangEngine(self.url, vocab_size=VOCABULARY, model_name="scripted")})


async def serve(folder: str, address: str, engine: str, executor: str, limiter: str) -> None:
    """The rollout service, until it is killed."""
    trajectories._RETRY_AFTER_S = 0.05
    tokenizer = HubTokenizer(find_model("smollm2"))
    async with CodeInterpreter(CodeInterpreterConfig(), executor=executor, limiter=limiter) as tool:
        tier = Behind(tokenizer, ChatTemplate(tokenizer), Path(folder), tool=tool)
        tier.url = f"http://{engine}"
        while True:
            with contextlib.suppress(EngineUnavailable):  # there is no engine at this start
                async with tier.process(
                    address=address, concurrency=CONCURRENCY, max_trajectories=1000, retries=RETRIES
                ):
                    await asyncio.Event().wait()
            await asyncio.sleep(0.1)


@dataclass
class Running:
    """All four; all that is killed is started again."""

    stack: LocalStack
    others: dict[str, KeptProcess]
    addresses: list[str]
    """The first is the rollout service's."""
    kills: collections.Counter[str] = field(default_factory=collections.Counter)

    def kill(self, victim: str) -> None:
        if victim in self.others:
            self.kills[victim] += self.others[victim].kill()
            return
        with contextlib.suppress(ProcessLookupError):  # it is about to be started again
            os.kill(self.stack.pid(victim), signal.SIGKILL)
            self.kills[victim] += 1


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Running]:
    await asyncio.to_thread(folder.mkdir)
    settings = ["languages=python", f"results_dir={folder / 'results'}", "max_concurrent=8", "spare_boxes=1"]
    stack = Counted(executor_args=settings)
    stack.begun = folder / "begun"
    async with stack, stack.kept():
        service, engine = (f"127.0.0.1:{free_port()}" for _ in range(2))
        addresses = [service, engine, stack.ports.executor, stack.ports.limiter]
        words = [sys.executable, "-m"]
        others = {
            "engine": KeptProcess([*words, scripted_server.__name__, engine, str(folder)]),
            "rollout": KeptProcess([*words, __name__, str(folder), *addresses]),
        }
        async with contextlib.AsyncExitStack() as entered:
            for address, each in zip((engine, service), others.values(), strict=True):
                await entered.enter_async_context(each.kept())
                await listens(address)
            yield Running(stack, others, addresses)


async def kill(tiers: Running, seed: int) -> None:
    """One or several of them, in the middle of their start or moments behind it."""
    draws = random.Random(seed)
    while tiers.kills.total() < KILLS:
        if draws.random() < 0.8:
            await asyncio.gather(*map(listens, tiers.addresses))
        await asyncio.sleep(draws.choice((0.1, 1.0, 3.0)) * draws.random())
        for victim in [each for each, share in OFTEN.items() if draws.random() < share]:
            tiers.kill(victim)


async def played(folder: Path, seed: int | None, least: int) -> tuple[dict[str, object], collections.Counter[str]]:
    """At least so many trajectories, by id, and who was killed. `seed`: of the kills, for as long as which more are
    played; None: nobody is killed."""
    found, number = dict[str, object](), 0
    async with running(folder) as tiers, asyncio.TaskGroup() as group:
        killing = None if seed is None else group.create_task(kill(tiers, seed))

        def goes_on() -> bool:
            return number < least or (killing is not None and not killing.done())

        client = RolloutClient(tiers.addresses[0], unavailable_after=600.0)
        async with client as rollouts, rollouts.stream() as stream:
            while goes_on() or len(found) < number:
                while goes_on() and number - len(found) < 3 * CONCURRENCY:
                    await rollouts.submit([RolloutTask(f"t{number}", problem=number % len(PROBLEMS), seed=number)])
                    number += 1
                trajectory = await anext(stream)
                assert trajectory.id not in found
                assert not trajectory.result.masked, trajectory.result.error
                found[trajectory.id] = essence(trajectory.result)
                await stream.acknowledge(trajectory.id)
    return found, tiers.kills


def lines(log: Path) -> collections.Counter[str]:
    return collections.Counter(log.read_text().splitlines())


@pytest.mark.soak
@pytest.mark.timeout(3 * 3600)
@pytest.mark.parametrize("seed", [1, 2])
async def test_whoever_is_killed_whenever_everything_comes_once_as_if_nobody_had_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(stacks, "MOST_RESTARTS", 10**6)
    found, kills = await played(tmp_path / "killed", seed, LEAST)
    assert kills.total() >= KILLS
    assert len(found) > LEAST + 3 * CONCURRENCY  # they came meanwhile
    wanted, _ = await played(tmp_path / "undisturbed", None, len(found))
    assert found == wanted
    for folder in ("killed", "undisturbed"):
        assert set(lines(tmp_path / folder / "begun").values()) == {1}  # no program was begun twice
    sampled, undisturbed = (lines(tmp_path / folder / "sampled") for folder in ("killed", "undisturbed"))
    assert sampled.keys() == undisturbed.keys()
    # Turns under way, or whose record was, and trajectories whose program was lost with its executor, which are played
    # again: 0.3 to 1.1 for each kill. If finished turns were sampled again, those of up to eight trajectories would be.
    assert sampled.total() - len(sampled) <= 2 * kills.total()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
