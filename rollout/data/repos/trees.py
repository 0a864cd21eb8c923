"""Archives and folders as one commit, whose hash follows from names, contents and modes of the files alone.

Nothing is unpacked: files go from the archive into git's objects. Invariants: no name leads elsewhere; a file is 644 or
755, a link stays a link, everything else is refused; owners, times and the order in the archive have no effect.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rollout.data.repos.failures import FailureKind, RepoError

__all__ = [
    "COMMIT_DATE",
    "COMMIT_EMAIL",
    "COMMIT_NAME",
    "TREE_REF",
    "Entry",
    "content_hash",
    "entries",
    "import_stream",
    "is_archive",
]

MOST_FILES = 500_000
"""Of one tree; the executor takes no more."""
COMMIT_DATE = "946684800 +0000"
"""1 January 2000: any fixed time will do."""
COMMIT_NAME, COMMIT_EMAIL = "fairbox", "fairbox@localhost"
MOST_FILE_BYTES = 1 << 30
"""Of one file, which is held in memory."""
TREE_REF = "refs/fairbox/import"
_PIECE = 1 << 18
_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
_HASH_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or a link."""

    path: bytes
    mode: int
    """0o100644, 0o100755 or 0o120000, as git has them."""
    data: bytes


def is_archive(path: Path) -> bool:
    return path.name.lower().endswith(_ENDINGS)


def content_hash(path: Path) -> str:
    """Of an archive its bytes', of a folder its entries'. RepoError MISSING, and what `entries` raises."""
    hasher = hashlib.sha256()
    try:
        if path.is_dir():
            for entry in entries(path, most_bytes=1 << 62):
                hasher.update(b"%d %d %d\0" % (entry.mode, len(entry.path), len(entry.data)))
                hasher.update(entry.path)
                hasher.update(entry.data)
        else:
            with path.open("rb") as file:
                while piece := file.read(_HASH_CHUNK):
                    hasher.update(piece)
    except OSError as error:
        raise RepoError(FailureKind.MISSING, f"{path}: {error.strerror or error}") from None
    return hasher.hexdigest()


def entries(path: Path, *, most_bytes: int) -> Iterator[Entry]:
    """The files of an archive, without the one folder that holds them all, or those of a folder, without its `.git`.

    Raises RepoError UNUSABLE for names that lead elsewhere, special files, more than MOST_FILES files or `most_bytes`.
    """
    size = count = 0
    try:
        for entry in _folder(path) if path.is_dir() else _archive(path):
            count += 1
            size += len(entry.data)
            if count > MOST_FILES or size > most_bytes:
                bound = f"{MOST_FILES} files" if count > MOST_FILES else f"{most_bytes} bytes"
                raise RepoError(FailureKind.UNUSABLE, f"{path}: holds more than {bound}")
            yield entry
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, RuntimeError, NotImplementedError) as error:
        # zipfile raises the last three for passwords and for methods that it does not know.
        raise RepoError(FailureKind.UNUSABLE, f"{path}: can't be read as an archive: {error}") from None
    except OSError as error:
        if path.exists():
            raise RepoError(FailureKind.UNUSABLE, f"{path}: {error.strerror or error}") from None
        raise RepoError(FailureKind.MISSING, f"{path}: {error.strerror or error}") from None


def import_stream(found: Iterator[Entry]) -> Iterator[bytes]:
    """What `git fast-import` makes the commit of, at TREE_REF."""
    yield f"commit {TREE_REF}\ncommitter {COMMIT_NAME} <{COMMIT_EMAIL}> {COMMIT_DATE}\n".encode()
    yield b"data 9\nworkspace\n"
    for entry in found:
        yield b"M %o inline %s\ndata %d\n" % (entry.mode, _quoted(entry.path), len(entry.data))
        for start in range(0, len(entry.data), _PIECE):
            yield entry.data[start : start + _PIECE]
        yield b"\n"
    yield b"done\n"


