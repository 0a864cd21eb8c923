"""The log of servers that are made with aiohttp: what is no HTTP is told of, and never repeated.

aiohttp logs such a request with its line or its header, and those can hold a token. Invariant: no byte of a request is
in the log, and a flood of such requests is no flood of lines.
"""

from __future__ import annotations

import logging

from fairbox.clock import Clock, MonotonicClock

__all__ = ["http_logger"]

_ERRORS = "aiohttp.http_exceptions"
"""Module of what aiohttp raises for bytes that it can't read."""
_EVERY_S = 10.0
"""Between two lines about them."""


def http_logger(name: str, clock: Clock | None = None) -> logging.Logger:
    """For `web.AppRunner(..., logger=...)`; `name` is what lines are told under."""
    logger = logging.getLogger(f"{name}.http")
    for former in [each for each in logger.filters if isinstance(each, _WithoutBytes)]:
        logger.removeFilter(former)
    logger.addFilter(_WithoutBytes(clock or MonotonicClock()))
    return logger


class _WithoutBytes(logging.Filter):
    """Rewrites records about what is no HTTP, and lets one of many through."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._told_at = float("-inf")
        self._untold = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is told."""
        kind = record.exc_info[0] if record.exc_info else None
        if kind is None or kind.__module__ != _ERRORS:
            return True
        self._untold += 1
        now = self._clock.now()
        if now - self._told_at < _EVERY_S:
            return False
        record.msg = "%d clients sent what is no HTTP, the last one: %s"
        record.args = (self._untold, kind.__name__)
        record.exc_info = record.exc_text = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        self._told_at, self._untold = now, 0
        return True
