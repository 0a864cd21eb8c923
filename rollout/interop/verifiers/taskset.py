"""Word problems as a taskset of verifiers, scored by fairbox's rewards.

    class Mine(FairboxTaskset):
        def load(self):
            yield FairboxTask(FairboxData(id="1", prompt="What is 6 * 7?", ground_truth="42"), self.config.task)

Invariant: a rollout that ended with an error of the service is not scored; verifiers itself skips it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rollout.data import read_rows
from rollout.envs.gsm8k import uid_of
from rollout.interop.needs import needs
from rollout.interop.scores import reward_function
from rollout.rewards import Sample

with needs("verifiers", "0.4.0", "pip install verifiers==0.4.0"):
    import verifiers.v1 as vf

SYSTEM = (
    "You solve word problems with Python code: you call code_interpreter with code that prints what you need. "
    "End your last answer with #### and the number, like this: #### 42"
)
"""The mark is what GSM8K's reward looks for."""


class FairboxData(vf.TaskData):  # type: ignore[misc]
    """One problem."""

    ground_truth: str
    """Ground truth that the reward function gets beside the last reply."""


class FairboxTaskConfig(vf.TaskConfig):  # type: ignore[misc]
    """`env.taskset.task`."""

    reward: str = "gsm8k"
    """A registered reward, a YAML file of rewards, or module:function, which takes a Sample."""


class FairboxTask(vf.Task[FairboxData, vf.State, FairboxTaskConfig]):  # type: ignore[misc]
    """A problem and its reward. Raises ConfigError for a reward that there is not."""

    def __init__(self, data: FairboxData, config: FairboxTaskConfig | None = None) -> None:
        super().__init__(data, config)
        self._reward = reward_function(self.config.reward)

    @property
    def key(self) -> str:
        """The id of the problem, if it has one: the same in every run, wherever it stands."""
        return str(self.data.id or super().key)

    @vf.reward  # type: ignore[untyped-decorator]
    async def correct(self, trace: Any) -> float:
        """The reward of the last reply. Raises NotScored if there is none, which verifiers takes for an error."""
        return (await self._reward.score(Sample(trace.last_reply, self.data.ground_truth))).value


class FairboxTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]
    """`env.taskset`."""

    id: str = "fairbox-verifiers"
    data: Path | None = None
    """GSM8K's JSONL or parquet, or verl's parquet; unset for the few built-in problems."""
    task: FairboxTaskConfig = FairboxTaskConfig()


class FairboxTaskset(vf.Taskset[FairboxTask, FairboxTasksetConfig]):  # type: ignore[misc]
    """The problems of a file. `load` raises DataError, with file and line."""

    def load(self) -> Iterable[FairboxTask]:
        for index, row in enumerate(read_rows(self.config.data)):
            uid, question = uid_of(row.question, index), row.question.strip()
            data = FairboxData(id=uid, prompt=question, system_prompt=SYSTEM, ground_truth=row.ground_truth)
            yield FairboxTask(data, self.config.task)
