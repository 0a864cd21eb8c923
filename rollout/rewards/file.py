"""Compositions of reward functions out of a file, checked whole when it is loaded.

    reward:
      - fn: gsm8k                       # a registered name, or module:function
        weight: 1.0                     # may be left out
        args: {method: flexible}        # its keyword-only arguments
      - fn: my_rewards:brevity
        name: short                     # of its parts; its fn's otherwise

The list may stand alone; beside it `name` and `description` may stand. Invariant: a file that loads has no unknown key,
function or argument and no value of a wrong type; an error names the key by its path, `reward[1].args.beta`.
"""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairbox.config import read_document
from fairbox.errors import ConfigError
from rollout.rewards.arguments import checked_arguments
from rollout.rewards.compose import Composition, RewardEntry
from rollout.rewards.registry import check_form, find_reward, takes_services

_FILES = (".yaml", ".yml", ".toml", ".json")
_KEYS = ("reward", "name", "description")
_ENTRY_KEYS = ("fn", "weight", "args", "name")


def load_reward(given: str) -> Composition:
    """Loads what a setting names: a file, a registered function or `module:function`. Raises ConfigError."""
    if given.endswith(_FILES):
        return read_rewards(Path(given))
    try:
        return parse_rewards([{"fn": given}])
    except ConfigError as error:
        raise ConfigError(str(error).replace("reward[0].fn", "reward", 1)) from None


def read_rewards(path: Path) -> Composition:
    """The composition of a file. Raises ConfigError, whose text starts with the path."""
    return parse_rewards(read_document(path), where=f"{path}: ")


def parse_rewards(tree: Any, *, where: str = "") -> Composition:
    """A composition out of what a file says: a mapping with `reward`, or that list alone. Raises ConfigError, whose
    text starts with `where`."""
    if isinstance(tree, list):
        tree = {"reward": tree}
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{where}must be a list of functions, or a mapping with the key reward")
    _check_keys(tree, _KEYS, where, "")
    for key in ("name", "description"):
        if not isinstance(tree.get(key, ""), str):
            raise ConfigError(f"{where}{key} is {tree[key]!r}, must be a text")
    entries = tree.get("reward")
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{where}reward must be a list of functions, each with fn")
    parsed: dict[str, RewardEntry] = {}
    for number, each in enumerate(entries):
        entry = _entry(each, where, f"reward[{number}]")
        if entry.name in parsed:
            raise ConfigError(f"{where}reward[{number}] has the name {entry.name!r}, as one before; give it a name")
        parsed[entry.name] = entry
    return Composition(tuple(parsed.values()), tree.get("name", ""), tree.get("description", ""))


def _entry(tree: Any, where: str, path: str) -> RewardEntry:
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{where}{path} is {tree!r}, must be a mapping with fn")
    _check_keys(tree, _ENTRY_KEYS, where, f"{path}.")
    given = tree.get("fn")
    if not isinstance(given, str) or not given:
        raise ConfigError(f"{where}{path}.fn is {given!r}, must be the name of a function")
    try:
        function = _function(given)
    except ConfigError as error:
        raise ConfigError(f"{where}{path}.fn is {given!r}: {error}") from None
    weight, arguments = tree.get("weight", 1.0), tree.get("args")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise ConfigError(f"{where}{path}.weight is {weight!r}, must be a finite number")
    if not isinstance(arguments, Mapping | None):
        raise ConfigError(f"{where}{path}.args is {arguments!r}, must be a mapping")
    name = tree.get("name", given.rpartition(":")[2])
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}{path}.name is {name!r}, must be a text")
    taken = checked_arguments(function, arguments or {}, name=given, path=f"{where}{path}.args")
    return RewardEntry(name, function, float(weight), taken, takes_services(function))


def _function(given: str) -> Callable[..., Any]:
    module, colon, attribute = given.partition(":")
    if not colon:
        return find_reward(given)
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(str(error)) from None
    if not callable(function):
        raise ConfigError(f"{attribute} of {module} is no function")
    try:
        check_form(given, function)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    checked: Callable[..., Any] = function
    return checked


def _check_keys(tree: Mapping[str, Any], known: tuple[str, ...], where: str, path: str) -> None:
    for key in tree:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"has: {', '.join(known)}"
            raise ConfigError(f"{where}{path}{key} is not a key; {hint}")
