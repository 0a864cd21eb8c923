"""The work folder of a session, as what serves its cells uses it; it can write nothing that their code could not."""

from __future__ import annotations

import os

from executor_service.guest.walls.files import read_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from executor_service.guest.protocol.spec import FileAnswer, FileEntry

WORKSPACE = "FAIRBOX_WORKSPACE"
"""Variable that names the folder of the workspace."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STATM_BYTES = 256
"""Seven numbers."""


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


def get_files(work: str, paths: list[str], most: int) -> tuple[list[FileAnswer], bytes]:
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


def resident_bytes(process: int | str = "self") -> int:
    """Resident memory of a process; 0 where that is not known."""
    try:
        handle = os.open(f"/proc/{process}/statm", os.O_RDONLY | os.O_CLOEXEC)  # `open` takes three times as long
        try:
            return int(os.read(handle, _STATM_BYTES).split()[1]) * _PAGE
        finally:
            os.close(handle)
    except (OSError, IndexError):  # a level without /proc, or a process that has ended
        return 0
