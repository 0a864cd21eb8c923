"""Reads what callers send: bounded in parts before it is parsed, and off the event loop where it is large.

gRPC parses a request on the loop, and 500,000 entries of one take 60 ms. Here a request of more than a few kilobytes is
walked in a thread before anything is made of it. Invariants: a message of more than `MOST_PARTS` parts is refused by
the name of the field that holds them; the loop never works on more than `AT_ONCE` bytes at a time.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from executor_service.v1 import executor_pb2 as pb
from fairbox.apart import AT_ONCE, read_apart
from fairbox.errors import FieldError, FieldErrors
from fairbox.grpc_errors import abort_fields, let_go

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]

T = TypeVar("T")
MOST_PARTS = 200_000
"""Fields of a request, those of messages in it included: 10,000 cases of 20 fields. Parsing them takes 10 ms."""
_size = contextvars.ContextVar("size", default=0)
"""Bytes of the request that the task answers. The message would make a copy of itself to tell."""
_SERVICE = pb.DESCRIPTOR.services_by_name["ExecutorService"]


async def check_apart(work: Callable[[], T]) -> T:
    """What `work` makes of the request that is answered, in a thread if that is large."""
    return await read_apart(_size.get(), work)


def bounded(method: str, handler: Handler) -> Handler:
    """A handler of the executor's service that is given bytes, and parses the request in place of gRPC."""
    kind = GetMessageClass(_SERVICE.methods_by_name[method.rpartition("/")[2]].input_type)
    behaviour: Any = handler.unary_stream if handler.response_streaming else handler.unary_unary

    async def read(data: bytes | None, context: Any) -> Any:
        request = None
        _size.set(len(data or b""))
        try:
            try:
                request = await read_apart(len(data or b""), partial(parse, kind, data or b""))
            except FieldErrors as errors:
                await abort_fields(context, errors)
            return await behaviour(request, context)
        except grpc.aio.AbortError as error:
            data = request = None
            let_go(error)
            raise

    make = grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
    return make(read, None, _written)


def _written(response: Message | bytes) -> bytes:
    """`replies` makes large ones as they are to be sent."""
    return response if isinstance(response, bytes) else response.SerializeToString()


def parse(kind: type[Message], data: bytes) -> Message:
    """The message. FieldErrors for bytes that are none, and for one of more than MOST_PARTS parts."""
    try:
        if len(data) > AT_ONCE:
            _Walk(data).message(0, len(data), kind.DESCRIPTOR)
        return kind.FromString(data)
    except (DecodeError, IndexError):
        raise FieldErrors([FieldError(kind.DESCRIPTOR.name, "is no message of this name")]) from None


@cache
def _messages(kind: Any) -> dict[int, Any]:
    """Fields of a message that hold messages."""
    return {field.number: field.message_type for field in kind.fields if field.message_type is not None}


def _name(kind: Any, tag: int) -> str:
    field = kind.fields_by_number.get(tag >> 3)
    return str(field.name) if field is not None else "an unknown field"


class _Walk:
    """Counts the parts of a message. IndexError and DecodeError where it is none."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = MOST_PARTS

    def message(self, at: int, end: int, kind: Any, top: str = "") -> None:
        """One message and those in it. `top`: the field of the request that it is in."""
        messages = _messages(kind)
        while at < end:
            tag, at = self._varint(at)
            self._left -= 1
            if self._left < 0:
                problem = f"brings the request to more than {MOST_PARTS} parts, which is the most"
                raise FieldErrors([FieldError(top or _name(kind, tag), problem)])
            match tag & 7:  # the wire type
                case 0:
                    _, at = self._varint(at)
                case 1:
                    at += 8
                case 2:
                    size, at = self._varint(at)
                    if inner := messages.get(tag >> 3):
                        self.message(at, min(at + size, end), inner, top or _name(kind, tag))
                    at += size
                case 5:
                    at += 4
                case _:
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
