"""Settings of `fairbox rollout`, each with its default and its meaning in one place."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from fairbox.config import check, setting
from fairbox.errors import ConfigError, FieldError, FieldErrors
from fairbox.net.serving import check_address
from fairbox.telemetry.program import TelemetrySettings
from rollout.engines.base import SamplingParams
from rollout.engines.local.device import check_device_name
from rollout.engines.vllm.api import LogprobsMode, check_exact
from rollout.engines.weights import Interrupt
from rollout.journal import Durability
from rollout.loop.condense import Condensation
from rollout.loop.groups import Schedule
from rollout.loop.limits import Limits
from rollout.loop.scoring import SCORE_TIMEOUT_S
from rollout.tokens.settings import ChatSettings
from rollout.tools import check_format
from rollout.tools.code.code_interpreter import CodeInterpreterConfig

_KINDS = ("transformers", "sglang", "vllm")
TAKE_WEIGHTS = ("transformers", "sglang")
"""Kinds of engines that take new weights while they run."""
_ONLY_TRANSFORMERS = ("device", "max_batch", "max_model_tokens")
_ONLY_SGLANG = ("router_url", "launch")
_ONLY_SERVERS = ("urls", "api_key_file")
_ONLY_VLLM = ("logprobs_mode",)
_OTHERS = {
    "transformers": (*_ONLY_SERVERS, *_ONLY_SGLANG, *_ONLY_VLLM),
    "sglang": (*_ONLY_TRANSFORMERS, *_ONLY_VLLM),
    "vllm": (*_ONLY_TRANSFORMERS, *_ONLY_SGLANG, "interrupt"),
}
"""Kind -> settings that have no meaning with it."""


@dataclass(frozen=True)
class TokenChoice:
    """Sampling parameters, if nobody sets others."""

    temperature: float = setting(1.0, help="0 (greedy) to 10.")
    top_p: float = setting(1.0, help="Smallest set of tokens whose probabilities reach it; 1 is off.")
    top_k: int = setting(0, help="The k most probable tokens; 0 is off.")

    def params(self) -> SamplingParams:
        """As the engine takes them, without a seed. Raises FieldErrors."""
        try:
            return SamplingParams(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)
        except FieldErrors as errors:
            raise FieldErrors([FieldError(f"sampling.{e.field}", e.problem) for e in errors.errors]) from None


@dataclass(frozen=True)
class SamplingSettings(TokenChoice):
    """Sampling parameters of a run. Each turn gets a seed of its own, made from the run's."""

    temperature: float = setting(0.5, help="0 (greedy) to 10.")
    seed: int | None = setting(
        1, least=0, below=2**63, help="Makes a run repeatable up to float32 rounding; none takes a random one."
    )


@dataclass(frozen=True)
class LaunchSettings:
    """Servers that a run starts for itself."""

    replicas: int = setting(
        0, least=0, help="sglang: servers to start, each with the whole model; 0: those at engine.urls run already."
    )
    tensor_parallel: int = setting(1, least=1, help="GPUs of one machine that share a server.")
    python: str = setting("python3", help="Interpreter that has sglang.")
    ray: bool = setting(False, help="Place them over the Ray cluster at ray_address, not on this machine.")

    def validate(self) -> None:
        """ConfigError naming a setting that has no meaning."""
        for name in ("tensor_parallel", "python", "ray"):
            if not self.replicas and getattr(self, name) != getattr(LaunchSettings(), name):
                raise ConfigError(f"engine.launch.{name} is set, which has no meaning without engine.launch.replicas")


