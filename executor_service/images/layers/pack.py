"""Process that reads the writable layer of a session, and writes it as the tar archive of a layer of an image.

It is confined to the layer before it looks at it, because programs may still write there. Marks of overlayfs become
those of archives: a device 0/0 is `.wh.NAME`, a folder that hides what is below it has `.wh..wh..opq`.

Invariants: nothing outside of the layer is read, whatever changes meanwhile; bytes and entries are counted before they
are written; a file that shrinks while it is read is filled with zeros, and one that grows is cut. Sockets are left out:
nobody listens on them any more.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import stat
import sys
import tarfile

from executor_service.images.layers.blob import LayerError
from executor_service.images.layers.process import MEMORY_BYTES, confine, die_with, limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO, TypedDict

    class PackTask(TypedDict):
        """One layer to read."""

        folder: int
        """Descriptor of the layer's folder."""
        archive: str
        """Path of the file to write, which is not there."""
        most_bytes: int
        most_entries: int
        cpu_s: int

    class PackAnswer(TypedDict, total=False):
        """Facts about the archive, or an error."""

        size: int
        diff_id: str
        error: str
        """One sentence without its subject, the layer."""
        ours: bool
        """True if the layer is not to blame."""


_CHUNK = 1 << 20
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
_OURS = "user.overlay."
_ATTRIBUTE = "SCHILY.xattr."
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Without a wait for what a name has become meanwhile."""
_OVERHEAD = 4096
"""Bytes of headers and padding of an entry, at most in most cases: a bound beside that of the files."""


def main(parent: int) -> None:
    ctypes.CDLL(None)  # from the host, not from the layer
    die_with(parent)
    task: PackTask = json.load(sys.stdin)
    answer: PackAnswer
    try:
        answer = _pack(task)
    except LayerError as error:
        answer = {"error": str(error), "ours": False}
    except MemoryError:
        answer = {"error": f"has names that take more than {MEMORY_BYTES} bytes", "ours": False}
    except OSError as error:
        answer = {"error": f"can't be written as an archive: {error}", "ours": True}
    json.dump(answer, sys.stdout)


def _pack(task: PackTask) -> PackAnswer:
    with open(task["archive"], "xb") as file:
        limit(cpu_s=task["cpu_s"], file_bytes=task["most_bytes"] + _OVERHEAD * task["most_entries"])
        confine(task["folder"])
        writer = _DigestWriter(file)
        reader = LayerReader(writer, most_bytes=task["most_bytes"], most_entries=task["most_entries"])
        reader.read()
        return {"size": writer.size, "diff_id": writer.digest}


class _DigestWriter:
    """File of the archive, which is measured by the way."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sha = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self._sha.update(data)
        self.size += len(data)
        return self._file.write(data)

    @property
    def digest(self) -> str:
        return f"sha256:{self._sha.hexdigest()}"


class LayerReader:
    """Reads below `/`, folders before what is in them, by name."""

    def __init__(self, to: _DigestWriter, *, most_bytes: int, most_entries: int) -> None:
        self._to = to
        self._bytes_left, self._entries_left = most_bytes, most_entries
        self._most = (most_bytes, most_entries)
        self._links: dict[tuple[int, int], str] = {}
        """Device and inode of a file with several names -> the first of them."""

    def read(self) -> None:
        """Writes the whole archive. Raises LayerError, and OSError of the archive."""
        try:
            self._read()
        except OSError as error:
            if error.filename is None:
                raise
            raise LayerError(f"has what can't be read: {error.strerror}: {str(error.filename)[-80:]!r}") from None

    def _read(self) -> None:
        with tarfile.open(mode="w|", fileobj=self._to, format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
            waiting = [("", self._folder(archive, ""))]
            while waiting:
                folder, names = waiting[-1]
                name = next(names, None)
                if name is None:
                    waiting.pop()
                    continue
                path = f"{folder}/{name}" if folder else name
                if self._entry(archive, folder, name, path):
                    waiting.append((path, self._folder(archive, path)))
                archive.members.clear()  # of which it would keep all

    def _folder(self, archive: tarfile.TarFile, path: str) -> Iterator[str]:
        """Names in a folder; none if it has gone."""
        try:
            names = sorted(os.listdir(f"/{path}"))
        except (FileNotFoundError, NotADirectoryError):
            return iter(())
        if _attribute(f"/{path}", *_OPAQUE) == b"y":
            self._add(archive, tarfile.TarInfo(f"{path}/.wh..wh..opq"))
        return iter(names)

    def _entry(self, archive: tarfile.TarFile, folder: str, name: str, path: str) -> bool:
        """Writes one entry, unless it has gone. True: it is a folder, to be gone through next."""
        place = f"/{path}"
        try:
            facts = os.lstat(place)
            info = tarfile.TarInfo(path)
            info.mode, info.mtime = stat.S_IMODE(facts.st_mode), facts.st_mtime
            if stat.S_ISREG(facts.st_mode):
                self._file(archive, place, info, facts)
            elif stat.S_ISDIR(facts.st_mode):
                info.type, info.pax_headers = tarfile.DIRTYPE, _attributes(place)
                self._add(archive, info)
                return True
            elif stat.S_ISLNK(facts.st_mode):
                info.type, info.linkname = tarfile.SYMTYPE, os.readlink(place)
                self._add(archive, info)
            elif stat.S_ISFIFO(facts.st_mode):
                info.type = tarfile.FIFOTYPE
                self._add(archive, info)
            elif stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0:
                self._add(archive, tarfile.TarInfo(os.path.join(folder, f".wh.{name}")))
        except (FileNotFoundError, NotADirectoryError):
            pass
        return False

    def _file(self, archive: tarfile.TarFile, place: str, info: tarfile.TarInfo, facts: os.stat_result) -> None:
        key = (facts.st_dev, facts.st_ino)
        if facts.st_nlink > 1 and (first := self._links.setdefault(key, info.name)) != info.name:
            info.type, info.linkname = tarfile.LNKTYPE, first
            self._add(archive, info)
            return
        info.pax_headers = _attributes(place)
        with open(place, "rb", opener=lambda path, _: os.open(path, _READ)) as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                return  # it is another one by now
            info.size = facts.st_size
            self._add(archive, info, _Sized(file, facts.st_size))

    def _add(self, archive: tarfile.TarFile, info: tarfile.TarInfo, content: _Sized | None = None) -> None:
        self._entries_left -= 1
        self._bytes_left -= info.size
        if self._entries_left < 0:
            raise LayerError(f"has more than {self._most[1]} files and folders")
        if self._bytes_left < 0:
            raise LayerError(f"has files of more than {self._most[0]} bytes")
        archive.addfile(info, content)


class _Sized:
    """A file that has the size that was said, whatever becomes of it."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int = -1, /) -> bytes:
        wanted = min(size, self._left) if size >= 0 else self._left
        data = self._file.read(wanted)
        self._left -= wanted
        return data if len(data) == wanted else data.ljust(wanted, b"\0")


def _attributes(path: str) -> dict[str, str]:
    """Headers for the attributes that programs have given a file or folder."""
    names = [name for name in os.listxattr(path, follow_symlinks=False) if name.startswith("user.")]
    found = {name: os.getxattr(path, name, follow_symlinks=False) for name in names if not name.startswith(_OURS)}
    return {f"{_ATTRIBUTE}{name}": value.decode("utf-8", "surrogateescape") for name, value in found.items()}


def _attribute(path: str, *names: str) -> bytes:
    """Value of the first attribute that is there; empty if none is."""
    for name in names:
        try:
            return os.getxattr(path, name, follow_symlinks=False)
        except OSError:
            continue
    return b""
