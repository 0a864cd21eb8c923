"""Telemetry of a program while it runs: its log and its traces, as its settings ask for.

`TelemetrySettings` is the part of each program's settings for them; `open_telemetry()` opens them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fairbox.config import peek
from fairbox.errors import ConfigError
from fairbox.extras import MissingExtra, require
from fairbox.settings import setting
from fairbox.telemetry import logs, tracing
from fairbox.version import installed_version

_LOG = logging.getLogger("fairbox.tracing")
_ENDPOINT = re.compile(r"https?://[^\s/?#]+(/[^\s?#]*)?")
_PATH = "/v1/traces"


@dataclass(frozen=True)
class TelemetrySettings:
    """Settings of log and traces, the same in every program."""

    log_format: str = setting("text", help="text, or json: one object a line.")
    log_level: str = setting("info", help="Least level that is logged: debug, info, warning or error.")
    otlp_endpoint: str = setting(
        "",
        help="Collector of traces, OTLP over HTTP, like http://HOST:4318; empty: that of OTEL_EXPORTER_OTLP_ENDPOINT, "
        "or no traces.",
    )
    trace_ratio: float = setting(
        1.0, help="Share of trajectories, and of calls that belong to none, that are traced, from 0 to 1."
    )

    def validate_telemetry(self) -> None:
        """ConfigError naming the setting that is wrong."""
        if self.log_format not in logs.FORMATS:
            raise ConfigError(f"log_format is {self.log_format!r}, must be one of {', '.join(logs.FORMATS)}")
        if self.log_level not in logs.LEVELS:
            raise ConfigError(f"log_level is {self.log_level!r}, must be one of {', '.join(logs.LEVELS)}")
        if self.otlp_endpoint and not _ENDPOINT.fullmatch(self.otlp_endpoint):
            raise ConfigError(f"otlp_endpoint is {self.otlp_endpoint!r}, must be like http://HOST:4318")
        if not 0 <= self.trace_ratio <= 1:
            raise ConfigError(f"trace_ratio is {self.trace_ratio}, must be from 0 to 1")

    def words(self) -> list[str]:
        """Format and traces for the command line of a program that this one starts; its level is its own."""
        return [
            f"log_format={self.log_format}",
            f"otlp_endpoint={self.otlp_endpoint}",
            f"trace_ratio={self.trace_ratio}",
        ]


def peek_log_format(prefix: str) -> None:
    """Lets what is wrong with the settings themselves be told in the format that they ask for."""
    with contextlib.suppress(ConfigError, OSError):
        asked = peek("log_format", prefix=prefix)
        logs.configure("json" if asked == "json" else "text")


@contextlib.asynccontextmanager
async def open_telemetry(settings: TelemetrySettings, *, service: str, instance: str) -> AsyncIterator[None]:
    """Log and traces of this process until the block is left. `service` is what it is, `instance` which one."""
    logs.configure(settings.log_format, settings.log_level, service=service)
    async with open_traces(settings, service=service, instance=instance):
        yield


@contextlib.asynccontextmanager
async def open_traces(settings: TelemetrySettings, *, service: str, instance: str) -> AsyncIterator[None]:
    """Traces alone; nothing where none are asked for, or this process has them already. ConfigError without the extra
    `otel`, where the settings ask for them."""
    endpoint = settings.otlp_endpoint
    if tracing.enabled() or _disabled() or not (endpoint or _by_environment()):
        yield
        return
    try:
        require(
            "otlp_endpoint" if endpoint else "OTEL_EXPORTER_OTLP_ENDPOINT",
            "otel",
            "opentelemetry.sdk",
            "opentelemetry.exporter.otlp.proto.http",
        )
    except MissingExtra as error:
        if endpoint:
            raise
        _LOG.warning("%s; there are no traces", error)
        yield
        return
    from fairbox.telemetry.otel import exporting  # the SDK, which nobody else needs

    if endpoint and not endpoint.endswith(_PATH):
        endpoint = endpoint.rstrip("/") + _PATH
    names = {"service": service, "instance": instance, "version": installed_version()}
    async with exporting(endpoint, ratio=settings.trace_ratio, **names):
        yield


def _by_environment() -> bool:
    """Says whether OpenTelemetry's own variables ask for traces."""
    asked = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    return bool(asked) and os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "none"


def _disabled() -> bool:
    """Says whether those variables turn the SDK off: it then makes no spans, and gives them all the same empty ids."""
    return os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
