"""Settings of a run together with those of the environment that it names: `env` says what `env_config.*` may be.

Both are loaded at once, from the same files, variables and flags, so that `--help`, unknown names and bad values are
the same for both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from fairbox.config import load, peek, setting
from rollout.envs.registry import EnvironmentKind, find_environment

T = TypeVar("T")

_FIELD = "env_config"


def load_run(
    cls: type[T],
    *,
    prefix: str,
    prog: str,
    description: str,
    argv: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[T, EnvironmentKind, Any]:
    """As `fairbox.config.load` of a dataclass `cls` with a setting `env`: its instance, the environment that `env`
    names, and an instance of that one's settings. Raises ConfigError."""
    default = {field.name: field.default for field in dataclasses.fields(cast("Any", cls))}["env"]
    named = peek("env", prefix=prefix, argv=argv, env=env)
    kind = find_environment(str(default if named is None else named))
    field = setting(factory=kind.config_type, help=f"Settings of the environment {kind.name}.")
    joined = dataclasses.make_dataclass(
        cls.__name__, [(_FIELD, kind.config_type, field)], bases=(cls,), frozen=True, kw_only=True
    )
    loaded: Any = load(joined, prefix=prefix, prog=prog, description=description, argv=argv, env=env)
    settings = getattr(loaded, _FIELD)
    if hasattr(settings, "validate"):
        settings.validate()
    names = [each.name for each in dataclasses.fields(cast("Any", cls))]
    return cls(**{name: getattr(loaded, name) for name in names}), kind, settings
