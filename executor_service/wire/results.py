"""An ExecutionResult as the bytes of its message, in pieces that are joined once.

A message copies what is put into it, and itself when it is written, and nothing else runs meanwhile: a result of 32 MiB
took 100 ms of the event loop. Fields of one message that are written one after the other are one message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from google.protobuf.descriptor import Descriptor

from executor_service.model import Display, ExecutionResult, OutputFile
from executor_service.v1 import executor_pb2 as pb
from executor_service.wire.programs import to_message
from fairbox.net.reading import varint

_FORM = pb.Display.DESCRIPTOR.nested_types_by_name["DataEntry"]
"""Entry of its map."""


def result_pieces(result: ExecutionResult) -> Iterator[bytes]:
    """The message `ExecutionResult`, as it is written."""
    stdout, stderr = replace(result.stdout, data=b""), replace(result.stderr, data=b"")
    facts = to_message(pb.ExecutionResult, replace(result, stdout=stdout, stderr=stderr, files=(), displays=()))
    yield facts.SerializeToString()
    for name, output in (("stdout", result.stdout), ("stderr", result.stderr)):
        yield from field_pieces(facts.DESCRIPTOR, name, field_pieces(pb.Output.DESCRIPTOR, "data", [output.data]))
    for file in result.files:
        yield from field_pieces(facts.DESCRIPTOR, "files", _file(file))
    for display in result.displays:
        yield from field_pieces(facts.DESCRIPTOR, "displays", _display(display))


def _file(file: OutputFile) -> Iterator[bytes]:
    yield to_message(pb.OutputFile, replace(file, content=b"")).SerializeToString()
    yield from field_pieces(pb.OutputFile.DESCRIPTOR, "content", [file.content])


def _display(display: Display) -> Iterator[bytes]:
    yield to_message(pb.Display, replace(display, data={})).SerializeToString()
    for name, data in display.data.items():
        entry = (*field_pieces(_FORM, "key", [name.encode()]), *field_pieces(_FORM, "value", [data]))
        yield from field_pieces(pb.Display.DESCRIPTOR, "data", entry)


def field_pieces(kind: Descriptor, name: str, value: Iterable[bytes]) -> Iterator[bytes]:
    """A field whose value has a length, as it is written."""
    pieces = tuple(value)
    yield varint(kind.fields_by_name[name].number << 3 | 2) + varint(sum(map(len, pieces)))
    yield from pieces
