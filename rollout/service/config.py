"""Settings of the rollout service: those of `fairbox rollout`, and where it listens."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from fairbox.config import setting
from fairbox.errors import ConfigError
from fairbox.security.server import ServerSecuritySettings
from rollout.config import RolloutConfig
from rollout.journal import Durability

_MEANINGLESS = {
    "resume": "it always goes on with what is in out",
    "step": "a trainer counts its steps itself",
    "samples_per_prompt": "trainers submit each trajectory by an id of its own",
    "extra_samples": "trainers submit each trajectory by an id of its own",
    "keep_groups": "trainers cancel what they don't want any more",
    "time_limit_s": "it runs until it is told to end",
    "ray": "its engine is in this process or behind engine.urls",
}
"""Settings of a run that a service has no use for -> why."""


@dataclass(frozen=True)
class ServiceConfig(RolloutConfig, ServerSecuritySettings):
    """The rollout service."""

    log_level: str = setting("info", help="Least level that is logged: debug, info, warning or error.")
    listen: str = setting("127.0.0.1:50054", help="Address for trainers, HOST:PORT.")
    health_listen: str = setting("127.0.0.1:50064", help="Address for health checks, HOST:PORT.")
    insecure: bool = setting(False, help="Allow addresses beyond loopback that neither tokens nor tls_client_ca guard.")
    n: int = setting(100_000, least=1, help="How many problems at most, from the beginning of the data.")
    out: str = setting("out/service", help="Folder of what was accepted and has not been acknowledged.")
    max_trajectories: int = setting(
        10_000, least=1, most=1_000_000, help="Most trajectories of a tenant that wait, run, or are not acknowledged."
    )

    def validate(self) -> None:
        """Raises ConfigError or FieldErrors for what types can't say."""
        super().validate()
        self.validate_security()
        usual = RolloutConfig()
        for name, why in _MEANINGLESS.items():
            if getattr(self, name) != getattr(usual, name):
                raise ConfigError(f"{name} is set, which has no meaning for a service: {why}")
        if self.journal == Durability.NONE:
            raise ConfigError("journal is 'none', must be 'process' or 'machine': a service keeps what it accepts")

    def run(self) -> RolloutConfig:
        """Settings of the trajectories alone, which stay as they are while some are under way."""
        return RolloutConfig(**{field.name: getattr(self, field.name) for field in dataclasses.fields(RolloutConfig)})
