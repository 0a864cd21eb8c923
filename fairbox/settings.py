"""Settings as fields of dataclasses: name, type, default and meaning stand in one place.

`setting()` declares one; `leaves()` lists those of a class for flags, environment variables and help texts. A nested
dataclass is a group (`limits.wall_time_s`); a mapping of dataclasses is a group per key (`buckets.code.max_in_flight`).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Leaf", "leaves", "setting"]

_HELP = "help"


def setting(default: Any = dataclasses.MISSING, *, help: str, factory: Callable[[], Any] | None = None) -> Any:
    """A dataclass field that is a setting. `help` is one line: what it does, its unit, its edge values."""
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata={_HELP: help})
    return dataclasses.field(default=default, metadata={_HELP: help})


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting that takes a value."""

    path: str
    """Dotted path; `*` stands for the key of a mapping."""
    type: Any
    """Its annotation without `None`."""
    optional: bool
    """Whether None is allowed."""
    default: Any
    help: str

    @property
    def flag(self) -> str:
        return "--" + self.path.replace("_", "-")

    def variable(self, prefix: str) -> str:
        """Name of its environment variable: upper case, `__` between the parts of its path."""
        return f"{prefix}_{self.path.replace('.', '__')}".upper()

    def matches(self, path: str) -> bool:
        mine, theirs = self.path.split("."), path.split(".")
        return len(mine) == len(theirs) and all(a in ("*", b) for a, b in zip(mine, theirs, strict=True))


def leaves(cls: type[Any], prefix: str = "") -> Iterator[Leaf]:
    """Every setting of `cls`, groups resolved, in the order of declaration."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        annotation, optional = _without_none(hints[field.name])
        path = prefix + field.name
        value_type = _mapping_value(annotation)
        if dataclasses.is_dataclass(annotation):
            yield from leaves(typing.cast("type[Any]", annotation), path + ".")
        elif value_type is not None and dataclasses.is_dataclass(value_type):
            yield from leaves(typing.cast("type[Any]", value_type), path + ".*.")
        else:
            yield Leaf(path, annotation, optional, _default(field), field.metadata.get(_HELP, ""))


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return dataclasses.MISSING


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        rest = [arg for arg in typing.get_args(annotation) if arg is not type(None)]
        if len(rest) == 1 and len(rest) < len(typing.get_args(annotation)):
            return rest[0], True
    return annotation, False


def _mapping_value(annotation: Any) -> Any:
    return typing.get_args(annotation)[1] if typing.get_origin(annotation) is dict else None
