"""The HTTP service: E2B's API for sandboxes, and what its SDKs ask a sandbox for, at one address.

Invariants: a body is bounded before it is read, and JSON before it is parsed; every request has a key, and one to a
sandbox its token; what code does is a result; what fairbox fails to do is a status of 500 or more, with a sentence.
"""

from __future__ import annotations

import asyncio
import base64
import builtins
import codecs
import hmac
import json
import logging
import re
import shlex
import stat
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import BodyPartReader, web

from executor_service import ExecutionResult, ExecutorError, Outcome, SandboxLost
from executor_service.errors import InvalidRequest, NotFound, SessionBusy, SessionNotFound
from fairbox.apart import read_apart
from fairbox_e2b.requests import MOST_BODY, deadline_of, file_name_of, number_of, read_body, text_of, texts_of, user_of
from fairbox_e2b.sandbox import DEFAULT_CONTEXT, Command, Refused, Sandbox, Sandboxes, json_line

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_ENVD_VERSION = "0.5.6"
"""Version of E2B's daemon that this stands for: the last one to which the SDKs send files as forms alone."""
_MOST_FILE, _MOST_FILES = 256 << 20, 256
_TRANSFERS = 4
"""Files that are read or written at once."""
_TRANSFER_S, _LATE_S, _STALL_S = 600.0, 60.0, 20.0
"""Most seconds for a file, for a command beyond its own time, and for a client to take or give a piece."""
_SPOOLED = 1 << 20
_MOST_CODE, _MOST_METADATA, _MOST_COMMAND = 1 << 20, 16 << 10, 100_000
"""Characters, and bytes of a command: Linux allows one argument 128 KiB."""
_DEFAULT_TIMEOUT_S = 300
_EXISTS, _FOLDER, _MISSING, _DENIED, _NO_FOLDER, _NO_TOOL = range(120, 126)
"""Exit codes of the scripts below."""
_PROBLEMS = {
    _EXISTS: (409, "{} exists"),
    _FOLDER: (400, "{} is a directory"),
    _MISSING: (404, "there is no file or directory {}"),
    _DENIED: (403, "permission denied: {}"),
    _NO_FOLDER: (400, "{} is not a directory"),
    _NO_TOOL: (501, "the image has no programs find and stat"),
}
_STAT = f"""command -v stat find >/dev/null || exit {_NO_TOOL}
shown() {{ stat -c '%f %s %Y %U %G %n' -- "$1"; }}
"""
_SCRIPTS = {
    "Stat": f'[ -e "$1" ] || [ -L "$1" ] || exit {_MISSING}; shown "$1"',
    "MakeDir": f'[ -d "$1" ] && exit {_EXISTS}; mkdir -p -- "$1" || exit {_DENIED}; shown "$1"',
    "Remove": f'rm -rf -- "$1" || exit {_DENIED}',
    "Move": f"""[ -e "$1" ] || [ -L "$1" ] || exit {_MISSING}; [ -d "$2" ] && exit {_FOLDER}
mkdir -p -- "$(dirname -- "$2")" && mv -f -- "$1" "$2" || exit {_DENIED}; shown "$2" """,
    "ListDir": f"""[ -e "$1" ] || exit {_MISSING}; [ -d "$1" ] || exit {_NO_FOLDER}
find "$1/" -mindepth 1 -maxdepth "$2" -exec stat -c '%f %s %Y %U %G %n' -- {{}} + 2>/dev/null; :""",
}
_ENTRY = re.compile(r"([0-9a-f]{1,8}) (\d{1,18}) (-?\d{1,11})(?:\.\d+)? (\S+) (\S+) (/.*)")
_TYPES = {stat.S_IFDIR: "FILE_TYPE_DIRECTORY", stat.S_IFREG: "FILE_TYPE_FILE", stat.S_IFLNK: "FILE_TYPE_SYMLINK"}

_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (SessionNotFound, 502),
    (NotFound, 404),
    (FileNotFoundError, 404),
    (InvalidRequest, 400),
    (ValueError, 400),
    (IsADirectoryError, 400),
    (PermissionError, 403),
    (SessionBusy, 429),
    (TimeoutError, 504),
    (ExecutorError, 503),
)
"""Exception -> status; the first that fits."""
_LOG = logging.getLogger("fairbox_e2b")


