"""Between the facts of `model` and the messages of executor_service.v1, in both directions, for server and client.

A dataclass and its message have fields of the same names, and each enum the same members, so descriptor and annotations
say how each is converted. Invariants: a field that the message lacks is a KeyError at the first use, whatever its
value; what is not in a message is None if the dataclass allows it, and empty otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import is_dataclass
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.message import Message

from executor_service.model import IsolationLevel
from executor_service.v1 import executor_pb2 as pb

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

M = TypeVar("M", bound=Message)
D = TypeVar("D", bound="DataclassInstance")
Convert = Callable[[Any], Any]
Put = Callable[[Any, Any], None]


def to_message(kind: type[M], value: DataclassInstance, **given: Any) -> M:
    """The message of a dataclass. `given`: fields of the message that are not the dataclass' own."""
    message = kind(**given)
    put_into(message, value, given)
    return message


def put_into(message: Message, value: DataclassInstance, given: Collection[str] = ()) -> None:
    """Puts a dataclass into an empty message, except for the fields that are `given`. Defaults are left out and inner
    messages are filled in place, which takes less time than passing all fields to the message's constructor."""
    values_of, puts = _outward(message.DESCRIPTOR, type(value))
    for part, (name, put, optional) in zip(values_of(value), puts, strict=True):
        if (part or (optional and part is not None)) and name not in given:
            if put is None:
                setattr(message, name, part)
            else:
                put(message, part)


def from_message(kind: type[D], message: Message, **given: Any) -> D:
    """The dataclass of a message. `given`: fields that are not as in the message. ValueError for a number of an enum
    that this version does not know."""
    names, converts = _inward(kind, message.DESCRIPTOR)
    parts = {name: getattr(message, name) for name in names} | given
    for name, optional, convert in converts:
        if name not in given:
            parts[name] = None if optional and not message.HasField(name) else convert(getattr(message, name))
    return kind(**parts)


@cache
def _outward(target: Any, source: Any) -> tuple[Callable[[Any], Any], list[tuple[str, Put | None, bool]]]:
    """A getter of all values of the dataclass; and for each value its name, how it is put into the message (None: as it
    is), and whether the field distinguishes a default from nothing."""
    hints = get_type_hints(source)
    return attrgetter(*hints), [
        (name, _put(target.fields_by_name[name], hint), target.fields_by_name[name].has_presence)
        for name, hint in hints.items()
    ]


def _put(field: Any, hint: Any) -> Put | None:
    name = field.name
    several = get_origin(hint) is tuple

    def put_enum(message: Any, member: Any) -> None:
        setattr(message, name, numbers[member])

    def put_message(message: Any, part: Any) -> None:
        inner = getattr(message, name)
        inner.SetInParent()
        put_into(inner, part)

    def put_messages(message: Any, parts: Any) -> None:
        for part in parts:
            put_into(getattr(message, name).add(), part)

    if field.enum_type is not None:
        numbers = _numbers(field.enum_type, hint)
        return put_enum
    if _holds_messages(field):
        return put_messages if several else put_message
    if several:
        return lambda message, parts: getattr(message, name).extend(parts)
    if field.message_type is not None:
        return lambda message, entries: getattr(message, name).update(entries)
    return None


@cache
def _inward(kind: Any, source: Any) -> tuple[list[str], list[tuple[str, bool, Convert]]]:
    """Names of what is taken as it is; names of the rest, whether it may be None, and how it is converted."""
    hints = get_type_hints(kind)
    converts = {name: _from(source.fields_by_name[name], hint) for name, hint in hints.items()}
    return [name for name, convert in converts.items() if convert is None], [
        (name, type(None) in get_args(hints[name]), convert) for name, convert in converts.items() if convert
    ]


def _from(field: Any, hint: Any) -> Convert | None:
    if field.enum_type is not None:
        known = {number: member for member, number in _numbers(field.enum_type, hint).items()}
        return lambda number: _member(known, number, hint)
    if not _holds_messages(field):
        return None if field.message_type is None else dict
    nested: Any = next(each for each in (hint, *get_args(hint)) if is_dataclass(each))
    if get_origin(hint) is tuple:
        return lambda parts: tuple([from_message(nested, part) for part in parts])
    return lambda part: from_message(nested, part)


def _holds_messages(field: Any) -> bool:
    return field.message_type is not None and not field.message_type.GetOptions().map_entry


def _numbers(enum: Any, members: Any) -> dict[Any, int]:
    """Numbers of an enum's members, whose names lack the prefix that the values of the message's enum have."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {member: enum.values_by_name[prefix + member.name].number for member in members}


def _member(known: dict[int, StrEnum], number: int, kind: type[StrEnum]) -> StrEnum:
    member = known.get(number)
    if member is None:
        raise ValueError(f"the executor answered with {kind.__name__} {number}, which this client does not know")
    return member


def level_to_proto(level: IsolationLevel) -> pb.IsolationLevel.ValueType:
    return pb.IsolationLevel.Value(f"ISOLATION_LEVEL_{level.name}")
