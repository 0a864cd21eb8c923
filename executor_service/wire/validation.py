"""Turns a request into a RunRequest, or says everything that is wrong with it, field by field.

Pure, and done before any work. Invariants: what it returns needs no further check; every limit of it is set.
"""

from __future__ import annotations

import math
import re
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from types import MappingProxyType

from executor_service.languages import LANGUAGES, PYTHON_BASE, Needs, canonical
from executor_service.model import InputFile, Limits, RunRequest
from executor_service.sandbox.limits import PAGE, disk_use
from executor_service.v1 import executor_pb2 as pb
from fairbox.errors import FieldError, FieldErrors, shown
from limiter import Lease

MAX_CODE = 1 << 20
MAX_COMMAND = (128 << 10) - 1
"""Bytes of a command beside a shell: what Linux allows one argument of a program, which it is."""
MAX_ARGS, MAX_ARGS_BYTES = 256, 64 << 10
MAX_FILES, MAX_FILES_BYTES = 1024, 64 << 20
MAX_STDIN = 64 << 20
MAX_RETURN_PATHS = 256
MAX_PATH_BYTES = 512
MAX_NAME_BYTES = 255
"""Most bytes of one part of a path: what Linux allows."""
MAX_ENV, MAX_ENV_BYTES = 256, 64 << 10
MAX_ID = 128
_USER = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.$-]*(:[A-Za-z0-9_.][A-Za-z0-9_.$-]*)?")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_SESSION_ID = 512
"""A session's id holds the name of its server."""
_NO_NEEDS = Needs()
_IMAGE_LANGUAGES = frozenset(name for name, spec in LANGUAGES.items() if not spec.compile)
"""Languages of programs in an image, which has to have what runs them."""
_LIMITS = tuple(field.name for field in fields(Limits))
SESSION_LANGUAGES = ("python", "bash")
"""Languages of sessions: an interpreter and a shell."""
_OF_SESSIONS = ("memory_bytes", "processes", "open_files", "file_bytes", "disk_bytes")
"""Limits that the first cell would set for all others."""


@dataclass(frozen=True, slots=True)
class LimitPolicy:
    """The server's limits: used where a request has none, and never exceeded."""

    defaults: Limits
    maxima: Limits

    def resolve(self, asked: pb.Limits, found: list[FieldError], needs: Needs = _NO_NEEDS) -> Limits:
        """`needs` raises defaults, and nothing that is asked for."""
        limits, problems = _resolved(self, tuple([getattr(asked, name) for name in _LIMITS]), needs)
        found += problems
        return limits


@lru_cache(maxsize=256)  # requests for the same nearly always follow each other
def _resolved(policy: LimitPolicy, asked: tuple[float, ...], needs: Needs) -> tuple[Limits, tuple[FieldError, ...]]:
    """The limits of a request, and what is wrong with those that it asks for."""
    values, found = dict(zip(_LIMITS, asked, strict=True)), []
    for name, value in values.items():
        default, most = getattr(policy.defaults, name), getattr(policy.maxima, name)
        if not 0 <= value <= most:
            form = "g" if isinstance(value, float) else "d"
            problem = f"is {value:{form}}, must be at most {most:{form}}"
            if isinstance(value, float) and (not math.isfinite(value) or value < 0):
                problem = f"is {value}, must be a number of seconds from 0"
            found.append(FieldError(f"limits.{name}", problem))
        values[name] = value or max(default, min(getattr(needs, name, 0), most))
    if not asked[_LIMITS.index("cpu_time_s")]:
        # One who asks for a long run must not have to ask for its CPU time as well.
        values["cpu_time_s"] = min(max(values["cpu_time_s"], values["wall_time_s"]), policy.maxima.cpu_time_s)
    return Limits(**values), tuple(found)  # type: ignore[arg-type]


def validate(
    request: pb.ExecuteCodeRequest,
    *,
    installed: Collection[str],
    policy: LimitPolicy,
    profiles: Collection[str] = (PYTHON_BASE,),
    session_language: str = "",
) -> RunRequest:
    """The valid request. FieldErrors with every field that is not acceptable. `session_language`: that of its session;
    empty: it has none, or it is not known here."""
    found: list[FieldError] = []
    language = canonical(request.language or session_language)
    if request.image:
        installed = _IMAGE_LANGUAGES
    if language not in installed and not request.session_id:
        lacking = ", which this server does not have (GetStatus says why)" if language in LANGUAGES else ""
        allowed = ", ".join(sorted(installed))
        found.append(FieldError("language", f"is {shown(language)}{lacking}, must be one of {allowed}"))
    spec = LANGUAGES[language] if language in installed else None
    code = request.code.encode()
    if not code:
        found.append(FieldError("code", "is empty, must be the source of a program"))
    if not _most(found, "code", len(code), MAX_COMMAND if request.beside else MAX_CODE, "bytes"):
        raise FieldErrors(found)  # what names the program's file reads all of it
    _most(found, "stdin", len(request.stdin), MAX_STDIN, "bytes")
    _args(found, request.args)
    if request.session_id:
        limits = _cell(found, request, policy.maxima, language, session_language)
        files = check_files(found, request.files)  # only the kernel knows how much room the session has left
    else:
        limits = policy.resolve(request.limits, found, spec.needs if spec else _NO_NEEDS)
        files = check_files(found, request.files, *((spec.program_file(code), spec.makes) if spec else ()))
        check_room(found, files, limits, len(code))
    _return_paths(found, request.return_paths)
    check_environment(found, request.env)
    _words(found, request, language, profiles)
    lease = _lease(found, request)
    if found:
        raise FieldErrors(found)
    return RunRequest(
        code=code,
        language=language,
        limits=limits,
        stdin=request.stdin,
        args=tuple(request.args),
        files=files,
        return_paths=tuple(request.return_paths),
        env=MappingProxyType(dict(request.env)),
        workspace_id=request.workspace_id,
        workspace_read_only=request.workspace_read_only,
        image=request.image,
        lease=lease,
        request_id=request.request_id,
        tenant=request.tenant,
        profile=request.profile,
        session_id=request.session_id,
        user=request.user,
        beside=request.beside,
        display=request.display if request.HasField("display") else bool(request.session_id),
    )


