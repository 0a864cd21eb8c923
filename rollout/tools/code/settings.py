"""Settings that all tools share which run something at the executor."""

from __future__ import annotations

from dataclasses import dataclass

from fairbox.config import check, setting
from rollout.tools.text import LEAST_CHARS

LONGEST_S = 86_400.0
"""Most seconds of any wait here: limiter and executor accept no longer ones."""
MODES = ("program", "session", "shell")


@dataclass(frozen=True)
class ExecutorToolConfig:
    """Workers, waits, limits, output."""

    num_workers: int = setting(10, least=1, help="Programs of this process that may wait or run at once.")
    rate_limit: int = setting(10, least=1, help="Programs that may run at once over all processes.")
    default_timeout: float = setting(
        30.0, above=0, most=LONGEST_S, help="Wall time of one program, seconds; the model can't change it."
    )
    enable_global_rate_limit: bool = setting(
        True, help="Run under leases of the limiter; otherwise rate_limit holds within this process only."
    )
    memory_limit_mb: int | None = setting(
        None, least=1, help="Memory of a program, or of a session, MiB; none: the executor's."
    )
    queue_timeout: float = setting(
        120.0, above=0, most=LONGEST_S, help="Longest wait for a worker, then for a lease, seconds."
    )
    outage_timeout: float = setting(
        1800.0,
        above=0,
        most=LONGEST_S,
        help="Seconds for which new trajectories wait for a service that fails; after that they are masked.",
    )
    max_output_chars: int = setting(
        1000, least=LEAST_CHARS, help="Characters of a program's output that the model sees."
    )
    mode: str = setting(
        "program",
        choices=MODES,
        help="program: each call starts afresh. session: a trajectory has a session that keeps its state. "
        "shell: that session is one shell (bash alone).",
    )

    def validate(self, path: str = "tool") -> None:
        """ConfigError for what types can't say. `path` is where the settings stand."""
        check(self, path)

    @property
    def workers(self) -> int:
        """Calls of this process that may wait for leases or run at once."""
        return self.num_workers if self.enable_global_rate_limit else min(self.num_workers, self.rate_limit)

    @property
    def memory_limit_bytes(self) -> int:
        """0: the executor's own limit."""
        return (self.memory_limit_mb or 0) << 20

    @property
    def needs_executor(self) -> bool:
        """Says whether programs run at fairbox's own executor."""
        return True

    @property
    def longest_hold_s(self) -> float:
        """Seconds of the longest lease that nobody binds, which the limiter has to allow; 0: there are none."""
        return 0.0

    @property
    def workspace_read_only(self) -> bool:
        """Says whether programs only read the task's workspace."""
        return False

    @property
    def language(self) -> str:
        """Language of every program."""
        raise NotImplementedError
