"""Settings of `fairbox train`: those of `fairbox rollout`, and what is done with its trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairbox.config import setting
from fairbox.errors import ConfigError
from rollout.config import FREE_SETTINGS, TAKE_WEIGHTS, RolloutConfig, SamplingSettings, recorded_settings
from rollout.training.algo.advantages import AdvantageSettings
from rollout.training.algo.objective import ObjectiveSettings
from rollout.training.learner.learner import LearnerSettings
from rollout.training.learner.policy import PolicySettings
from rollout.training.learner.update import UpdateSettings

_GROUPED = ("grpo", "rloo")
_FREE = tuple(
    f"{name}."
    for name in (
        *FREE_SETTINGS,
        *("steps", "save_every", "keep", "eval_every", "eval_data", "eval_n", "eval_temperature"),
        *("wandb", "service", "shards", "max_masked_share", "update.push_timeout_s"),
    )
)
"""Settings and groups that may change when a run goes on: where things are, and what does not change what is learned.
`model` may have moved; a model of another shape does not take the checkpoint."""


@dataclass(frozen=True)
class TrainSampling(SamplingSettings):
    """Sampling settings of training."""

    temperature: float = setting(1.0, help="Above 0 to 10; training takes logprobs at the same temperature.")


@dataclass(frozen=True)
class ShardSettings:
    """Settings for splitting the trained model over processes."""

    count: int = setting(
        1,
        least=1,
        help="Processes that hold a part of the model each and train it together, over Ray; with cuda a GPU each.",
    )


@dataclass(frozen=True)
class ServiceSettings:
    """Settings for trajectories that a rollout service plays."""

    target: str = setting(
        "",
        help="Address of a rollout service that plays the trajectories, HOST:PORT, those of its replicas with commas; "
        "empty: this process does.",
    )
    tenant: str = setting("", help="Whose trajectories they are there, one run each; empty: the tenant of the token.")


_OF_THE_SERVICE = (
    *("up", "limiter", "executor", "tools", "tool", "reward", "limits", "condense", "engine"),
    *("max_parallel_calls", "tool_format", "score_timeout_s"),
)
"""Settings that are the service's own where one plays the trajectories."""


