"""Files into the work folder before a program starts, and out of it when everything is dead.

Invariants: no link is followed, neither at the end of a path nor on the way; only regular files are read; never more
bytes than the budget are held.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import stat

from executor_service.guest.protocol import wire
from executor_service.guest.walls.copies import open_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from executor_service.guest.protocol.spec import FileAnswer, FileEntry

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe must not wait for its other end.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def write_files(work: int, entries: list[FileEntry], blob: memoryview) -> None:
    """Writes the files below the folder `work` (a descriptor); folders are made as needed."""
    offset = 0
    for entry in entries:
        *folders, name = entry["path"].split("/")
        parent = os.dup(work)
        for folder in folders:
            try:
                os.mkdir(folder, 0o755, dir_fd=parent)
            except FileExistsError:
                pass
            child = os.open(folder, _FOLDER, dir_fd=parent)
            os.close(parent)
            parent = child
        handle = os.open(name, _NEW, 0o600, dir_fd=parent)
        os.close(parent)
        data = blob[offset : offset + entry["size"]]
        offset += entry["size"]
        while data:
            data = data[os.write(handle, data) :]
        os.fchmod(handle, entry["mode"])
        os.close(handle)


def read_files(work: int, paths: list[str], budget: int) -> tuple[list[FileAnswer], list[bytes]]:
    """For each path an answer and its content, empty unless returned; `budget` bytes together at most."""
    answers: list[FileAnswer] = []
    contents: list[bytes] = []
    for path in paths:
        answer, data = _read(work, path, budget)
        answers.append(answer)
        contents.append(data)
        budget -= len(data)
    return answers, contents


def _read(work: int, path: str, room: int) -> tuple[FileAnswer, bytes]:
    try:
        handle = _open(work, path)
    except OSError as error:
        # ELOOP: a link; ENOTDIR: a link or a file on the way; ENXIO: a socket.
        if error.errno in (errno.ELOOP, errno.ENXIO):
            return ("not_regular", 0), b""
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
        return ("missing" if missing else "unreadable", 0), b""
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            return ("not_regular", 0), b""
        if facts.st_size > room:
            return ("too_large", facts.st_size), b""
        data = bytearray()
        while len(data) < facts.st_size:
            chunk = os.read(handle, facts.st_size - len(data))
            if not chunk:
                break
            data += chunk
        return ("returned", len(data)), bytes(data)
    except OSError:
        return ("unreadable", 0), b""
    finally:
        os.close(handle)


def _open(work: int, path: str) -> int:
    folder, _, name = path.rpartition("/")
    parent = open_below(work, folder)
    try:
        return os.open(name, _READ, dir_fd=parent)
    finally:
        os.close(parent)


def reader_of(work: str) -> socket.socket:
    """The end of a socket whose other end answers with files of the work folder. A child has them in its memory."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        try:
            ours.close()
            _return_files(theirs, work)
        finally:
            os._exit(0)
    theirs.close()
    return ours


def _return_files(channel: socket.socket, work: str) -> None:
    """Answers the one question that comes: for files of the work folder, or for a descriptor of a folder in it."""
    try:
        head, _ = wire.receive(channel)
    except EOFError:
        return  # nobody wants them any more
    folder = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if head["type"] == "folder":
        socket.send_fds(channel, [b"f"], [open_below(folder, head["path"])])
        channel.recv(1)  # until it has been copied: the box is cleared then
        return
    files, contents = read_files(folder, head["paths"], head["budget"])
    wire.send(channel, {"type": "files"}, json.dumps(files).encode())
    for content in filter(None, contents):  # each in a frame of its own, of which the server makes no copy
        wire.send(channel, {"type": "file"}, content)
