"""Single samples that the service failed are played again, and not the groups that they belong to."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

from executor_service import Cause
from rollout.engines import EngineUnavailable, GenerationRequest, SamplingParams
from rollout.loop import AgentLoop, Task, TrajectoryResult
from rollout.rewards import Reward
from rollout.testing import ScriptedEngine, ScriptedTool
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import Toolbox
from tests.rollout.scripted import NO_LIMITS, roll_out, tool_call

FAILED, SAMPLES, GROUPS, TURNS = 0.05, 8, 50, 6
MOST_WASTED = 0.06
"""Share of all sampled tokens that may be thrown away. To drop each group with a failed sample throws a third away."""


async def test_of_a_group_only_the_failed_sample_is_thrown_away(tokenizer: HubTokenizer, chat: ChatTemplate) -> None:
    fails_at, begun = dict[str, int | None](), Counter[int | None]()
    sampled: Counter[str] = Counter()
    """Attempt -> its turns, which are all of one length."""

    def script(request: GenerationRequest, turn: int) -> str | Exception:
        attempt = request.trajectory_id
        if attempt not in fails_at:  # its first turn, whose seed all attempts of a sample share
            sample = request.params.seed
            begun[sample] += 1
            # Drawn by sample: in the order of attempts, which is one of time, a sample may fail once too often.
            draws = random.Random(f"5 {sample} {begun[sample]}")
            fails_at[attempt] = draws.randrange(TURNS) if draws.random() < FAILED else None
        if turn == fails_at[attempt]:
            return EngineUnavailable("the engine is away")
        sampled[attempt] += 1
        return tool_call("echo", text="abc") if turn < TURNS - 1 else "#### 1 is the answer to all of it, as I said"

    def score(task: Task, result: TrajectoryResult) -> Reward:
        return Reward(1.0)

    engine = ScriptedEngine(tokenizer, script, vocab_size=49152)
    loop = AgentLoop(engine, chat, Toolbox([ScriptedTool(lambda _: "abc")]), NO_LIMITS, SamplingParams())
    tasks = [Task(f"g{n}", ({"role": "user", "content": f"{n}?"},), "1", "test", f"here:{n}") for n in range(GROUPS)]
    done = await roll_out(loop, score, tasks, retries=2, concurrency=64, samples_per_prompt=SAMPLES)
    scored: defaultdict[str, int] = defaultdict(int)
    for _, result in done:
        assert result.cause is Cause.POLICY
        assert result.turns == TURNS
        scored[result.uid] += 1
    assert set(scored.values()) == {SAMPLES}
    kept = {result.trajectory_id for _, result in done}
    wasted = sum(turns for attempt, turns in sampled.items() if attempt not in kept)
    failed = sum(each is not None for each in fails_at.values())
    assert failed > GROUPS * SAMPLES * FAILED / 2
    assert 0 < wasted <= MOST_WASTED * sampled.total()
