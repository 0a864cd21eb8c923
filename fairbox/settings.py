"""Settings as fields of dataclasses: name, type, default and meaning stand in one place.

`setting()` declares one with what it may be, which `check()` holds; `leaves()` lists those of a class for
flags, environment variables and help texts. A nested dataclass is a group (`limits.wall_time_s`); a mapping of
dataclasses is a group per key (`buckets.code.max_in_flight`).
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fairbox.errors import ConfigError

_HELP = "help"
_BOUNDS = "bounds"
_SHOWN = "shown"


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The values that a setting may have, beside its type. A number with bounds is finite."""

    least: float | None
    above: float | None
    most: float | None
    below: float | None
    choices: tuple[str, ...]
    finite: bool

    @property
    def bind(self) -> bool:
        """Says whether there are values that the type has but the setting may not have."""
        bounds = (self.least, self.above, self.most, self.below)
        return bool(self.choices) or self.finite or any(each is not None for each in bounds)

    def allow(self, value: Any) -> bool:
        """Says whether the setting may have the value."""
        if self.choices:
            return value in self.choices
        if not self.bind:
            return True
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        """Follows "must be"."""
        if self.choices:
            return f"one of: {', '.join(self.choices)}"
        least, above, most, below = map(_shown, (self.least, self.above, self.most, self.below))
        if least and (most or below):
            return f"from {least} to {most or f'below {below}'}"
        if self.above == 0 and not (most or below):
            return "positive"
        lower = f"at least {least}" if least else f"above {above}" if above else ""
        upper = f"at most {most}" if most else f"below {below}" if below else ""
        return " and ".join(filter(None, (lower, upper))) or "a finite number"


def _shown(bound: float | None) -> str:
    return "" if bound is None else str(int(bound) if float(bound).is_integer() else bound)


def setting(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    factory: Callable[[], Any] | None = None,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    choices: Iterable[str] = (),
    finite: bool = False,
    shown: str = "",
) -> Any:
    """A dataclass field that is a setting. `help` is one line: what it does, its unit, its edge values. `shown` is
    the rule that makes the default, if that differs from machine to machine: "4 for each processor".

    `check()` holds the rest: `least` and `most` are allowed values, `above` and `below` are not; `choices` are the
    texts that it may be. None, if the type has it, is always allowed.
    """
    bounds = _Bounds(least, above, most, below, tuple(map(str, choices)), finite)
    metadata = {_HELP: help, _BOUNDS: bounds, _SHOWN: shown}
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def check(settings: Any, path: str = "") -> None:
    """ConfigError for the first setting of a dataclass, or of one in it, that its declaration does not allow. `path` is
    where the settings stand."""
    for field in dataclasses.fields(settings):
        value, where = getattr(settings, field.name), f"{path}.{field.name}" if path else field.name
        bounds = field.metadata.get(_BOUNDS)
        if dataclasses.is_dataclass(value):
            check(value, where)
        elif isinstance(value, dict):
            for key, each in value.items():
                if dataclasses.is_dataclass(each):
                    check(each, f"{where}.{key}")
        elif value is not None and bounds is not None and not bounds.allow(value):
            none = ", or none" if _without_none(typing.get_type_hints(type(settings))[field.name])[1] else ""
            shown = repr(value) if isinstance(value, str) else value
            raise ConfigError(f"{where} is {shown}, must be {bounds}{none}")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting that takes a value."""

    path: str
    """Dotted path; `*` stands for the key of a mapping."""
    type: Any
    """Its annotation without `None`."""
    optional: bool
    """True if None is allowed."""
    default: Any
    help: str
    allowed: str = ""
    """Values that it may have, phrased to follow "must be"; empty: all of its type."""
    shown: str = ""
    """Rule that makes the default, if it differs from machine to machine."""

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
            bounds = field.metadata.get(_BOUNDS)
            yield Leaf(
                path,
                annotation,
                optional,
                _default(field),
                field.metadata.get(_HELP, ""),
                str(bounds) if bounds is not None and bounds.bind else "",
                field.metadata.get(_SHOWN, ""),
            )


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