def application(sandboxes: Sandboxes, key: bytes) -> web.Application:
    """The routes. `key`: what clients have to know; empty: nothing."""
    service = Service(sandboxes, key)
    made = web.Application(middlewares=[_errors], client_max_size=MOST_BODY)
    for method, path, handler in (
        ("POST", "/v2/sandboxes", service.create),
        ("GET", "/v2/sandboxes", service.list),
        ("GET", "/sandboxes/{id}", service.info),
        ("DELETE", "/sandboxes/{id}", service.kill),
        ("POST", "/sandboxes/{id}/timeout", service.set_timeout),
        ("POST", "/v2/sandboxes/{id}/connect", service.connect),
        ("GET", "/health", service.health),
        ("POST", "/execute", service.execute),
        ("POST", "/contexts", service.add_context),
        ("GET", "/contexts", service.contexts),
        ("DELETE", "/contexts/{context}", service.end_context),
        ("POST", "/contexts/{context}/restart", service.end_context),
        ("GET", "/files", service.read),
        ("POST", "/files", service.write),
        ("POST", "/filesystem.Filesystem/{call:Stat|MakeDir|Remove|Move|ListDir}", service.files),
        ("POST", "/process.Process/Start", service.start),
        ("POST", "/process.Process/Connect", service.follow),
        ("POST", "/process.Process/List", service.commands),
        ("POST", "/process.Process/SendSignal", service.signal),
    ):
        made.router.add_route(method, path, handler)
    return made


