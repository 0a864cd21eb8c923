"""Environments by their names.

    @environment("capitals", CapitalsConfig)
    class Capitals(Environment):
        def __init__(self, config: CapitalsConfig, setup: EnvironmentSetup) -> None: ...

What is registered is called with its settings and the run's, reads its data and opens nothing. It raises ConfigError
and DataError. A name is taken once. `env` of a run says what its `env_config.*` may be.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from fairbox.config import load, peek, setting
from fairbox.errors import ConfigError
from rollout.envs.base import Environment, EnvironmentSetup

M = TypeVar("M", bound=Callable[..., Any])
T = TypeVar("T")

_FIELD = "env_config"
_BUILT_IN = {
    "code": "rollout.envs.code",
    "code_search": "rollout.envs.code_search",
    "gsm8k": "rollout.envs.gsm8k",
    "harbor": "rollout.envs.harbor",
    "swe": "rollout.envs.swe",
}
"""Name -> module of fairbox's own that registers it; imported when it is asked for."""


@dataclass(frozen=True, slots=True)
class EnvironmentKind:
    """An environment that is registered."""

    name: str
    make: Callable[[Any, EnvironmentSetup], Environment]
    config_type: type[Any]
    """A dataclass of `fairbox.config.setting` fields: `env_config.*` of a run. A method `validate()` may raise
    ConfigError for what types can't say."""


_KINDS: dict[str, EnvironmentKind] = {}


def environment(name: str, config_type: type[Any]) -> Callable[[M], M]:
    """Registers a class, or a function that makes an environment, under this name. ValueError for a name that is taken
    and for settings that are no dataclass."""

    def register(make: M) -> M:
        if name in _KINDS and _KINDS[name].make is not make:
            raise ValueError(f"environment {name!r} is registered already, as {_KINDS[name].make.__module__}")
        if not dataclasses.is_dataclass(config_type):
            raise ValueError(f"environment {name!r}: {config_type.__name__} is no dataclass")
        _KINDS[name] = EnvironmentKind(name, make, config_type)
        return make

    return register


def find_environment(name: str) -> EnvironmentKind:
    """The environment of this name, or the one that `module:name` registers, `name` being that of the class or function
    there. ConfigError for one that is not there."""
    module, colon, attribute = name.partition(":")
    if colon:
        return _imported(name, module, attribute)
    if name in _BUILT_IN:
        importlib.import_module(_BUILT_IN[name])
    if name not in _KINDS:
        raise ConfigError(f"env is {name!r}, must be one of: {', '.join(environment_names())}; or module:class")
    return _KINDS[name]


def environment_names() -> list[str]:
    """All names, sorted."""
    return sorted({*_KINDS, *_BUILT_IN})


def _imported(name: str, module: str, attribute: str) -> EnvironmentKind:
    try:
        made = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"env is {name!r}: {error}") from None
    found = next((kind for kind in _KINDS.values() if kind.make is made), None)
    if found is None:
        raise ConfigError(f"env is {name!r}, which is not registered: {attribute} needs @environment(name, settings)")
    return found


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
    names, and an instance of that one's settings. Both are loaded at once, from the same files, variables and flags, so
    that `--help`, unknown names and bad values are the same for both. Raises ConfigError."""
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