@dataclass(frozen=True)
class EngineSettings:
    """The engine that samples the turns: a model in this process, or servers that run already or are started."""

    kind: str = setting(
        "transformers",
        choices=_KINDS,
        help="transformers: in this process; sglang: servers at urls, or launched; vllm: those at urls.",
    )
    device: str = setting("cpu", help="transformers: device of torch: cpu, cuda, cuda:1.")
    max_batch: int = setting(16, above=0, help="transformers: rows that are decoded at once.")
    max_model_tokens: int | None = setting(
        4096,
        above=0,
        help="transformers: longest context; bounds memory. none: the model's own maximum. Servers have their own.",
    )
    queue_timeout_s: float = setting(
        600.0, above=0, help="Longest wait of a turn in the engine's queue, seconds; then the cause is INFRA."
    )
    urls: list[str] = setting(factory=list, help="One address per server, like [http://HOST:30000].")
    launch: LaunchSettings = setting(factory=LaunchSettings, help="sglang: servers that the run starts and ends.")
    router_url: str | None = setting(
        None, help="sglang: address of a router that places the turns; urls are behind it."
    )
    api_key_file: str = setting("", help="File with the servers' API key; empty: they have none.")
    interrupt: str = setting(
        "continue",
        choices=Interrupt,
        help="Turns that run during a weight update: continue under the new weights, or finish before it.",
    )
    logprobs_mode: str = setting(
        "raw_logprobs", choices=LogprobsMode, help="vllm: what the server was started with as --logprobs-mode."
    )

    def validate(self) -> None:
        """ConfigError naming the setting that is wrong, or that another one leaves without meaning."""
        check(self, "engine")
        check_device_name("engine.device", self.device)
        for name in _OTHERS[self.kind]:
            if getattr(self, name) != getattr(EngineSettings(), name):
                raise ConfigError(f"engine.{name} is set, which has no meaning with engine.kind={self.kind}")
        self.launch.validate()
        for name in ("urls", "router_url", "api_key_file"):
            if self.launch.replicas and getattr(self, name) != getattr(EngineSettings(), name):
                raise ConfigError(f"engine.{name} is set, which has no meaning with engine.launch.replicas")
        if self.kind != "transformers" and not self.urls and not self.launch.replicas:
            raise ConfigError("engine.urls is empty, must hold the address of each server, like [http://HOST:30000]")
        if len(set(self.urls)) != len(self.urls):
            raise ConfigError(f"engine.urls holds an address twice: {', '.join(sorted(self.urls))}")

    def check_sampling(self, params: SamplingParams) -> None:
        """Raises FieldErrors for sampling of which the engine could give no exact logprobs."""
        if self.kind == "vllm":
            check_exact(params, LogprobsMode(self.logprobs_mode))


@dataclass(frozen=True)
class RaySpread:
    """Settings of `--ray`: how loops are spread over a Ray cluster."""

    workers: int = setting(
        2, least=1, help="Workers; Ray spreads them over the machines, and keeps a processor for each."
    )
    num_gpus: float = setting(0.0, least=0, help="GPUs that Ray keeps for a worker; 0 where engines are servers.")


