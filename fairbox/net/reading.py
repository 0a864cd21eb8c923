"""Reads what callers send over gRPC: bounded in parts before it is parsed, and off the event loop where it is large.

gRPC parses a request on the loop, and 500,000 entries of one take 60 ms. Here one of more than a few kilobytes is read
in a thread, where one that could have many parts is walked first, and then parsed in pieces. Invariants: a message of
too many parts is refused by the name of the field that holds them; the loop never works on more than `AT_ONCE` bytes at
a time. One entry of a list is not cut: what has all parts in it is parsed in one go.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Iterator
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio
from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from fairbox.apart import read_apart
from fairbox.errors import FieldError, FieldErrors
from fairbox.net.grpc_errors import abort_fields, let_go

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]

T = TypeVar("T")
M = TypeVar("M", bound=Message)
MOST_PARTS = 200_000
"""Fields of a request, those of messages in it included: 10,000 cases of 20 fields."""
_PIECE = 100_000
"""Parts that are parsed in one go, which takes 7 ms."""
_LEAST_PART = 2
"""Bytes of an empty message in another one; no part has fewer."""
_size = contextvars.ContextVar("size", default=0)
"""Bytes of the request that the task answers. The message would make a copy of itself to tell."""


def check_apart(work: Callable[[], T]) -> Awaitable[T]:
    """Runs `work` on the request that the task answers, in a thread if that is large, and returns its result."""
    return read_apart(_size.get(), work)


def parse_apart(kind: type[M], data: bytes, most_parts: int = MOST_PARTS) -> Awaitable[M]:
    """As `parse()`, in a thread if it is large."""
    return read_apart(len(data), partial(parse, kind, data, most_parts))


def bounded(method: str, handler: Handler) -> Handler:
    """A handler that parses requests in place of gRPC, and answers INVALID_ARGUMENT to what is no message, where gRPC
    writes a traceback as for a fault of the service. One that takes a stream of requests is given their bytes; one of a
    service that no proto describes is left as it is."""
    service, _, name = method.lstrip("/").partition("/")
    try:
        described = descriptor_pool.Default().FindServiceByName(service)
    except KeyError:
        return handler
    respond = "stream" if handler.response_streaming else "unary"
    if handler.request_streaming:
        make, behaviour = getattr(grpc, f"stream_{respond}_rpc_method_handler"), getattr(handler, f"stream_{respond}")
        return make(_letting_go(behaviour), None, _written)  # type: ignore[no-any-return]
    kind = GetMessageClass(described.methods_by_name[name].input_type)
    make, behaviour = getattr(grpc, f"unary_{respond}_rpc_method_handler"), getattr(handler, f"unary_{respond}")

    async def read(data: bytes | None, context: Any) -> Any:
        request = None
        _size.set(len(data or b""))
        try:
            try:
                request = await parse_apart(kind, data or b"")
            except FieldErrors as errors:
                await abort_fields(context, errors)
            return await behaviour(request, context)
        except grpc.aio.AbortError as error:
            data = request = None
            let_go(error)
            raise

    return make(read, None, _written)  # type: ignore[no-any-return]


def _letting_go(behaviour: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    """For a stream, whose handler has what it was sent in its own frame."""

    async def read(requests: Any, context: Any) -> Any:
        try:
            return await behaviour(requests, context)
        except grpc.aio.AbortError as error:
            let_go(error)
            raise

    return read


def _written(response: Message | bytes) -> bytes:
    """A large one may have been made as it is to be sent."""
    return response if isinstance(response, bytes) else response.SerializeToString()


def parse(kind: type[M], data: bytes, most_parts: int = MOST_PARTS) -> M:
    """The message. FieldErrors for bytes that are none, and for one of more than so many parts."""
    try:
        if len(data) <= _PIECE * _LEAST_PART:
            return kind.FromString(data)
        message = kind()
        for piece in _Walk(data, most_parts).pieces(kind.DESCRIPTOR):
            message.MergeFromString(piece)
        return message
    except (DecodeError, IndexError):
        raise FieldErrors([FieldError(kind.DESCRIPTOR.name, "is no message of this name")]) from None


@cache
def _messages(kind: Any) -> dict[int, Any]:
    """Fields of a message that hold messages."""
    return {field.number: field for field in kind.fields if field.message_type is not None}


def _name(kind: Any, tag: int) -> str:
    field = kind.fields_by_number.get(tag >> 3)
    return str(field.name) if field is not None else "an unknown field"


class _Walk:
    """Counts the parts of a message, and cuts it. IndexError and DecodeError where it is none."""

    def __init__(self, data: bytes, most_parts: int) -> None:
        self._data = data
        self._most = self._left = most_parts

    def pieces(self, kind: Any) -> list[bytes]:
        """Messages that are this one when they are merged: fields that follow each other are, and a field that holds
        one message may come several times. All are walked before the first is made."""
        return list(self._pieces(kind))

    def _pieces(self, kind: Any) -> Iterator[bytes]:
        begin = at = 0
        left, end = self._left, len(self._data)
        while at < end:
            start = at
            at, inner, inside = self._field(at, end, kind, "")
            if len(inside) > 2 and inner.default_value is None:  # a list where it is repeated
                yield self._data[begin:start]
                tag = self._data[start : self._varint(start)[1]]
                yield from (tag + varint(b - a) + self._data[a:b] for a, b in pairwise(inside))
                begin, left = at, self._left
            elif left - self._left >= _PIECE:
                yield self._data[begin:at]
                begin, left = at, self._left
        if at > end:
            raise DecodeError("it is cut off")
        yield self._data[begin:]

    def _message(self, at: int, end: int, kind: Any, top: str) -> list[int]:
        """Positions of its beginning, and of the end of each piece of it."""
        cuts, left = [at], self._left
        while at < end:
            at, _, _ = self._field(at, end, kind, top)
            if left - self._left >= _PIECE:
                cuts.append(at)
                left = self._left
        if at > end:
            raise DecodeError("it is cut off")
        return cuts if cuts[-1] == at else [*cuts, at]

    def _field(self, at: int, end: int, kind: Any, top: str) -> tuple[int, Any, list[int]]:
        """Its end; and if it holds a message, the field and its pieces. `top`: the field of the request it is in."""
        tag, at = self._varint(at)
        self._left -= 1
        if self._left < 0:
            problem = f"brings the request to more than {self._most} parts, which is the most"
            raise FieldErrors([FieldError(top or _name(kind, tag), problem)])
        match tag & 7:  # the wire type
            case 0:
                return self._varint(at)[1], None, []
            case 1:
                return at + 8, None, []
            case 2:
                size, at = self._varint(at)
                inner = _messages(kind).get(tag >> 3)
                if inner is None:
                    return at + size, None, []
                inside = self._message(at, min(at + size, end), inner.message_type, top or _name(kind, tag))
                return at + size, inner, inside
            case 5:
                return at + 4, None, []
        raise DecodeError("groups are not used")

    def _varint(self, at: int) -> tuple[int, int]:
        """The number at `at`, and where it ends."""
        value = shift = 0
        while shift < 70:
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
        raise DecodeError("a number is too long")


def varint(number: int) -> bytes:
    """A length or a tag, as it is written."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*written, number))
