"""A made-up training run, to learn a run's page with: `python -m examples.prepared_run out/prepared`, and then
`fairbox report out/prepared`. docs/how-to/report.md asks three questions that the page answers.

Nothing of it was played: texts, times and logprobs are drawn, and three things are wrong on purpose.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from executor_service import Cause
from rollout.dump import DumpWriter, record_of, trainer_file, write_trainer_logprobs
from rollout.engines import FinishReason, SamplingParams, find_model
from rollout.loop import PhaseTimes, RequestState, StopReason, Task, ToolCallRecord, TrajectoryResult, TurnRecord
from rollout.rewards import Reward
from rollout.tokens import HubTokenizer, Segment, SegmentKind, Trajectory
from rollout.tools import ToolOutcome

STEPS, GROUPS, SAMPLES = 8, 4, 4
LOST, LOST_STEP, LOST_GROUP = "the executor 10.0.0.7:50051 was lost while it ran the program", 4, 1
"""Error of all but one sample of a group."""
SLOW_STEP, WAITED_S = 7, 41.0
"""One call of that step waited so long for a lease."""
APART_STEP, APART = 6, -8.9
"""Difference of the trainer's logprob from the engine's at one token of that step."""
_STEP_S = 60.0
_MODEL = "smollm2"


@dataclass(frozen=True, slots=True)
class _Place:
    step: int
    group: int
    sample: int

    @property
    def lost(self) -> bool:
        return (self.step, self.group) == (LOST_STEP, LOST_GROUP) and self.sample > 0

    @property
    def waits(self) -> bool:
        return (self.step, self.group, self.sample) == (SLOW_STEP, 2, 1)

    @property
    def apart(self) -> bool:
        return (self.step, self.group, self.sample) == (APART_STEP, 3, 2)


class _Made:
    """Makes trajectories."""

    def __init__(self) -> None:
        self.draws = random.Random(7)
        self._tokenizer = HubTokenizer(find_model(_MODEL))

    def decode(self, ids: object) -> str:
        return self._tokenizer.decode(ids, skip_special=True)  # type: ignore[arg-type]

    def task(self, step: int, group: int) -> Task:
        a, b = 11 + 3 * step + group, 7 + 5 * group
        question = {"role": "user", "content": f"What is {a} * {b}?"}
        return Task(f"{step}-{group}", (question,), str(a * b), "made up", f"sums.jsonl:{GROUPS * step + group}")

    def result(self, place: _Place, task: Task) -> TrajectoryResult:
        asked = task.messages[0]["content"]
        code = f"print({asked.removeprefix('What is ').rstrip('?')})"
        raw = f'<tool_call>\n{{"name": "code_interpreter", "arguments": {{"code": "{code}"}}}}\n</tool_call>'
        right = self.draws.random() < 0.25 + 0.08 * place.step
        said = f"#### {task.ground_truth if right else int(task.ground_truth) + 10}"
        answer = "" if place.lost else task.ground_truth
        wait_s, run_s = (WAITED_S if place.waits else 0.02 + 0.05 * self.draws.random()), 0.04
        engine_s = [0.6 + 0.8 * self.draws.random() for _ in range(2)]
        outcome = ToolOutcome.INFRA if place.lost else ToolOutcome.OK
        call = ToolCallRecord(1, "code_interpreter", {"code": code}, raw, outcome, answer, wait_s=wait_s, run_s=run_s)
        answered = engine_s[0] + wait_s + run_s
        turns: tuple[TurnRecord, ...] = (TurnRecord(0.0, engine_s[0], FinishReason.STOP, answered),)
        messages = [*task.messages, {"role": "assistant", "content": raw}]
        pieces = [self._piece(SegmentKind.PROMPT, place, asked + "\n"), self._piece(SegmentKind.SAMPLED, place, raw)]
        if not place.lost:
            turns += (TurnRecord(answered, answered + engine_s[1], FinishReason.STOP),)
            messages += [{"role": "tool", "content": answer}, {"role": "assistant", "content": said}]
            pieces += [self._piece(SegmentKind.TOOL, place, answer), self._piece(SegmentKind.SAMPLED, place, said)]
        return TrajectoryResult(
            trajectory_id=f"{self.draws.getrandbits(128):032x}",
            uid=task.uid,
            index=SAMPLES * (GROUPS * (place.step - 1) + place.group) + place.sample,
            trajectory=Trajectory(tuple(pieces)),
            messages=tuple(messages),
            tool_calls=(call,),
            state=RequestState.FAILED if place.lost else RequestState.COMPLETED,
            stop_reason=StopReason.INFRA if place.lost else StopReason.ANSWERED,
            cause=Cause.INFRA if place.lost else Cause.POLICY,
            turns=len(turns),
            sampling=SamplingParams(seed=place.sample),
            times=PhaseTimes(0.05, sum(engine_s[: len(turns)]), wait_s, run_s, turns[-1].sampled_s, 0.01),
            started_at=1.8e9 + _STEP_S * place.step + 0.1 * place.sample,
            turn_records=turns,
            error=LOST if place.lost else None,
            reward=None if place.lost else Reward(float(right), {"gsm8k": float(right)}),
        )

    def trained(self, place: _Place, result: TrajectoryResult) -> list[float]:
        """The trainer's logprobs, which differ from the engine's by rounding, but for one token."""
        found = [each and each + self.draws.gauss(0, 0.002) for each in result.trajectory.logprobs]
        if place.apart:
            found[4] += APART
        return found

    def _piece(self, kind: SegmentKind, place: _Place, text: str) -> Segment:
        ids = self._tokenizer.encode(text)
        if kind is not SegmentKind.SAMPLED:
            return Segment(kind, ids)
        return Segment(kind, ids, tuple(-self.draws.expovariate(3) for _ in ids), f"step-{place.step - 1}")


def write_run(out: Path) -> None:
    """Writes the run. Raises DumpError if there is one already."""
    made, lines = _Made(), list[str]()
    for step in range(1, STEPS + 1):
        results, rows = list[TrajectoryResult](), list[tuple[str, list[list[float]]]]()
        with DumpWriter(out / "rollouts", step) as dump:
            for group in range(GROUPS):
                task = made.task(step, group)
                for sample in range(SAMPLES):
                    place = _Place(step, group, sample)
                    results.append(made.result(place, task))
                    dump.write(record_of(results[-1], task, step=step, model=_MODEL, decode=made.decode))
                    trained = [] if results[-1].masked else made.trained(place, results[-1])
                    rows.append((results[-1].trajectory_id, [trained]))
        write_trainer_logprobs(trainer_file(out, str(step)), rows)
        rewards = [each.reward.value for each in results if each.reward is not None]
        figures = {"reward": statistics.fmean(rewards), "masked": len(results) - len(rewards), "lr": 1e-5}
        figures |= {
            "grad_norm": 1 + made.draws.random(),
            "time/rollouts_s": max(each.times.total_s for each in results),
        }
        lines.append(json.dumps({"step": step, **figures}) + "\n")
    (out / "metrics.jsonl").write_text("".join(lines))
    (out / "model").mkdir()  # as of a run that came to its end


if __name__ == "__main__":
    write_run(Path(sys.argv[1]))
