"""Brings changes of the configuration files into a limiter that runs.

Only buckets can change live; any other change is logged as needing a restart. A file that is not acceptable is logged
and changes nothing. A bucket is changed when what the files say of it has changed, so that what an operator has set by
ConfigureBucket stays until somebody edits the file. A bucket that is no longer named is left as it is.

A ConfigMap is swapped by a symbolic link, which watches of files miss and times of files hide: it looks at contents.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

from fairbox.config import read_tree
from fairbox.errors import ConfigError
from limiter.config import BucketConfig, LimiterConfig
from limiter.core import BucketLimits

_LOG = logging.getLogger("limiter")
_EVERY_S = 2.0
"""Between two looks: soon enough for people, and nothing for the disk."""


class Reload:
    """`await Reload(...).run(configure)` looks until it is cancelled."""

    def __init__(
        self,
        config: LimiterConfig,
        read: Callable[[], LimiterConfig],
        files: Sequence[Path],
        *,
        every: float = _EVERY_S,
    ) -> None:
        """`config` is what the limiter was started with, `read` reads it again; ConfigError when it is not acceptable.
        `every` is the time between two looks, seconds."""
        self._config = config
        self._read = read
        self._files = files
        self._every = every
        self._applied: dict[str, BucketConfig] = dict(config.buckets)
        self._pending: dict[str, BucketConfig] = {}
        self._contents = [_content(path) for path in files]
        self._named = self._names()

    async def run(self, configure: Callable[[BucketLimits], bool]) -> NoReturn:
        """`configure` creates or changes a bucket; False when it can't now, and is to be asked again."""
        while True:
            await asyncio.sleep(self._every)
            try:
                await self.look(configure)
            except Exception:
                _LOG.exception("the configuration could not be looked at; the old settings stay")

    async def look(self, configure: Callable[[BucketLimits], bool]) -> None:
        """Looks once."""
        contents = await asyncio.to_thread(lambda: [_content(path) for path in self._files])
        if contents != self._contents:
            self._contents = contents
            try:
                config, named = await asyncio.to_thread(lambda: (self._read(), self._names()))
            except ConfigError as error:
                _LOG.error("the changed configuration is not acceptable, the old settings stay: %s", error)
                return
            self._compare(config, named)
        for name, bucket in list(self._pending.items()):
            if configure(bucket.limits(name)):
                self._applied[name] = self._pending.pop(name)
                _LOG.info("bucket %s was changed by the configuration file", name)

    def _compare(self, config: LimiterConfig, named: set[str]) -> None:
        """Takes in a configuration that is acceptable."""
        for name in sorted(self._named - named):
            _LOG.warning("bucket %s is no longer configured; it stays as it is until a restart", name)
        self._named = named
        self._pending = {
            name: bucket
            for name, bucket in config.buckets.items()
            if name in named and bucket != self._applied.get(name)
        }
        for field in fields(LimiterConfig):
            if field.name != "buckets" and getattr(config, field.name) != getattr(self._config, field.name):
                _LOG.warning("%s has changed in the configuration, which needs a restart", field.name)

    def _names(self) -> set[str]:
        """Buckets that the files name: without a name in a file, the default would stand in for one that was taken
        out."""
        names: set[str] = set()
        for path in self._files:
            buckets = read_tree(path).get("buckets")
            if isinstance(buckets, dict):
                names.update(str(name) for name in buckets)
        return names


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