def _most(found: list[FieldError], field: str, value: int, most: int, unit: str) -> bool:
    """Says whether `value` is at most `most`; notes an error if not."""
    if value > most:
        found.append(FieldError(field, f"has {value} {unit}, must have at most {most}"))
    return value <= most


def _args(found: list[FieldError], args: Collection[str]) -> None:
    if not args or not _most(found, "args", len(args), MAX_ARGS, "entries"):
        return
    _most(found, "args", sum(len(arg.encode()) + 1 for arg in args), MAX_ARGS_BYTES, "bytes")
    found += [FieldError(f"args[{i}]", "has a NUL character") for i, arg in enumerate(args) if "\0" in arg]


def path_problem(path: str) -> str | None:
    """Problem of a path relative to the work folder; None: it is acceptable."""
    if not path:
        return "is empty, must be a path relative to the work folder"
    if len(path.encode()) > MAX_PATH_BYTES:
        return f"has {len(path.encode())} bytes, must have at most {MAX_PATH_BYTES}"
    if "\0" in path:
        return "has a NUL character"
    if path.startswith("/"):
        return f"is {path!r}, must be relative to the work folder"
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return f"is {path!r}, must not have an empty part, '.' or '..'"
    if any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        return f"has a part of more than {MAX_NAME_BYTES} bytes"
    return None


@lru_cache(maxsize=8)
def _policy_of_cells(maxima: Limits) -> LimitPolicy:
    return LimitPolicy(Limits(), maxima)


def _cell(
    found: list[FieldError], request: pb.ExecuteCodeRequest, maxima: Limits, language: str, session_language: str
) -> Limits:
    """Checks what a cell can't have, because its session has it. Returns its limits: 0 means the session's."""
    _most(found, "session_id", len(request.session_id), MAX_SESSION_ID, "characters")
    allowed = (session_language,) if session_language else SESSION_LANGUAGES
    if language not in allowed:
        problem = f"is {shown(request.language)}, must be empty or the session's, {' or '.join(map(repr, allowed))}"
        found.append(FieldError("language", problem))
    text = "must be empty in a session, which has had its own since it was created"
    own = ("args", "profile") if request.beside else ("args", "env", "profile")
    found += [FieldError(name, text) for name in own if getattr(request, name)]
    text = "must be unset in a session, whose limit it is"
    found += [FieldError(f"limits.{name}", text) for name in _OF_SESSIONS if getattr(request.limits, name)]
    limits = _policy_of_cells(maxima).resolve(request.limits, found)
    if limits.cpu_time_s == request.limits.cpu_time_s:
        return limits
    return replace(limits, cpu_time_s=request.limits.cpu_time_s)


def check_files(
    found: list[FieldError], sent: Sequence[pb.InputFile], program: str = "", made: Collection[str] = ()
) -> tuple[InputFile, ...]:
    """The files of a request. `program` and `made`: what is there without them."""
    if not sent or not _most(found, "files", len(sent), MAX_FILES, "entries"):
        return ()
    _most(found, "files", sum(len(file.content) for file in sent), MAX_FILES_BYTES, "bytes")
    files, seen, folders = [], {program}, set()
    for i, file in enumerate(sent):
        problem = path_problem(file.path)
        if problem is None and file.path in seen:
            problem = f"is {file.path!r}, which is {'the program' if file.path == program else 'another file'} already"
        if problem is None and file.path.split("/")[0] in made:
            problem = f"is {file.path!r}, which the compiler makes"
        if file.mode & ~(stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO):
            found.append(FieldError(f"files[{i}].mode", f"is {file.mode:#o}, must be from 0 to 0o777"))
        if problem is not None:
            found.append(FieldError(f"files[{i}].path", problem))
            continue
        seen.add(file.path)
        parts = file.path.split("/")
        folders |= {"/".join(parts[:n]) for n in range(1, len(parts))}
        files.append(InputFile(file.path, file.content, file.mode or 0o644))
    for i, file in enumerate(sent):
        if file.path in folders:
            found.append(FieldError(f"files[{i}].path", f"is {file.path!r}, which is a folder of another file"))
    if program in folders:
        found.append(FieldError("files", f"has files below {program!r}, which is the program"))
    return tuple(files)


