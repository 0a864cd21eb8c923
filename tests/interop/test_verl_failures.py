"""Groups that the service failed, in the workers and the replay buffer of verl's trainer v1, over its TransferQueue.

Only the inference server is scripted.
"""

from __future__ import annotations

import asyncio
import uuid
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.test_verl_agent_loop import PROMPT, MakeWorker, make_worker

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("verl", reason="verl is not installed: make test-interop")
    import ray
    import transfer_queue as tq
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

pytestmark = [
    pytest.mark.verl,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),
]
__all__ = ["make_worker"]


@pytest.fixture(scope="module", autouse=True)
def queue() -> Iterator[None]:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    tq.init()
    yield
    tq.close()
    ray.shutdown()


def as_worker_of_v1(worker: Any) -> Any:
    """The same worker with the methods of trainer v1's, which is an actor otherwise."""
    worker.__class__ = AgentLoopWorkerTQ.__ray_metadata__.modified_class
    worker.background_tasks = set()
    return worker


async def played(worker: Any) -> str:
    """Id of a prompt that the worker has played twice."""
    uid = uuid.uuid4().hex
    await tq.async_kv_put(
        key=uid, partition_id="train", tag={"is_prompt": True, "status": "pending", "global_steps": 1}
    )
    row = {
        "uid": uid,
        "raw_prompt": PROMPT,
        "index": 0,
        "agent_name": "fairbox",
        "global_steps": 1,
        "reward_model": {"ground_truth": "42"},
        "__rollout_n__": 2,
    }
    await worker._run_prompt(
        row, {"temperature": 1.0}, {"validate": False, "step": 1, "sample_index": 0, "rollout_n": 2}
    )
    return uid


@pytest.mark.parametrize("dapo", [False, True])
async def test_group_that_the_service_failed_is_replaced_and_nothing_raises(
    make_worker: MakeWorker, dapo: bool
) -> None:
    broken, _ = make_worker([RuntimeError("gone")], use_v1=True, infra_retries=0, reward="gsm8k")
    failed = await played(as_worker_of_v1(broken))
    assert tq.kv_list()["train"][failed]["status"] == "failure"
    worker, server = make_worker(["#### 42"], use_v1=True, reward="gsm8k")
    server.says_in_turn = ["#### 42", "#### 41"]
    worker, loop = as_worker_of_v1(worker), asyncio.get_running_loop()
    replaced: list[str] = []

    def refill(count: int) -> None:
        replaced.extend(asyncio.run_coroutine_threadsafe(played(worker), loop).result(60) for _ in range(count))

    filtering = {"filter_groups_metric": "reward", "train_batch_size": 1} if dapo else {}
    buffer = ReplayBuffer(
        "sync",
        None,
        None,
        "drop",
        None,
        poll_interval=0.1,
        refill_fn=refill,
        gen_batch_size=1,
        sync_refill_failed_groups=True,
        **filtering,
    )
    batch, _ = await asyncio.to_thread(buffer.sample, 1, "train", 1)
    assert [key.split("_")[0] for key in batch.keys] == replaced * 2
    assert failed not in tq.kv_list()["train"]
