"""Settings of the capture gateway, each with its default and its meaning in one place."""

from __future__ import annotations

from dataclasses import dataclass

from fairbox.config import check, setting
from fairbox.errors import ConfigError, FieldError, FieldErrors
from rollout.engines.base import SamplingParams

__all__ = ["CaptureSampling", "CaptureSettings"]


@dataclass(frozen=True)
class CaptureSampling:
    """How tokens are chosen where requests don't say. A seed is a request's own: one for all would make samples of one
    prompt the same."""

    temperature: float = setting(1.0, help="0 (greedy) to 10.")
    top_p: float = setting(1.0, help="Smallest set of tokens whose probabilities reach it; 1 is off.")
    top_k: int = setting(0, help="The k most probable tokens; 0 is off.")

    def params(self) -> SamplingParams:
        """As the engine takes them. Raises FieldErrors."""
        try:
            return SamplingParams(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)
        except FieldErrors as errors:
            raise FieldErrors([FieldError(f"sampling.{e.field}", e.problem) for e in errors.errors]) from None


@dataclass(frozen=True)
class CaptureSettings:
    """Where the gateway listens, and what it holds and runs at most."""

    listen: str = setting("127.0.0.1:8081", help="Address of the OpenAI-compatible endpoint; port 0 takes a free one.")
    token_file: str = setting("", help="File with the bearer token that clients send as their api_key; empty: none.")
    tls_cert: str = setting("", help="File with the certificate and its chain (PEM): the endpoint speaks HTTPS.")
    tls_key: str = setting("", help="File with its key (PEM).")
    insecure: bool = setting(False, help="Listen on other addresses than loopback without a token.")
    models: str = setting("", help="Further names of the model that requests may use, with commas between them.")
    any_model: bool = setting(False, help="Accept every name of a model, for agents that have one written into them.")
    force_sampling: bool = setting(False, help="Temperature, top_p, top_k and seed are ours, whatever requests say.")
    ignore_parameters: str = setting("", help="Parameters that are ignored and not refused, with commas between them.")
    max_turn_tokens: int = setting(4096, least=1, help="Most tokens of a turn; requests may ask for less.")
    max_trajectory_tokens: int = setting(262144, least=1, help="Most tokens of a trajectory, all branches together.")
    max_trajectories: int = setting(4096, least=1, help="Most trajectories that are held; then 429.")
    max_concurrent: int = setting(512, least=1, help="Most requests in flight; then 429.")
    idle_ttl_s: float = setting(3600.0, above=0, help="A trajectory that nobody used for so long is given up, seconds.")
    request_timeout_s: float = setting(
        1800.0, above=0, help="Longest time of a request, its wait for the engine included; 504."
    )
    turn_time_limit_s: float | None = setting(
        None, above=0, help="Longest generation of a turn, which is then cut off; seconds."
    )
    keep_alive_s: float = setting(
        15.0, above=0, help="A stream that waits for its turn says so at such intervals, seconds."
    )
    max_body_bytes: int = setting(4 << 20, least=1, help="Largest body of a request; then 413.")

    def validate(self) -> None:
        """ConfigError for what types can't say."""
        check(self)
        if bool(self.tls_cert) is not bool(self.tls_key):
            raise ConfigError("tls_cert and tls_key go together: set both, or none")