def _folder(top: Path) -> Iterator[Entry]:
    base = os.fsencode(top)
    folders = [b""]
    while folders:
        inside = folders.pop()
        for item in sorted(os.scandir(base + b"/" + inside), key=lambda each: each.name):
            name = inside + b"/" + item.name if inside else item.name
            if item.name == b".git":
                continue
            if item.is_symlink():
                yield Entry(_checked(top, name), 0o120000, os.fsencode(Path(os.fsdecode(item.path)).readlink()))
            elif item.is_dir():
                folders.append(name)
            elif item.is_file():
                mode = 0o100755 if item.stat().st_mode & 0o100 else 0o100644
                yield Entry(_checked(top, name), mode, Path(os.fsdecode(item.path)).read_bytes())
            else:
                raise RepoError(FailureKind.UNUSABLE, f"{top}: {os.fsdecode(name)!r} is neither file, folder nor link")


def _archive(path: Path) -> Iterator[Entry]:
    opened: AbstractContextManager[_Tar | _Zip] = closing(_Zip(path) if zipfile.is_zipfile(path) else _Tar(path))
    with opened as archive:
        top = _only_folder(archive.names())
        for entry in archive.entries():
            name = _checked(path, entry.path)
            yield Entry(name.removeprefix(top), entry.mode, entry.data)


class _Tar:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = tarfile.open(path)  # noqa: SIM115 - closed by close()

    def close(self) -> None:
        self._file.close()

    def names(self) -> list[bytes]:
        return [_plain(member.name) for member in self._file.getmembers() if not member.isdir()]

    def entries(self) -> Iterator[Entry]:
        for member in self._file.getmembers():
            name = _plain(member.name)
            if member.issym():
                yield Entry(name, 0o120000, os.fsencode(member.linkname))
            elif member.isreg() or member.islnk():
                _check_size(self._path, member.name, member.size)
                data = self._file.extractfile(member)
                if data is None:
                    raise RepoError(FailureKind.UNUSABLE, f"{self._path}: {member.name!r} links to what is not there")
                yield Entry(name, 0o100755 if member.mode & 0o100 else 0o100644, data.read())
            elif not member.isdir():
                raise RepoError(FailureKind.UNUSABLE, f"{self._path}: {member.name!r} is neither file, folder nor link")


class _Zip:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = zipfile.ZipFile(path)

    def close(self) -> None:
        self._file.close()

    def names(self) -> list[bytes]:
        return [_plain(item.filename) for item in self._file.infolist() if not item.is_dir()]

    def entries(self) -> Iterator[Entry]:
        for item in self._file.infolist():
            if item.is_dir():
                continue
            _check_size(self._path, item.filename, item.file_size)
            mode = item.external_attr >> 16
            kind = 0o120000 if stat.S_ISLNK(mode) else 0o100755 if mode & 0o100 else 0o100644
            yield Entry(_plain(item.filename), kind, self._file.read(item))


def _check_size(path: Path, name: str, size: int) -> None:
    if size > MOST_FILE_BYTES:
        raise RepoError(FailureKind.UNUSABLE, f"{path}: {name!r} has {size} bytes, more than {MOST_FILE_BYTES}")


def _plain(name: str) -> bytes:
    return os.fsencode(name).removeprefix(b"./")


def _only_folder(names: list[bytes]) -> bytes:
    """`project-1.0/` where everything is below it."""
    tops = {name.partition(b"/")[0] if b"/" in name else b"" for name in names}
    return tops.pop() + b"/" if len(tops) == 1 and b"" not in tops else b""


def _checked(source: Path, name: bytes) -> bytes:
    parts = name.split(b"/")
    if any(part in (b"", b".", b"..") or part.lower() == b".git" for part in parts) or b"\0" in name:
        said = str(PurePosixPath(os.fsdecode(name)))
        raise RepoError(FailureKind.UNUSABLE, f"{source}: the name {said!r} leads elsewhere, or to git's own files")
    return name


def _quoted(path: bytes) -> bytes:
    """As git quotes names in C's way; every byte that is not plain as three octal digits."""
    out = io.BytesIO()
    for byte in path:
        plain = 0x20 <= byte < 0x7F and byte not in b'"\\'
        out.write(bytes((byte,)) if plain else b"\\%03o" % byte)
    return b'"' + out.getvalue() + b'"'
