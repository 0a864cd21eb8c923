"""From SandboxFusion's requests to those of this executor. Pure.

Paths are confined: what names a place outside the work folder is refused as an input file, and reported as left out
when it was to be returned. Limits that are not asked for are the server's defaults; one above its maximum is refused.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from executor_service.gateway.errors import Unacceptable, value_error
from executor_service.gateway.schemas import RunCodeRequest
from executor_service.languages import LANGUAGES
from executor_service.v1 import executor_pb2 as pb
from executor_service.wire.validation import path_problem

FIELD_NAMES = {
    "limits.wall_time_s": "run_timeout",
    "limits.compile_time_s": "compile_timeout",
    "limits.memory_bytes": "memory_limit_MB",
    "return_paths": "fetch_files",
}
"""Fields of ExecuteCodeRequest -> fields of RunCodeRequest, where they differ."""
WORK_FOLDER = "/sandbox/"
GRACE_S = 10.0
"""Clients wait for compile_timeout + run_timeout + this."""
_REPLY_S = 2.0
"""Seconds of that for set-up, killing and the way back."""
_SHORTEST_QUEUE_S = 1.0
_IGNORED = "IGNORE_THIS_FILE"
"""A file with this in its name is a placeholder of some data sets."""
_MIB = 1 << 20
_MOST_MIB = 1 << 43
"""Most MiB that fit into the executor's field; far above every maximum, so that the executor refuses them."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds that a request may take, from its arrival."""

    queue_s: float
    """In queues: so short that its program can still use all its time."""
    total_s: float
    """In all."""


def budget_of(request: RunCodeRequest, longest_queue_s: float) -> Budget:
    compile_s, run_s = max(request.compile_timeout, 0.0), max(request.run_timeout, 0.0)
    total_s = compile_s + run_s + GRACE_S - _REPLY_S / 2
    needed_s = run_s + (compile_s if compiles(request.language) else 0.0) + _REPLY_S
    return Budget(max(_SHORTEST_QUEUE_S, min(longest_queue_s, compile_s + run_s + GRACE_S - needed_s)), total_s)


def compiles(language: str) -> bool:
    """Says whether programs of a language are compiled before they run."""
    return language in LANGUAGES and bool(LANGUAGES[language].compile)


def execution_of(request: RunCodeRequest) -> pb.ExecuteCodeRequest:
    """Raises Unacceptable for files that can't be."""
    paths, _ = fetched(request.fetch_files)
    return pb.ExecuteCodeRequest(
        code=request.code or "\n",
        language=request.language,
        stdin=(request.stdin or "").encode(),
        files=input_files(request.files),
        return_paths=paths,
        limits=pb.Limits(
            wall_time_s=request.run_timeout,
            compile_time_s=request.compile_timeout if compiles(request.language) else 0.0,
            memory_bytes=memory_bytes(request.memory_limit_mb),
        ),
    )


def memory_bytes(mebibytes: int) -> int:
    """0, the server's default, for what is not above 0."""
    return min(max(mebibytes, 0), _MOST_MIB) * _MIB


def input_files(files: Mapping[str, str | None]) -> list[pb.InputFile]:
    """Raises Unacceptable for a path outside the work folder and for content that is not base64."""
    found, problems = [], []
    for path, content in files.items():
        if content is None or _IGNORED in path:
            continue
        place, problem = _placed(path)
        data = _decoded(content)
        if problem is None and data is None:
            problem = "is not base64"
        if problem is not None:
            problems.append(value_error(f"files[{path[:100]!r}] {problem}", "files", path[:100]))
        elif data is not None:
            found.append(pb.InputFile(path=place, content=data))
    if problems:
        raise Unacceptable(problems)
    return found


def fetched(paths: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """(paths to return, asked for -> path in the work folder), without those that can't be in it."""
    places: dict[str, str] = {}
    for path in paths:
        place, problem = _placed(path)
        if problem is None:
            places[path] = place
    return list(dict.fromkeys(places.values())), places


def _placed(path: str) -> tuple[str, str | None]:
    """(path relative to the work folder, what is wrong with it)."""
    if not path:
        return "", path_problem(path)
    place = posixpath.normpath(path)
    if place.startswith(WORK_FOLDER):
        place = place.removeprefix(WORK_FOLDER)
    return place, "is the work folder itself" if place == "." else path_problem(place)


def _decoded(content: str) -> bytes | None:
    """Base64 as lenient as SandboxFusion's: other characters are skipped, padding may be missing."""
    try:
        return base64.b64decode(content + "==", validate=False)
    except (binascii.Error, ValueError):
        return None
