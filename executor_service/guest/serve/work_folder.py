"""The work folder of a session, as what serves its cells uses it; it can write nothing that their code could not."""

from __future__ import annotations

import json
import os

from executor_service.guest.protocol import wire
from executor_service.guest.walls.files import read_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from executor_service.guest.protocol.spec import FileAnswer, FileEntry
    from executor_service.guest.protocol.wire import GuestChannel, Head

WORKSPACE = "FAIRBOX_WORKSPACE"
"""Variable that names the folder of the workspace."""


def split_cell(head: Head, blob: bytes) -> tuple[memoryview, memoryview, memoryview]:
    """The parts of a `cell` frame: code, standard input, and the files one after the other."""
    view, code_end = memoryview(blob), head["code_size"]
    stdin_end = code_end + head["stdin_size"]
    return view[:code_end], view[code_end:stdin_end], view[stdin_end:]


def send_done(
    channel: GuestChannel, work: str, head: Head, facts: Head, sizes: Head | None = None, parts: Sequence[bytes] = ()
) -> None:
    """Answers the `cell` frame `head` with `facts`, with `parts`, whose sizes the table says, and then with the files
    that are to be returned."""
    room = wire.MAX_ANSWER - wire.MAX_TABLE - sum(map(len, parts))
    files, contents = _get_files(work, head["return_paths"], min(head["return_bytes"], room))
    table = json.dumps({**(sizes or {}), "files": files}).encode() if parts or files else b""
    done = {"type": "done", "cell": head["cell"], "table": len(table), **facts}
    channel.send(done, b"".join([table, *parts, contents]))


def put_files(work: str, entries: list[FileEntry], blob: memoryview) -> None:
    """Writes files over what is there. `blob`: their contents, one after the other. OSError."""
    offset = 0
    for entry in entries:
        path = os.path.join(work, entry["path"])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(blob[offset : offset + entry["size"]])
        os.chmod(path, entry["mode"])
        offset += entry["size"]


def _get_files(work: str, paths: list[str], most: int) -> tuple[list[FileAnswer], bytes]:
    """Reads files, of at most `most` bytes in all: an answer for each, and the contents of those that are returned."""
    if not paths:
        return [], b""
    try:
        folder = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # the code has removed it
        return [("missing", 0)] * len(paths), b""
    try:
        answers, contents = read_files(folder, paths, most)
        return answers, b"".join(contents)
    finally:
        os.close(folder)