def check_room(found: list[FieldError], files: Sequence[InputFile], limits: Limits, code_size: int = 0) -> None:
    """Checks that code and files fit into the private folders."""
    needed = disk_use(files) + -(-code_size // PAGE) * PAGE
    if needed > limits.disk_bytes:
        found.append(FieldError("limits.disk_bytes", f"is {limits.disk_bytes}, but code and files need {needed}"))


def _return_paths(found: list[FieldError], paths: Collection[str]) -> None:
    if not paths or not _most(found, "return_paths", len(paths), MAX_RETURN_PATHS, "entries"):
        return
    seen: set[str] = set()
    for i, path in enumerate(paths):
        problem = path_problem(path)
        if problem is None and path in seen:
            problem = f"is {path!r}, which was asked for already"
        if problem is not None:
            found.append(FieldError(f"return_paths[{i}]", problem))
        seen.add(path)


def check_environment(found: list[FieldError], env: Mapping[str, str]) -> None:
    """Names and values of environment variables."""
    if not env or not _most(found, "env", len(env), MAX_ENV, "entries"):
        return
    size = sum(len(name.encode()) + len(value.encode()) + 2 for name, value in env.items())
    if not _most(found, "env", size, MAX_ENV_BYTES, "bytes"):
        return
    for name, value in env.items():
        if not _ENV_NAME.fullmatch(name):
            found.append(
                FieldError(f"env[{shown(name)}]", "is no name, must be letters, digits and '_', not first a digit")
            )
        elif "\0" in value:
            found.append(FieldError(f"env[{name!r}]", "has a NUL character"))


def _words(found: list[FieldError], request: pb.ExecuteCodeRequest, language: str, profiles: Collection[str]) -> None:
    check_lengths(found, request, "request_id", "tenant", "workspace_id", "image")
    if request.image and (request.session_id or request.workspace_id or request.profile or request.display):
        found.append(FieldError("image", "is set, must not be with a session_id, a workspace_id, a profile or display"))
    if request.workspace_read_only and (request.session_id or not request.workspace_id):
        found.append(
            FieldError("workspace_read_only", "is set, must not be with a session_id or without a workspace_id")
        )
    _beside(found, request, language)
    if not request.session_id:
        check_profile(found, request.profile, language, profiles)
    if request.display and language != "python":
        found.append(FieldError("display", f"is true, which language {shown(language)} does not have"))


def _beside(found: list[FieldError], request: pb.ExecuteCodeRequest, language: str) -> None:
    """Checks what a command beside a shell must be, and who a program may run as."""
    if request.beside and not request.session_id:
        found.append(FieldError("beside", "is true, must be false without a session_id"))
    elif request.beside and language != "bash":
        found.append(FieldError("beside", f"is true, must be false in a session of {shown(language)}: it is no shell"))
    if request.beside and "\0" in request.code:
        found.append(FieldError("code", "has a NUL character, which a command beside a shell can't have"))
    lacks = "" if request.image or request.beside else "beside" if request.session_id else "an image"
    check_user(found, request.user, lacks)


def check_user(found: list[FieldError], user: str, lacks: str) -> None:
    """A user of an image. `lacks`: what the request would need to have one; empty: nothing."""
    if not user:
        return
    if lacks:
        found.append(FieldError("user", f"is set, must be empty without {lacks}"))
    elif len(user) > MAX_ID or not _USER.fullmatch(user):
        allowed = f"a name or a number, or two with a colon between them, of at most {MAX_ID} characters"
        found.append(FieldError("user", f"is {shown(user)}, must be {allowed}"))


def check_lengths(found: list[FieldError], request: object, *names: str) -> None:
    """Ids and names that people chose."""
    for name in names:
        _most(found, name, len(getattr(request, name)), MAX_ID, "characters")


def check_profile(found: list[FieldError], profile: str, language: str, profiles: Collection[str]) -> None:
    """A runtime profile, or none."""
    offered = sorted(profiles) if language in LANGUAGES and LANGUAGES[language].profile else []
    if profile not in ("", *offered):
        allowed = " or ".join(["empty", *map(repr, offered)])
        found.append(FieldError("profile", f"is {shown(profile)}, must be {allowed}"))


def _lease(found: list[FieldError], request: pb.ExecuteCodeRequest) -> Lease | None:
    if not request.HasField("lease"):
        return None
    lease = request.lease
    for name in ("bucket", "client_session_id"):
        if not getattr(lease, name):
            found.append(FieldError(f"lease.{name}", "is empty, must be as the limiter granted it"))
        _most(found, f"lease.{name}", len(getattr(lease, name)), MAX_ID, "characters")
    if lease.seq == 0:
        found.append(FieldError("lease.seq", "is 0, must be as the limiter granted it"))
    return Lease.of(lease)
