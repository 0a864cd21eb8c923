"""Process that writes one layer: confined to the layer's folder before it looks at the archive.

Invariants: what is in the folder when the answer has no error is whole, checked against both digests and on disk;
whatever ends this process earlier leaves something that nobody takes for a layer; it lives no longer than its parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import stat
import sys

from executor_service.images.layers.blob import BlobStream, LayerError
from executor_service.images.layers.layer import LayerWriter
from executor_service.images.layers.process import MEMORY_BYTES, confine, die_with, limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    class UnpackTask(TypedDict):
        """One layer to write."""

        blob: str
        """Path of the file that has it."""
        offset: int
        size: int
        compression: str
        digest: str
        """Digest of the blob; empty: unknown."""
        diff_id: str
        folder: str
        """Empty folder to write to."""
        below: list[str]
        """Folders of the layers below, the highest first."""
        most_bytes: int
        most_entries: int
        cpu_s: int
        owner: int
        """Uid that everything is to belong to."""

    class UnpackAnswer(TypedDict, total=False):
        """Facts about the layer, or an error."""

        bytes: int
        """In whole blocks."""
        entries: int
        left_out: dict[str, int]
        error: str
        """One sentence without its subject, the layer."""
        ours: bool
        """True if the layer is not to blame."""


_SLACK = 2
"""An archive has padding and headers beside its files: of small files, up to as much again."""


def main(parent: int) -> None:
    libc = ctypes.CDLL(None)
    die_with(parent)
    task: UnpackTask = json.load(sys.stdin)
    answer: UnpackAnswer
    try:
        folder = os.open(task["folder"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        answer = _unpack(task, folder)
        if libc.syncfs(folder):
            raise OSError("syncfs failed")
    except LayerError as error:
        answer = {"error": str(error), "ours": False}
    except MemoryError:
        answer = {"error": f"has headers that take more than {MEMORY_BYTES} bytes", "ours": False}
    except OSError as error:
        answer = {"error": f"can't be written: {error}", "ours": True}
    json.dump(answer, sys.stdout)


def _unpack(task: UnpackTask, folder: int) -> UnpackAnswer:
    handle = os.open(task["blob"], os.O_RDONLY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise LayerError("is no file")
    os.lseek(handle, task["offset"], os.SEEK_SET)
    limit(cpu_s=task["cpu_s"], file_bytes=task["most_bytes"])
    most = _SLACK * task["most_bytes"] + 1024 * task["most_entries"]
    stream = BlobStream(handle, task["size"], task["compression"], most)
    stream.begin()  # while programs can be seen
    root = os.geteuid() == 0
    below = [os.open(each, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for each in task["below"]]
    confine(folder)
    writer = LayerWriter(
        below, most_bytes=task["most_bytes"], most_entries=task["most_entries"], owner=task["owner"] if root else -1
    )
    writer.write(stream)
    stream.drain()
    for name, wanted, found in (
        ("digest", task["digest"], stream.digest),
        ("diff_id", task["diff_id"], stream.diff_id),
    ):
        if wanted and wanted != found:
            raise LayerError(f"is damaged: its {name} is {found}, must be {wanted}")
    size, entries = writer.written
    return {"bytes": size, "entries": entries, "left_out": writer.left_out}