class Service:
    """Answers of all routes."""

    def __init__(self, sandboxes: Sandboxes, key: bytes) -> None:
        self._sandboxes = sandboxes
        self._key = key
        self._transfers = asyncio.Semaphore(_TRANSFERS)

    async def create(self, request: web.Request) -> web.Response:
        self._check_key(request)
        body = await read_body(request)
        for name in ("autoPause", "mcp", "network", "iam", "volumeMounts"):
            if body.get(name):
                raise Refused(501, f"{name} is not supported by fairbox")
        sandbox = await self._sandboxes.create(
            text_of(body, "templateID"),
            timeout=number_of(body, "timeout", _DEFAULT_TIMEOUT_S),
            env=texts_of(body, "envVars"),
            metadata=texts_of(body, "metadata", most=_MOST_METADATA),
        )
        return web.json_response(_shown(sandbox, secret=True), status=201)

    async def list(self, request: web.Request) -> web.Response:
        self._check_key(request)
        wanted = dict(parse_qsl(request.query.get("metadata", ""))).items()
        if "running" not in request.query.get("state", "running"):
            return web.json_response([])
        newest = request.query.get("order") != "asc"
        found = sorted(self._sandboxes, key=lambda each: each.started, reverse=newest)
        return web.json_response([_shown(each) for each in found if wanted <= each.metadata.items()])

    async def info(self, request: web.Request) -> web.Response:
        return web.json_response(_shown(self._named(request)))

    async def kill(self, request: web.Request) -> web.Response:
        await self._sandboxes.end(self._named(request))
        return web.Response(status=204)

    async def set_timeout(self, request: web.Request) -> web.Response:
        sandbox, body = self._named(request), await read_body(request)
        self._sandboxes.set_timeout(sandbox, number_of(body, "timeout", _DEFAULT_TIMEOUT_S))
        return web.Response(status=204)

    async def connect(self, request: web.Request) -> web.Response:
        """Gives access to a sandbox that lives, and more time if less was left."""
        sandbox, body = self._named(request), await read_body(request)
        timeout = number_of(body, "timeout", _DEFAULT_TIMEOUT_S)
        if timeout > (sandbox.ends - datetime.now(UTC)).total_seconds():
            self._sandboxes.set_timeout(sandbox, timeout)
        return web.json_response(_shown(sandbox, secret=True))

    async def health(self, request: web.Request) -> web.Response:
        self._sandbox(request)
        return web.Response(status=204)

    async def execute(self, request: web.Request) -> web.StreamResponse:
        sandbox, body = self._sandbox(request), await read_body(request)
        if (language := text_of(body, "language") or "python") != "python":
            raise Refused(501, f"language is {language[:40]!r}, fairbox's run_code runs python; see commands.run")
        decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        context, code = text_of(body, "context_id") or DEFAULT_CONTEXT, text_of(body, "code")
        if len(code) > _MOST_CODE:
            raise Refused(413, f"code may have up to {_MOST_CODE} characters: write a file, and import it")
        async with aclosing(sandbox.run_code(code, context, texts_of(body, "env_vars"))) as events:
            async for event in events:
                if not response.prepared:
                    await response.prepare(request)
                if isinstance(event, bytes):
                    await response.write(event)
                elif text := decoders[event.stream].decode(event.data):
                    await response.write(json_line(type=event.stream, text=text, timestamp=time.time_ns()))
        return response

    async def add_context(self, request: web.Request) -> web.Response:
        sandbox, body = self._sandbox(request), await read_body(request)
        if (language := text_of(body, "language") or "python") != "python":
            raise Refused(501, f"language is {language[:40]!r}, contexts of fairbox are of python")
        folder = await sandbox.path(text_of(body, "cwd"))
        return web.json_response({"id": sandbox.add_context(folder), "language": "python", "cwd": folder})

    async def contexts(self, request: web.Request) -> web.Response:
        sandbox = self._sandbox(request)
        found = {name: await sandbox.path(folder) for name, folder in sandbox.contexts.items()}
        return web.json_response([{"id": name, "language": "python", "cwd": folder} for name, folder in found.items()])

    async def end_context(self, request: web.Request) -> web.Response:
        """Ends an interpreter; if it is to be removed, no other follows it."""
        sandbox, name = self._sandbox(request), request.match_info["context"]
        await sandbox.end_context(name)
        if request.method == "DELETE" and name != DEFAULT_CONTEXT:
            sandbox.contexts.pop(name, None)
        return web.Response(status=204)

    async def read(self, request: web.Request) -> web.StreamResponse:
        sandbox = self._sandbox(request)
        path = await sandbox.path(request.query.get("path", ""))
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        async with self._transfers, asyncio.timeout(_TRANSFER_S):
            pieces = sandbox.shell.read(path, most_bytes=_MOST_FILE, user=user_of(request))
            async for piece in pieces:  # between two of them it holds nothing
                if not response.prepared:
                    await response.prepare(request)
                async with asyncio.timeout(_STALL_S):
                    await response.write(piece)
        return response

    async def write(self, request: web.Request) -> web.Response:
        sandbox, room = self._sandbox(request), _MOST_FILE
        written: builtins.list[dict[str, str]] = []
        if not request.content_type.startswith("multipart/"):
            raise Refused(501, "files are taken as multipart/form-data")
        async with self._transfers, asyncio.timeout(_TRANSFER_S):
            async for part in await request.multipart():
                if not isinstance(part, BodyPartReader) or len(written) >= _MOST_FILES:
                    raise Refused(400, f"a request has up to {_MOST_FILES} files, and no forms within forms")
                path = await sandbox.path(request.query.get("path") or file_name_of(part))
                with tempfile.SpooledTemporaryFile(_SPOOLED) as file:
                    while piece := await asyncio.wait_for(part.read_chunk(1 << 16), _STALL_S):
                        if (room := room - len(piece)) < 0:
                            raise Refused(413, f"files of one request have up to {_MOST_FILE} bytes")
                        file.write(piece)
                    file.seek(0)
                    await sandbox.shell.write(path, file, user=user_of(request))  # type: ignore[arg-type]  # has `read`
                written.append({"path": path, "name": path.rpartition("/")[2], "type": "file"})
        return web.json_response(written)

    async def files(self, request: web.Request) -> web.Response:
        sandbox, body, call = self._sandbox(request), await read_body(request), request.match_info["call"]
        first = await sandbox.path(text_of(body, "source" if call == "Move" else "path"))
        second = str(number_of(body, "depth", 0) or 1)
        if call == "Move":
            second = await sandbox.path(text_of(body, "destination"))
        result = await sandbox.script(_STAT + _SCRIPTS[call], first, second, user=user_of(request))
        if result.exit_code:
            status, text = _PROBLEMS.get(result.exit_code, (500, "{}"))
            at = second if call == "Move" and result.exit_code != _MISSING else first
            raise Refused(status, f"{text.format(at)} {result.stderr.text[-300:].strip()}".strip())
        if result.stdout.truncated:
            raise Refused(413, f"{first} has more files than can be listed at once")
        answer = await read_apart(len(result.stdout.data), lambda: _entries(result, many=call == "ListDir"))
        return web.Response(body=answer, content_type="application/json")

    async def start(self, request: web.Request) -> web.StreamResponse:
        sandbox, body = self._sandbox(request), await read_body(request, enveloped=True)
        if body.get("pty") or body.get("stdin"):
            raise Refused(501, "commands of fairbox have neither a terminal nor standard input")
        config = body.get("process")
        if not isinstance(config, dict):
            raise Refused(400, "process is missing")
        args = config.get("args") or []
        if not isinstance(args, list) or not all(isinstance(each, str) for each in args):
            raise Refused(400, "process.args must be texts")
        words = [text_of(config, "cmd"), *args]
        # The form of `commands.run`. Beside a session's shell a command has a shell of its own already.
        command = words[3] if words[:3] == ["/bin/bash", "-l", "-c"] and len(words) == 4 else shlex.join(words)
        if folder := text_of(config, "cwd"):
            command = f"cd -- {shlex.quote(folder)} || exit\n{command}"
        if len(command.encode(errors="replace")) > _MOST_COMMAND:
            raise Refused(400, f"a command has up to {_MOST_COMMAND} bytes: write a file, and run it")
        started = sandbox.start(
            command, config, env=texts_of(config, "envs"), user=user_of(request), seconds=deadline_of(request)
        )
        return await _follow(request, started, 0)

    async def follow(self, request: web.Request) -> web.StreamResponse:
        command = _selected(self._sandbox(request), await read_body(request, enveloped=True))
        return await _follow(request, command, len(command.chunks))

    async def commands(self, request: web.Request) -> web.Response:
        running = self._sandbox(request).commands.values()
        return web.json_response({"processes": [{"pid": each.pid, "config": each.config} for each in running]})

    async def signal(self, request: web.Request) -> web.Response:
        sandbox, body = self._sandbox(request), await read_body(request)
        command = _selected(sandbox, body)
        if body.get("signal") != "SIGNAL_SIGKILL":
            raise Refused(501, "commands of fairbox can be killed, and get no other signal")
        command.kill()
        return web.json_response({})

    def _check_key(self, request: web.Request) -> None:
        """Refuses who has no key. Any key will do where there is none: a page in a browser can't send this header."""
        given = request.headers.get("X-API-KEY", "").encode(errors="replace")
        if not given or (self._key and not hmac.compare_digest(given, self._key)):
            raise Refused(401, "the API key in E2B_API_KEY is not the one of this service")

    def _named(self, request: web.Request) -> Sandbox:
        self._check_key(request)
        sandbox = self._sandboxes.find(request.match_info["id"])
        if sandbox is None:
            raise Refused(404, "the sandbox was not found")
        return sandbox

    def _sandbox(self, request: web.Request) -> Sandbox:
        """The sandbox that a request goes to."""
        sandbox = self._sandboxes.find(request.headers.get("E2b-Sandbox-Id", ""))
        if sandbox is None:
            raise Refused(502, "The sandbox was not found")
        headers = request.headers
        given = headers.get("X-Access-Token") or headers.get("E2B-Traffic-Access-Token") or ""
        if not hmac.compare_digest(given.encode(errors="replace"), sandbox.token.encode()):
            raise Refused(401, "the access token is not the one of this sandbox")
        request["sandbox"] = sandbox
        request["sandboxes"] = self._sandboxes
        return sandbox


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        known = error.status not in (404, 405)
        status, message = (
            (error.status, error.reason) if known else (501, f"{request.path} is not supported by fairbox")
        )
    except (ExecutorError, SandboxLost, Refused, OSError, ValueError) as error:
        message = str(error)
        fitting = (code for kind, code in _STATUSES if isinstance(error, kind))
        status = error.status if isinstance(error, Refused) else next(fitting, 500)
        if isinstance(error, SessionNotFound) and (sandbox := request.get("sandbox")) is not None:
            await request["sandboxes"].end(sandbox)
            message = f"The sandbox was not found: {message}"
    except Exception:  # the boundary: its reason is in the log, and not for clients
        _LOG.exception("a request failed for a reason that nobody foresaw")
        status, message = 500, "Internal Server Error"
    if request.transport is not None and request.writer.output_size:  # too late for a status
        request.transport.abort()
    retry = {} if status == 503 else {"Should-Retry": "false"}
    return web.json_response({"code": status, "message": message[:2000]}, status=status, headers=retry)


