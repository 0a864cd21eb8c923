"""Which processes serve a model, on how many GPUs of how many machines, and with which arguments: pure planning.

Invariants: a replica has exactly `tensor_parallel` GPUs; one that fits a machine is on one machine; one that does not
takes whole machines. It starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairbox.errors import FieldError, FieldErrors

__all__ = ["LaunchConfig", "NodePart", "ReplicaPlan", "plan", "server_command"]

_OURS = ("--model-path", "--host", "--port", "--tp", "--tp-size", "--tensor-parallel-size", "--nnodes", "--node-rank")
"""Arguments that the plan decides."""


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """What to serve and on what. Raises FieldErrors naming every bad value."""

    model: Path
    """Folder in the layout of the Hugging Face hub, at this path on every machine."""
    replicas: int = 1
    """Servers with the whole model each; data parallelism."""
    tensor_parallel: int = 1
    """GPUs that share one replica."""
    gpus_per_node: int = 8
    """GPUs of one machine; 0 serves on the CPU."""
    cpus_per_gpu: float = 4.0
    """CPUs that Ray sets aside beside each GPU (or, without GPUs, for each replica)."""
    python: str = "python3"
    """Interpreter that has sglang, on every machine."""
    args: tuple[str, ...] = ()
    """Further arguments of `python -m sglang.launch_server`."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables of the servers."""
    restarts: int = 3
    """How often a server that ends by itself is started again; not for a replica of several machines."""
    ready_within_s: float = 1200.0
    """Longest wait until a server answers: loading a large model takes minutes."""

    def __post_init__(self) -> None:
        least = {"replicas": 1, "tensor_parallel": 1, "gpus_per_node": 0, "restarts": 0}
        errors = [
            FieldError(name, f"is {getattr(self, name)}, must be at least {bound}")
            for name, bound in least.items()
            if getattr(self, name) < bound
        ]
        size, each = self.tensor_parallel, self.gpus_per_node
        if not errors and not each and size > 1:
            errors.append(FieldError("tensor_parallel", f"is {size}, must be 1 where gpus_per_node is 0"))
        if not errors and each and size > each and size % each:
            errors.append(FieldError("tensor_parallel", f"is {size}, must be a multiple of {each} or at most {each}"))
        if not 0 < self.ready_within_s < float("inf"):
            errors.append(FieldError("ready_within_s", f"is {self.ready_within_s}, must be a positive number"))
        ours = sorted({arg.partition("=")[0] for arg in self.args} & set(_OURS))
        if ours:
            errors.append(FieldError("args", f"holds {', '.join(ours)}, which the launcher sets itself"))
        if errors:
            raise FieldErrors(errors)


@dataclass(frozen=True, slots=True)
class NodePart:
    """The share of a replica that one machine has."""

    rank: int
    gpus: int
    cpus: float

    @property
    def bundle(self) -> dict[str, float]:
        """Resources as Ray's placement groups take them."""
        return {"CPU": self.cpus} | ({"GPU": float(self.gpus)} if self.gpus else {})


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """One server and the machines that it takes."""

    name: str
    parts: tuple[NodePart, ...]

    @property
    def strategy(self) -> str:
        """Of Ray's placement group: one machine, or as many as there are parts."""
        return "STRICT_PACK" if len(self.parts) == 1 else "STRICT_SPREAD"


def plan(config: LaunchConfig) -> tuple[ReplicaPlan, ...]:
    """Every replica with its parts."""
    nodes = max(1, config.tensor_parallel // config.gpus_per_node) if config.gpus_per_node else 1
    gpus = config.tensor_parallel // nodes if config.gpus_per_node else 0
    parts = tuple(NodePart(rank, gpus, config.cpus_per_gpu * max(1, gpus)) for rank in range(nodes))
    return tuple(ReplicaPlan(f"replica-{index}", parts) for index in range(config.replicas))


def server_command(
    config: LaunchConfig, replica: ReplicaPlan, part: NodePart, *, host: str, port: int, meet: str | None = None
) -> list[str]:
    """The command of one part. `host`: what it listens on; `meet`: `host:port` of rank 0, with several parts."""
    words = [config.python, "-m", "sglang.launch_server", "--model-path", str(config.model)]
    words += ["--host", host, "--port", str(port)]
    if config.tensor_parallel > 1:
        words += ["--tp-size", str(config.tensor_parallel)]
    if len(replica.parts) > 1:
        assert meet is not None
        words += ["--nnodes", str(len(replica.parts)), "--node-rank", str(part.rank), "--dist-init-addr", meet]
    return [*words, *config.args]
