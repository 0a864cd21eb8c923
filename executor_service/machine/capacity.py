"""Fits the settings to this machine: as much memory for a program, as many programs and sessions, as there is room for.

What does not fit is lowered with a line in the log, and GetStatus shows what is left: a server with defaults starts on
every machine.
"""

from __future__ import annotations

import logging
import resource
from dataclasses import replace

from executor_service.config import ExecutorConfig

_LOG = logging.getLogger("executor_service")
_OWN_FILES = 192
"""Open files of a server that runs nothing: zygotes, ports, interpreters in reserve."""
_FILES_EACH = 6
"""Open files of a program or a session: socket and pidfd of its init, its own socket and streams; 5 were counted."""


def fitted(config: ExecutorConfig, room: int) -> ExecutorConfig:
    """The settings for a machine with `room` bytes of memory for all programs."""
    return _fitted_to_files(_fitted_to_memory(config, room))


def _fitted_to_memory(config: ExecutorConfig, room: int) -> ExecutorConfig:
    limits, most = config.limits, config.max_limits
    if most.memory_bytes <= room:
        return config
    _LOG.info("max_limits.memory_bytes is %d, but programs can have %d here: that is the most", most.memory_bytes, room)
    return replace(
        config,
        limits=replace(limits, memory_bytes=min(limits.memory_bytes, room)),
        max_limits=replace(most, memory_bytes=room),
    )


def _fitted_to_files(config: ExecutorConfig) -> ExecutorConfig:
    """Half of the open files are for connections; of the other half, sessions get at most half."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    held = max(1, (soft // 2 - _OWN_FILES) // _FILES_EACH)
    wanted = config.max_concurrent + config.max_sessions
    if soft == resource.RLIM_INFINITY or wanted <= held:
        return config
    sessions = min(config.max_sessions, held // 2)
    programs = min(config.max_concurrent, held - sessions)
    _LOG.warning(
        "max_concurrent is %d and not %d, max_sessions %d and not %d: no more fit into %d open files (`ulimit -n %d`)",
        *(programs, config.max_concurrent, sessions, config.max_sessions, soft),
        2 * (_OWN_FILES + _FILES_EACH * wanted),
    )
    return replace(config, max_concurrent=programs, max_sessions=sessions)