def _selected(sandbox: Sandbox, body: dict[str, Any]) -> Command:
    selector = body.get("process")
    pid = selector.get("pid") if isinstance(selector, dict) else None
    command = sandbox.commands.get(pid) if isinstance(pid, int) else None
    if command is None:
        raise Refused(404, f"there is no running command {str(pid)[:20]}")
    return command


def _shown(sandbox: Sandbox, *, secret: bool = False) -> dict[str, object]:
    found: dict[str, object] = {
        "sandboxID": sandbox.sandbox_id,
        "templateID": sandbox.template,
        "clientID": "fairbox",
        "envdVersion": _ENVD_VERSION,
        "metadata": sandbox.metadata,
        "startedAt": sandbox.started.isoformat(),
        "endAt": sandbox.ends.isoformat(),
        "state": "running",
        **dict.fromkeys(("cpuCount", "memoryMB", "diskSizeMB"), 0),
    }
    return found | (dict.fromkeys(("envdAccessToken", "trafficAccessToken"), sandbox.token) if secret else {})


def _entries(result: ExecutionResult, *, many: bool) -> bytes:
    """Files as a script has shown them. Lines that are none are parts of names."""
    found = []
    for line in result.stdout.text.split("\n"):
        if (match := _ENTRY.fullmatch(line)) is None:
            continue
        mode, path = int(match[1], 16), match[6].replace("//", "/")
        entry = {
            "name": path.rpartition("/")[2],
            "type": _TYPES.get(stat.S_IFMT(mode), "FILE_TYPE_UNSPECIFIED"),
            "path": path,
            "size": match[2],
            "mode": stat.S_IMODE(mode),
            "permissions": stat.filemode(mode),
            "owner": match[4],
            "group": match[5],
            "modifiedTime": datetime.fromtimestamp(max(0, int(match[3])), UTC).isoformat().replace("+00:00", "Z"),
        }
        found.append(json.dumps(entry))  # one by one: a text of megabytes would hold the event loop
    text = f'"entries": [{", ".join(found)}]' if many else f'"entry": {found[0]}' if found else ""
    return f"{{{text}}}".encode()