@dataclass(frozen=True)
class TrainConfig(RolloutConfig):
    """A training run."""

    n: int = setting(100_000, help="How many problems at most, from the beginning of the data.")
    samples_per_prompt: int = setting(8, help="Trajectories per problem; together they are a group.")
    sampling: TrainSampling = setting(factory=TrainSampling, help="How tokens are chosen.")
    max_staleness: int = setting(
        0,
        least=0,
        help="Steps that the weights of a group may be old when it is trained on. 0: rollouts and updates take turns; "
        "else rollouts run all the time, beside the updates.",
    )
    max_masked_share: float = setting(
        0.1,
        least=0,
        most=1,
        help="Share of a step's trajectories that the service may have failed; with more of them it is not trained on, "
        "because those that are left are chosen by what they called, and all are played again.",
    )
    steps: int = setting(100, least=1, help="Training steps, those before a resume included.")
    prompts_per_step: int = setting(8, least=1, help="Problems of a step.")
    out: str | None = setting(None, help="Folder of the run; none: a new one below out/, named by date and time.")
    resume: bool = setting(False, help="Go on from the newest checkpoint in out, or begin where there is none.")
    save_every: int = setting(10, least=1, help="Steps between checkpoints; one is written at the end too.")
    keep: int = setting(2, least=1, help="Checkpoints that are kept.")
    eval_data: str | None = setting(None, help="Held-out problems, in the form of data; none: no evaluation.")
    eval_n: int = setting(100, least=1, help="Held-out problems of an evaluation, from the beginning of eval_data.")
    eval_every: int = setting(10, least=1, help="Steps between evaluations; the first is before step 1.")
    eval_temperature: float = setting(0.0, least=0, most=10, help="Temperature of evaluations; 0: greedy.")
    wandb: str | None = setting(
        None,
        help="Project of Weights & Biases that gets the figures; none: no project. Variables like WANDB_MODE hold.",
    )
    policy: PolicySettings = setting(factory=PolicySettings, help="The model that is trained.")
    service: ServiceSettings = setting(factory=ServiceSettings, help="Whether a rollout service plays them.")
    shards: ShardSettings = setting(factory=ShardSettings, help="Whether it is split over processes.")
    advantage: AdvantageSettings = setting(factory=AdvantageSettings, help="How advantages are estimated.")
    loss: ObjectiveSettings = setting(factory=ObjectiveSettings, help="What is made small.")
    update: UpdateSettings = setting(factory=UpdateSettings, help="How weights move.")

    def validate(self) -> None:
        """Raises ConfigError or FieldErrors for what types can't say."""
        super().validate()
        self.policy.validate()
        self.loss.validate()
        if self.shards.count > 1 and self.policy.device not in ("cpu", "cuda"):
            raise ConfigError(f"policy.device is {self.policy.device!r}, must be cpu or cuda with shards.count above 1")
        if self.sampling.temperature == 0:
            raise ConfigError(
                "sampling.temperature is 0, must be above 0: greedy trajectories of a problem are all one"
            )
        if self.sampling.seed is None:
            raise ConfigError("sampling.seed is none, must be a number: a run that goes on must go on the same way")
        if self.advantage.estimator not in _GROUPED and self.advantage.equal_groups != "keep":
            raise ConfigError(
                f"advantage.equal_groups is {self.advantage.equal_groups!r}, must be 'keep' with "
                f"advantage.estimator={self.advantage.estimator}, which has no groups"
            )
        if self.advantage.estimator in _GROUPED and self.samples_per_prompt < 2:
            said = f"samples_per_prompt is {self.samples_per_prompt}, must be at least 2"
            raise ConfigError(
                f"{said} with advantage.estimator={self.advantage.estimator}, which compares within groups"
            )
        if self.ray:
            raise ConfigError("ray is set, which training does not support; its rollouts run in this process")
        if self.engine.kind not in TAKE_WEIGHTS:
            raise ConfigError(f"engine.kind is {self.engine.kind!r}, must be one of: {', '.join(TAKE_WEIGHTS)}")
        if self.journal != RolloutConfig().journal:
            raise ConfigError("journal is set, but a training run goes on from its checkpoints")
        if self.step != RolloutConfig().step:
            raise ConfigError("step is set, but training counts its steps itself")
        self._check_source()
        self._check_service()
        if self.loss.aggregation == "seq_mean_token_sum_norm" and self.limits.max_response_tokens is None:
            raise ConfigError("limits.max_response_tokens is none, but loss.aggregation divides by it")

    def _check_service(self) -> None:
        if not self.service.target:
            if self.service.tenant:
                raise ConfigError("service.tenant is set, which has no meaning without service.target")
            return
        usual = TrainConfig()
        for name in _OF_THE_SERVICE:
            if getattr(self, name) != getattr(usual, name):
                raise ConfigError(f"{name} is set, which has no meaning with service.target: it is the service's own")
        for name in ("top_p", "top_k"):
            if getattr(self.sampling, name) != getattr(usual.sampling, name):
                raise ConfigError(f"sampling.{name} is set, but with service.target it is the service's own")

    def _check_source(self) -> None:
        for name in ("keep_groups", "time_limit_s"):
            if (value := getattr(self, name)) is not None:
                raise ConfigError(f"{name} is {value}, must be none in training, which takes whole steps")
        if self.max_staleness and self.loss.correction.level == "none" and self.loss.anchor != "rollout":
            raise ConfigError(
                "loss.correction.level is 'none', must be token, sequence or geometric with max_staleness above 0, "
                "where tokens are of older weights than those that are trained; or set loss.anchor=rollout"
            )

    @property
    def needs_value_head(self) -> bool:
        """True if values are estimated."""
        return self.advantage.estimator == "gae"

    def learner(self) -> LearnerSettings:
        """Settings of the learner."""
        assert self.sampling.seed is not None
        return LearnerSettings(
            advantage=self.advantage,
            loss=self.loss,
            update=self.update,
            temperature=self.sampling.temperature,
            max_response_tokens=self.limits.max_response_tokens or 1,
            steps=self.steps,
            seed=self.sampling.seed,
        )


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Settings that must not differ when a run goes on, but do: a sentence each. Missing ones had their defaults."""
    defaults = recorded_settings(TrainConfig())
    before = {name: value for name, value in defaults.items() if name in now} | dict(before)
    fixed = {name for name in {**before, **now} if not f"{name}.".startswith(_FREE)}
    if now.get("update.schedule") != "constant":
        fixed.add("steps")  # the learning rate falls towards the last one
    absent = "not a setting"
    return [
        f"{name} is {now.get(name, absent)!r}, was {before.get(name, absent)!r}"
        for name in sorted(fixed)
        if now.get(name, absent) != before.get(name, absent)
    ]
