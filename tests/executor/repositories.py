"""Real git repositories for tests, honest and hostile."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import zlib
from collections.abc import Mapping
from pathlib import Path

ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
    "GIT_AUTHOR_DATE": "2024-05-01T12:00:00Z",
    "GIT_COMMITTER_DATE": "2024-05-01T12:00:00Z",
}
SECRET = "the-fix-4711"


def git(folder: Path, *words: str, stdin: bytes = b"") -> str:
    """Runs git in a folder and returns what it writes."""
    done = subprocess.run(["git", *words], cwd=folder, env=ENV, input=stdin, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def commit(folder: Path, message: str, files: Mapping[str, bytes | str]) -> str:
    """Writes files, commits everything and returns the hash."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(folder, "rev-parse", "HEAD")


def new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    return folder


def bundle(folder: Path) -> bytes:
    """All of a repository, for servers that can't read its folder."""
    git(folder, "bundle", "create", "--quiet", str(folder / ".git" / "all.bundle"), "--all")
    return (folder / ".git" / "all.bundle").read_bytes()


def unfolding(folder: Path, objects: int, copies: int) -> bytes:
    """A bundle of some kilobytes that is honest but for `objects` more, of `copies` times 16 MiB each."""
    packed = subprocess.run(
        ["git", "pack-objects", "--stdout", "--revs", "-q"], cwd=folder, env=ENV, input=b"main\n", capture_output=True
    ).stdout[:-20]
    (honest,) = struct.unpack(">I", packed[8:12])
    piece = (1 << 24) - 1
    base = len(packed)
    body = packed[12:] + _head(3, piece) + zlib.compress(bytes(piece))
    for number in range(objects):
        delta = _number(piece) + _number(copies * piece + 4) + b"\xf0\xff\xff\xff" * copies + b"\x04"
        delta += struct.pack(">I", number)
        body += _head(6, len(delta)) + _distance(12 + len(body) - base) + zlib.compress(delta)
    pack = b"PACK" + struct.pack(">II", 2, honest + 1 + objects) + body
    heads = f"# v2 git bundle\n{git(folder, 'rev-parse', 'main')} refs/heads/main\n\n".encode()
    return heads + pack + hashlib.sha1(pack).digest()


def _head(kind: int, size: int) -> bytes:
    """The beginning of an object in a pack."""
    first, rest = kind << 4 | size & 15, size >> 4
    return bytes([first | 0x80]) + _number(rest) if rest else bytes([first])


def _number(value: int) -> bytes:
    more = value >> 7
    return bytes([value & 127 | 0x80]) + _number(more) if more else bytes([value])


def _distance(value: int) -> bytes:
    """Encodes the distance from a delta back to its base."""
    said = [value & 127]
    while value := value >> 7:
        value -= 1
        said.append(value & 127 | 0x80)
    return bytes(reversed(said))


def kept(workspace_dir: Path) -> Path:
    """Folder below `workspace_dir` in which a server keeps its workspaces; its name can't be guessed."""
    (found,) = workspace_dir.glob("store-*")
    return found


def shell(*lines: str) -> str:
    """A program that runs commands in the workspace and prints what they write."""
    script = "\n".join(['cd "$FAIRBOX_WORKSPACE"', *lines])
    return f"import subprocess\nsubprocess.run(['bash', '-c', {script!r}], stderr=subprocess.STDOUT)\n"


def project(folder: Path) -> tuple[Path, str]:
    """A repository with a buggy commit, and a later one that fixes it. Returns the hash of the buggy one."""
    new(folder)
    commit(folder, "earlier", {"old.txt": b"history"})
    (folder / "old.txt").unlink()
    (folder / "link").symlink_to("src/add.py")
    (folder / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "run.sh").chmod(0o755)
    base = commit(folder, "buggy", {"src/add.py": b"def add(a, b):\n    return a - b\n", "data.bin": bytes(range(256))})
    git(folder, "tag", "--annotate", "v1", "--message", "v1")
    fix = f"def add(a, b):\n    return a + b  # {SECRET}\n".encode()
    commit(folder, f"fix {SECRET}", {"src/add.py": fix})
    return folder, base
