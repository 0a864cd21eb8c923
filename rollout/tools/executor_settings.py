"""Settings that all tools share which run something at the executor."""

from __future__ import annotations

from dataclasses import dataclass

from fairbox.config import setting
from fairbox.errors import ConfigError
from rollout.tools.text import Keep, check_text_settings

__all__ = ["LONGEST_S", "MODES", "ExecutorToolConfig"]

LONGEST_S = 86_400.0
"""Most seconds of any wait here: limiter and executor accept no longer ones."""
MODES = ("program", "session")


@dataclass(frozen=True)
class ExecutorToolConfig:
    """Workers, waits, limits, output."""

    num_workers: int = setting(10, help="Programs of this process that may wait or run at once; from 1.")
    rate_limit: int = setting(10, help="Programs that may run at once over all processes; from 1.")
    default_timeout: float = setting(30.0, help="Wall time of one program, seconds; the model can't change it.")
    enable_global_rate_limit: bool = setting(
        True, help="Run under leases of the limiter; otherwise rate_limit holds within this process only."
    )
    memory_limit_mb: int | None = setting(None, help="Memory of a program, or of a session, MiB; none: the executor's.")
    queue_timeout: float = setting(120.0, help="Longest wait for a worker, then for a lease, seconds.")
    max_output_chars: int = setting(1000, help="Characters of a program's output that the model sees; from 16.")
    keep_output: str = setting(Keep.ENDS.value, help="What is left of longer output: ends, start or end.")
    infra_attempts: int = setting(2, help="Attempts of one call while the service fails; from 1.")
    mode: str = setting(
        "program", help="program: each call starts afresh. session: a trajectory has a session that keeps its state."
    )
    session_idle_ttl: float = setting(
        3600.0, help="A session that nothing has run in for so long is ended by the executor, seconds; then INFRA."
    )

    def validate(self, path: str = "tool") -> None:
        """ConfigError for what types can't say. `path` is where the settings stand."""
        for name in ("num_workers", "rate_limit", "infra_attempts", "memory_limit_mb"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{path}.{name} is {value}, must be at least 1")
        for name in ("default_timeout", "queue_timeout", "session_idle_ttl"):
            if not 0 < getattr(self, name) <= LONGEST_S:
                raise ConfigError(
                    f"{path}.{name} is {getattr(self, name)}, must be above 0 and at most {LONGEST_S:.0f} seconds"
                )
        check_text_settings(path, self.max_output_chars, self.keep_output)
        if self.mode not in MODES:
            raise ConfigError(f"{path}.mode is {self.mode!r}, must be {' or '.join(MODES)}")

    @property
    def workers(self) -> int:
        """Calls of this process that may wait for leases or run at once."""
        return self.num_workers if self.enable_global_rate_limit else min(self.num_workers, self.rate_limit)

    @property
    def workspace_read_only(self) -> bool:
        """Whether programs only read the task's workspace."""
        return False

    @property
    def language(self) -> str:
        """Language of every program."""
        raise NotImplementedError