def _envelope(flags: int, message: object) -> bytes:
    data = json.dumps(message).encode()
    return struct.pack(">BI", flags, len(data)) + data


async def _follow(request: web.Request, command: Command, start: int) -> web.StreamResponse:
    """Passes on what a command writes, and how it ends."""
    response = web.StreamResponse(headers={"Content-Type": "application/connect+json"})
    await response.prepare(request)
    async with asyncio.timeout(command.seconds + _LATE_S), aclosing(command.follow(start)) as chunks:
        await response.write(_envelope(0, {"event": {"start": {"pid": command.pid}}}))
        async for chunk in chunks:
            event: dict[str, object] = {"keepalive": {}}
            if chunk is not None:
                event = {"data": {str(chunk.stream): base64.b64encode(chunk.data).decode()}}
            await response.write(_envelope(0, {"event": event}))
        await response.write(_end_of(command))
    return response


def _end_of(command: Command) -> bytes:
    result = command.result
    if command.problem:
        return _envelope(2, {"error": {"code": "unavailable", "message": command.problem}})
    if result is not None and result.outcome is Outcome.TIME_LIMIT:
        return _envelope(2, {"error": {"code": "deadline_exceeded", "message": result.message}})
    code, status = (result.exit_code, result.message) if result is not None else (137, "killed")
    if result is not None:
        for name, output in (("stdout", result.stdout), ("stderr", result.stderr)):
            if output.truncated:
                status += f" [{name} had {output.total_bytes} bytes, of which {len(output.data)} were passed on]"
    end = {"exitCode": code, "exited": result is not None, "status": status} | ({"error": status} if status else {})
    return _envelope(0, {"event": {"end": end}}) + _envelope(2, {})
