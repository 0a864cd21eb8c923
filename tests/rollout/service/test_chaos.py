"""Services that are killed all the time: a rollout service in a process of its own, limiter and executor, alone and at
the same time. Real but for the engine, which is in the rollout service's process and says what a script says.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fairbox.net.ports import free_port
from rollout import stack as stacks
from rollout.engines import GenerationRequest
from rollout.engines.model_store import find_model
from rollout.service import RolloutClient, RolloutTask, trajectories
from rollout.stack import LocalStack
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools.code import CodeInterpreter, CodeInterpreterConfig
from tests.rollout.kept import KeptProcess
from tests.rollout.scripted import tool_call
from tests.rollout.service.serving import PROBLEMS, Tier, essence
from tests.rollout.services import LAZY

CONCURRENCY, RETRIES = 8, 12
LEAST = 40
"""Trajectories that are played whatever happens."""
OFTEN = {"rollout": 0.6, "executor_service": 0.5, "limiter": 0.15}
"""Who is killed, each for itself. A limiter that was started again first hears for seconds what runs."""
KILLS = int(os.environ.get("FAIRBOX_TEST_KILLS", "100"))


def program(draws: random.Random) -> str:
    return tool_call("code_interpreter", code=f"print({draws.randrange(10**6)} * 7)")


class Logged(Tier):
    """Writes down what it samples."""

    def script(self, request: GenerationRequest, turn: int) -> str | Exception:
        with (self.folder / "sampled").open("a") as log:
            log.write(f"{request.params.seed} {hash(request.input_ids)}\n")
        return super().script(request, turn)


async def serve(port: str, folder: str, executor: str, limiter: str) -> None:
    """The rollout service, until it is killed."""
    trajectories._RETRY_AFTER_S = 0.05
    tokenizer = HubTokenizer(find_model("smollm2"))
    async with CodeInterpreter(CodeInterpreterConfig(), executor=executor, limiter=limiter) as tool:
        tier = Logged(
            tokenizer, ChatTemplate(tokenizer), Path(folder), delay_s=0.02, ending=0.1, tool=tool, call=program
        )
        async with tier.process(
            address=f"127.0.0.1:{port}", concurrency=CONCURRENCY, max_trajectories=1000, retries=RETRIES
        ):
            await asyncio.Event().wait()


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[LocalStack, KeptProcess, str]]:
    """Limiter, executor and rollout service, and the address of the latter; all that is killed is started again."""
    await asyncio.to_thread(folder.mkdir)
    words = ["languages=python", f"results_dir={folder / 'results'}", "max_concurrent=8", "spare_boxes=1"]
    async with LocalStack(executor_args=[*words, *LAZY]) as stack, stack.kept():
        port = free_port()
        ports = (str(port), str(folder), stack.ports.executor, stack.ports.limiter)
        service = KeptProcess([sys.executable, "-m", __name__, *ports])
        async with service.kept():
            await listens(f"127.0.0.1:{port}")
            yield stack, service, f"127.0.0.1:{port}"


async def listens(address: str) -> None:
    host, _, port = address.rpartition(":")
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            return
        await asyncio.sleep(0.1)


async def kill(
    stack: LocalStack, service: KeptProcess, address: str, seed: int, kills: collections.Counter[str]
) -> None:
    """One or several of them, in the middle of their start or moments behind it."""
    draws = random.Random(seed)
    while kills.total() < KILLS:
        if draws.random() < 0.8:
            await asyncio.gather(*map(listens, (address, stack.ports.executor, stack.ports.limiter)))
        await asyncio.sleep(draws.choice((0.1, 1.0, 3.0)) * draws.random())
        for victim in [each for each, share in OFTEN.items() if draws.random() < share]:
            if victim == "rollout":
                kills[victim] += service.kill()
                continue
            with contextlib.suppress(ProcessLookupError):  # it is about to be started again
                os.kill(stack.pid(victim), signal.SIGKILL)
                kills[victim] += 1


async def played(folder: Path, seed: int | None, least: int) -> tuple[dict[str, object], collections.Counter[str]]:
    """At least so many trajectories, by id, and who was killed. `seed`: of the kills, for as long as which more are
    played; None: nobody is killed."""
    kills, found, number = collections.Counter[str](), dict[str, object](), 0
    async with running(folder) as (stack, service, address), asyncio.TaskGroup() as group:
        killing = None if seed is None else group.create_task(kill(stack, service, address, seed, kills))

        def goes_on() -> bool:
            return number < least or (killing is not None and not killing.done())

        client = RolloutClient(address, unavailable_after=600.0)
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
    return found, kills


@pytest.mark.soak
@pytest.mark.timeout(3 * 3600)
async def test_whoever_is_killed_whenever_everything_comes_once_as_if_nobody_had_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "MOST_RESTARTS", 10**6)
    found, kills = await played(tmp_path / "killed", 1, LEAST)
    assert kills.total() >= KILLS
    assert len(found) > LEAST + 3 * CONCURRENCY  # they came meanwhile
    wanted, _ = await played(tmp_path / "undisturbed", None, len(found))
    assert found == wanted
    logs = [tmp_path / each / "sampled" for each in ("killed", "undisturbed")]
    sampled, undisturbed = (collections.Counter(log.read_text().splitlines()) for log in logs)
    assert sampled.keys() == undisturbed.keys()
    # The turns that were under way, or whose record was, when their process was killed.
    assert sampled.total() - len(sampled) <= CONCURRENCY * kills["rollout"]


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
