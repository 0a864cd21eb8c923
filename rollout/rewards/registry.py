"""Reward functions by their names.

    @reward("exact_match")
    def exact_match(sample: Sample, *, ignore_case: bool = False) -> float | Reward: ...

    @reward("passes_tests")
    async def passes_tests(sample: Sample, services: RewardServices, *, continuous: bool = False) -> Reward: ...

The first parameter is the sample, a second positional one, which is called `services`, the services; the arguments that
a configuration may give are keyword-only, typed, and have defaults; those that several functions share may be the keys
of a TypedDict, `**how: Unpack[How]`. A name is taken once.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from fairbox.errors import ConfigError
from rollout.rewards.arguments import arguments_of

F = TypeVar("F", bound=Callable[..., Any])

_BUILT_IN = (
    "rollout.rewards.code",
    "rollout.rewards.gsm8k",
    "rollout.rewards.localization",
    "rollout.rewards.turns",
)
"""Modules of fairbox's own that register functions; imported at the first look-up."""
_FUNCTIONS: dict[str, Callable[..., Any]] = {}


def reward(name: str) -> Callable[[F], F]:
    """Registers the function under this name. ValueError for a name that is taken or a function of another form."""

    def register(function: F) -> F:
        if _FUNCTIONS.get(name, function) is not function:
            raise ValueError(f"reward {name!r} is registered already, as {_FUNCTIONS[name].__module__}")
        check_form(name, function)
        _FUNCTIONS[name] = function
        return function

    return register


def find_reward(name: str) -> Callable[..., Any]:
    """The function of this name. ConfigError for one that is not registered."""
    _import_built_in()
    try:
        return _FUNCTIONS[name]
    except KeyError:
        known = ", ".join(reward_names())
        raise ConfigError(f"reward {name!r} is not registered, must be one of: {known}") from None


def reward_names() -> list[str]:
    """All names, sorted."""
    _import_built_in()
    return sorted(_FUNCTIONS)


def takes_services(function: Callable[..., Any]) -> bool:
    """Says whether it wants the services beside the sample."""
    return len(_positional(function)) == 2


def check_form(name: str, function: Callable[..., Any]) -> None:
    """Raises ValueError for a function of another form."""
    positional = _positional(function)
    others = [p for p in inspect.signature(function).parameters.values() if p not in positional]
    if not 1 <= len(positional) <= 2 or any(p.default is not p.empty for p in positional):
        raise ValueError(f"reward {name!r} must take the sample, and the services if it needs them, by position")
    if len(positional) == 2 and positional[1].name != "services":
        # One that takes (text, truth) would compare a sample with the services, and be wrong without a word.
        raise ValueError(f"reward {name!r}: the second parameter is {positional[1].name}, must be services")
    for parameter in others:
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise ValueError(f"reward {name!r}: {parameter} would swallow misspelt arguments")
        if parameter.kind is parameter.VAR_KEYWORD:
            _check_unpacked(name, function)


def _check_unpacked(name: str, function: Callable[..., Any]) -> None:
    try:
        arguments_of(function)
    except ValueError as error:
        raise ValueError(f"reward {name!r}: {error}") from None


def _positional(function: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


@functools.cache
def _import_built_in() -> None:
    for module in _BUILT_IN:
        importlib.import_module(module)
