"""Runs git on repositories that nobody vouches for.

Invariants: an environment of ours alone; no hooks, no filters, no pagers, no helpers, no prompts, no submodules; no
transport unless the caller names it, so that a repository can't make git fetch, or start a program by fetching; every
process has limits on CPU time, memory and file size, and dies with the preparation.
"""

from __future__ import annotations

import ctypes
import resource
import signal
import subprocess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import IO

_MOST_WORDS = 600
"""Bytes of what git says that are passed on to the caller."""
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

_CONFIG = {
    # On the command line, where they win over the configuration of the repository.
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.sshCommand": "false",
    "core.alternateRefsCommand": "false",
    "core.askPass": "",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.autocrlf": "false",
    "core.symlinks": "true",
    "core.fileMode": "true",
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "core.logAllRefUpdates": "false",
    "core.bigFileThreshold": "16m",
    "credential.helper": "",
    "fetch.recurseSubmodules": "false",
    "submodule.recurse": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "http.followRedirects": "false",
    "pack.threads": "1",
    "protocol.version": "2",
}


class GitError(Exception):
    """A git command failed; the text is the end of what it said."""


class Git:
    """`program` is the path of git; `most_bytes` the largest file that one process may write, `memory_bytes` its
    address space: packs are mapped, and a delta needs its base in memory."""

    def __init__(self, program: str, config_file: str, *, most_bytes: int, memory_bytes: int, cpu_s: int) -> None:
        self._program = program
        self._limits = {
            resource.RLIMIT_AS: memory_bytes,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_CPU: cpu_s,
            resource.RLIMIT_FSIZE: most_bytes,
        }
        self._env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": "/nonexistent",
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": config_file,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_LITERAL_PATHSPECS": "1",
        }
        # The one setting that git takes from no repository and from no command line on every path: whose it may be.
        with open(config_file, "x", encoding="ascii") as file:
            file.write("[safe]\n\tdirectory = *\n")

    def run(
        self,
        folder: str,
        *words: str,
        stdin: bytes = b"",
        protocols: str = "none",
        env: dict[str, str] | None = None,
        work_tree: str = "",
    ) -> bytes:
        """Returns what a command writes to stdout. `folder` is a git folder. Raises GitError if the command fails."""
        env = {"GIT_ALLOW_PROTOCOL": protocols} | (env or {})
        with self._start(folder, words, work_tree=work_tree, env=env) as process:
            out, said = process.communicate(stdin)
        if process.returncode:
            raise GitError(_words(words[0], process.returncode, said))
        return out

    def read(self, folder: str, *words: str, take: Callable[[bytes], None]) -> None:
        """Gives what a command writes to `take`, piece by piece; an exception of `take` ends the command."""
        with self._start(folder, words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            try:
                while data := process.stdout.read(1 << 16):
                    take(data)
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            raise GitError(_words(words[0], process.returncode, b""))

    def copy(self, source: str, target: str, wanted: str) -> None:
        """Copies the object `wanted`, and all that it consists of, from one repository to another, checked."""
        give = ("pack-objects", "--revs", "--stdout", "--quiet", "--delta-base-offset")
        # What old, honest repositories have; everything else that fsck calls an error is refused.
        lenient = "zeroPaddedFilemode=ignore"
        accept = ("index-pack", "--stdin", "--threads=1", f"--strict={lenient}")
        with (
            self._start(source, give) as giver,
            self._start(target, accept, stdin=giver.stdout, stdout=subprocess.DEVNULL) as taker,
        ):
            assert giver.stdin is not None
            assert giver.stdout is not None
            assert giver.stderr is not None
            giver.stdout.close()  # the taker has it; the giver must notice when the taker ends
            giver.stdin.write(f"{wanted}\n".encode())
            giver.stdin.close()
            _, taker_said = taker.communicate()
            giver_said = giver.stderr.read(1 << 16)
        if taker.returncode:
            said = giver_said if giver.returncode not in (0, -signal.SIGPIPE) else taker_said
            raise GitError(_words("copying the objects", taker.returncode, said))
        if giver.returncode:
            raise GitError(_words("reading the objects", giver.returncode, giver_said))

    def _start(
        self,
        folder: str,
        words: Sequence[str],
        *,
        stdin: int | IO[bytes] | None = subprocess.PIPE,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        work_tree: str = "",
        env: dict[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        settings = [word for name, value in _CONFIG.items() for word in ("-c", f"{name}={value}")]
        tree = [f"--work-tree={work_tree}"] if work_tree else []
        return subprocess.Popen(  # noqa: S603
            [self._program, "--no-pager", f"--git-dir={folder}", *tree, *settings, *words],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=self._env | {"GIT_ALLOW_PROTOCOL": "none"} | (env or {}),
            cwd=work_tree or folder,
            preexec_fn=self._bound,
        )

    def _bound(self) -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for which, value in self._limits.items():
            _, most = resource.getrlimit(which)  # a sandbox may have set less
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(which, (value, value))


def _words(what: str, code: int, said: bytes) -> str:
    """One line for the caller, who may know what git says of the source that it named."""
    if code == -signal.SIGXFSZ:
        return f"git {what}: a file would be larger than a workspace may be"
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"git {what}: it used up its time"
    text = " ".join(said.decode("utf-8", "replace").split())[-_MOST_WORDS:]
    return f"git {what}: {text or f'ended with {code}'}"
