"""Settings of fairbox's tools as other trainers give them: a mapping out of their YAML, checked as fairbox's own files
are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fairbox.config import check, load, setting
from fairbox.errors import ConfigError
from rollout.tools.code import CodeInterpreterConfig

T = TypeVar("T")


@dataclass(frozen=True)
class InterpreterSettings(CodeInterpreterConfig):
    """The code interpreter's settings, and where its services are."""

    executor: str = setting("127.0.0.1:50051", help="Address of the executor.")
    limiter: str = setting("127.0.0.1:50052", help="Address of the limiter.")


@dataclass(frozen=True)
class TrainerSettings:
    """Settings of every adapter to another trainer: a tool, and a reward."""

    tool: InterpreterSettings = setting(factory=InterpreterSettings, help="The code interpreter and its services.")
    reward: str = setting(
        "gsm8k", help="A registered reward, a YAML file of rewards, or module:function, which takes a Sample."
    )
    max_parallel_calls: int = setting(4, least=1, help="Tool calls of one turn that run at once.")

    def validate(self) -> None:
        """Raises ConfigError for what types can't say."""
        check(self)
        self.tool.validate()


def from_mapping(cls: type[T], mapping: Mapping[str, Any] | None, where: str) -> T:
    """An instance of the configuration class `cls`. `where` names the mapping in errors.

    Raises ConfigError for unknown keys and bad values.
    """
    words = [f"{path}={value}" for path, value in _leaves(mapping or {}, "")]
    try:
        return load(cls, prefix="", prog=where, description="", argv=words, env={})
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _leaves(mapping: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        elif value is None:
            yield f"{prefix}{key}", "none"
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)