@dataclass(frozen=True)
class RolloutConfig(TelemetrySettings):
    """A run: which problems, which model, which services, which limits."""

    log_level: str = setting("warning", help="Least level that is logged: debug, info, warning or error.")
    metrics_listen: str = setting("", help="Address for Prometheus, e.g. 127.0.0.1:9466; empty: none.")
    insecure: bool = setting(False, help="Allow metrics_listen beyond loopback, which nothing here protects.")
    env: str = setting("gsm8k", help="What makes tasks of the data and scores them: a name, or module:class.")
    data: str | None = setting(None, help="Problems, .jsonl or .parquet (gsm8k's own or verl's); none: built-in ones.")
    reward: str | None = setting(
        None, help="Reward: YAML file of functions, a registered name, or module:function; none: the environment's."
    )
    score_timeout_s: float = setting(
        SCORE_TIMEOUT_S, above=0, help="Longest time of scoring a trajectory; then it is masked."
    )
    n: int = setting(8, least=1, help="How many problems, from the beginning of the data.")
    samples_per_prompt: int = setting(1, help="Trajectories per problem; together they are a group.")
    extra_samples: int = setting(
        0, help="Trajectories per problem beyond those; the first to end are kept, which favours short ones."
    )
    keep_groups: int | None = setting(None, help="End when so many groups are complete, drop the rest; none: all.")
    time_limit_s: float | None = setting(None, help="Longest time of the run, seconds; what has not ended is dropped.")
    model: str = setting(
        "smollm2",
        help="Folder of a model in the layout of the Hugging Face hub, OWNER/NAME of one in its cache, or smollm2.",
    )
    out: str | None = setting(None, help="Folder of the dump; none: a new one below out/, named by date and time.")
    resume: bool = setting(
        False, help="Go on with the run in out that was cut off, with the same settings, or begin where there is none."
    )
    journal: str = setting(
        "process",
        choices=Durability,
        help="What a run can be resumed after: the end of its process, of the machine (each turn waits for the disk), "
        "or none; without meaning with ray.",
    )
    step: int = setting(1, least=0, help="Training step; the dump is {step}.jsonl.")
    up: bool = setting(False, help="Start limiter and executor for this run, on free ports.")
    limiter: str = setting("127.0.0.1:50052", help="Address of the limiter, or several, with commas; not used with up.")
    executor: str = setting("127.0.0.1:50051", help="Address of the executor; not used with up.")
    ray: bool = setting(False, help="Spread the run over the workers of a Ray cluster.")
    ray_address: str = setting("auto", help="Ray's cluster: auto (that of this machine), host:port, or local.")
    spread: RaySpread = setting(factory=RaySpread, help="With ray: how many workers, and what each gets.")
    concurrency: int = setting(16, help="Trajectories that run at once.")
    tools: str | None = setting(None, help="File of tools in verl's format; none: the code interpreter of tool.*.")
    max_parallel_calls: int = setting(5, least=1, help="Tool calls of one turn that run at once.")
    infra_retries: int = setting(1, least=0, help="How often a trajectory that the service failed is run again.")
    tool_format: str = setting(
        "auto", help="How the model writes tool calls: auto (as its chat template does), hermes, ..., sglang:NAME."
    )
    chat: ChatSettings = setting(factory=ChatSettings, help="The chat template.")
    sampling: SamplingSettings = setting(factory=SamplingSettings, help="How tokens are chosen.")
    limits: Limits = setting(factory=Limits, help="When a trajectory has had enough.")
    condense: Condensation = setting(factory=Condensation, help="When old answers of tools are left out.")
    engine: EngineSettings = setting(factory=EngineSettings, help="What samples the turns.")
    tool: CodeInterpreterConfig = setting(factory=CodeInterpreterConfig, help="The code interpreter.")

    def validate(self) -> None:
        """ConfigError or FieldErrors for what types can't say."""
        check(self)
        self.validate_telemetry()
        if self.metrics_listen:
            check_address(self.metrics_listen, insecure=self.insecure, setting="metrics_listen")
        self.engine.validate()
        if self.ray and self.engine.launch.replicas:
            raise ConfigError("engine.launch.replicas is set, but with ray each worker would start servers; use urls")
        if self.ray and self.resume:
            raise ConfigError("resume is set, but a run with ray keeps no journal to go on with")
        self.schedule()
        self.chat.validate()
        check_format(self.tool_format)
        self.engine.check_sampling(self.sampling.params())
        self.tool.validate()
        if self.tools is not None and self.tool != CodeInterpreterConfig():
            raise ConfigError(f"tools is {self.tools!r}, whose entries have settings of their own; leave tool.* out")

    def schedule(self) -> Schedule:
        """Returns the schedule: what runs when, and what is kept. Raises FieldErrors."""
        return Schedule(
            concurrency=self.concurrency,
            samples_per_prompt=self.samples_per_prompt,
            extra_samples=self.extra_samples,
            keep_groups=self.keep_groups,
            time_limit_s=self.time_limit_s,
        )


FREE_SETTINGS = (
    *("out", "resume", "up", "limiter", "executor", "concurrency", "infra_retries", "model", "ray_address"),
    *("log_format", "log_level", "otlp_endpoint", "trace_ratio", "metrics_listen", "insecure"),
    *("tool.outage_timeout", "engine.max_batch", "engine.device", "engine.urls", "engine.launch"),
    *("engine.router_url", "engine.api_key_file", "engine.queue_timeout_s"),
)
"""Settings and groups that may change when a run goes on: where things are, and how long they may take."""


def recorded_settings(config: Any, env_config: Any = None) -> dict[str, Any]:
    """Dotted path -> value of a run's settings, with those of its environment below `env_config`, as a file gives them
    back: by these a run that goes on is compared."""
    found = _flat(config, "") | ({} if env_config is None else _flat(env_config, "env_config."))
    return dict(json.loads(json.dumps(found, default=str)))


def _flat(config: Any, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found |= _flat(value, f"{prefix}{field.name}.")
        else:
            found[prefix + field.name] = value
    return found
