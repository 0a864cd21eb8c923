"""The kernel: a process beside the notebook that passes cells to a session, and results back.

Invariants: no code of a notebook runs in this process; a cell that is interrupted leaves the session's state; what the
service fails to do is an error of its own kind, and never one of the code; what a cell displays can't act in the
notebook's page, unless somebody says so. It does not complete, inspect or ask for input, and a cell's output is shown
when the cell has ended.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from contextlib import AsyncExitStack, suppress
from dataclasses import fields
from typing import Any

from ipykernel.kernelbase import Kernel
from IPython.core.inputtransformer2 import TransformerManager
from traitlets import Bool, Dict, Float, TraitError, Unicode

from executor_service import Cause, Display, ExecutionResult, ExecutorClient, ExecutorError, Limits, Session
from executor_service import SessionNotFound as NoSession
from fairbox.version import installed_version

_END_S = 5.0
"""For the end of a session; after that it goes when it has been idle."""
_STILL = frozenset(
    {"text/plain", "text/markdown", "text/latex", "application/json", "image/png", "image/jpeg", "image/gif"}
)
"""Forms that don't act in a page. HTML and SVG may hold scripts, which have the notebook server's rights there."""


class FairboxKernel(Kernel):  # type: ignore[misc]
    """Its traits are options: `--FairboxKernel.target=HOST:PORT`. Tokens and TLS are those of the environment."""

    target = Unicode("127.0.0.1:50051", help="Address of the executor; several with commas are spread over.").tag(
        config=True
    )
    profile = Unicode("", help="Runtime profile, such as python-science; empty: the executor's default.").tag(
        config=True
    )
    idle_ttl_s = Float(3600.0, help="Seconds without a cell after which variables are let go of; at most 86400.").tag(
        config=True
    )
    limits = Dict(help="Limits of the session and its cells: {'wall_time_s': 600, 'memory_bytes': 2147483648}.").tag(
        config=True
    )

    html = Bool(False, help="Show HTML, SVG and scripts too: they may do in the page whatever you may.").tag(
        config=True
    )

    implementation = "fairbox"
    implementation_version = installed_version()
    banner = "Python in a session of fairbox"
    language_info = {  # noqa: RUF012  # a trait's value, which Jupyter never changes
        "name": "python",
        "mimetype": "text/x-python",
        "file_extension": ".py",
        "pygments_lexer": "ipython3",
        "codemirror_mode": {"name": "ipython", "version": 3},
    }

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self._limits = _limits(self.limits)
        self._stack = AsyncExitStack()
        self._client: ExecutorClient | None = None
        self._session: Session | None = None
        self._cell: asyncio.Future[ExecutionResult] | None = None

    async def do_execute(self, code: str, silent: bool, *_: Any, **__: Any) -> dict[str, Any]:
        cell = self._cell = asyncio.ensure_future(self._run(code))
        try:
            await asyncio.wait([cell])
        finally:
            self._cell = None
            cell.cancel()
        if cell.cancelled():
            return self._error(silent, "KeyboardInterrupt", "", ["KeyboardInterrupt: its output is lost"])
        try:
            result = cell.result()
        except NoSession as error:
            self._session = None
            lost = [str(error), "Its variables are lost. The next cell has a new session."]
            return self._error(silent, "SessionLost", str(error), lost)
        except (ExecutorError, TypeError, ValueError) as error:  # the last two: no text, or a fraction of a byte
            return self._error(silent, type(error).__name__, str(error), [str(error)])
        return self._shown(result, silent)

    async def do_is_complete(self, code: str) -> dict[str, Any]:
        status, indent = TransformerManager().check_complete(code)
        return {"status": status} | ({"indent": " " * indent} if indent is not None else {})

    async def do_shutdown(self, restart: bool) -> dict[str, Any]:
        """Called in the thread of the control channel."""
        ending = asyncio.run_coroutine_threadsafe(self._end(), self.io_loop.asyncio_loop)
        with suppress(TimeoutError, ExecutorError):
            await asyncio.wait_for(asyncio.wrap_future(ending), _END_S)
        return {"status": "ok", "restart": restart}

    async def interrupt_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Called in the thread of the control channel."""
        self.io_loop.add_callback(self._interrupt)
        self.session.send(stream, "interrupt_reply", {"status": "ok"}, parent, ident=ident)

    def pre_handler_hook(self) -> None:
        """No signal is wanted: cells are interrupted by a message."""

    def post_handler_hook(self) -> None:
        """No signal was wanted."""

    def _interrupt(self) -> None:
        if self._cell is not None:
            self._cell.cancel()

    async def _run(self, code: str) -> ExecutionResult:
        if self._client is None:
            self._client = await self._stack.enter_async_context(ExecutorClient(self.target))
        if self._session is None:
            self._session = Session(
                self._client,
                await self._client.create_session(
                    profile=self.profile, limits=self._limits, idle_ttl_s=self.idle_ttl_s, owner="jupyter"
                ),
            )
        return await self._session.run(code)

    async def _end(self) -> None:
        self._interrupt()
        session, self._session = self._session, None
        try:
            if session is not None:
                await session.delete()
        finally:
            self._client = None
            await self._stack.aclose()

    def _shown(self, result: ExecutionResult, silent: bool) -> dict[str, Any]:
        if not silent:
            for name, output in (("stdout", result.stdout), ("stderr", result.stderr)):
                cut = f"\n[{name} had {output.total_bytes} bytes]\n" if output.truncated else ""
                if (text := output.text + cut) and (result.ok or name == "stdout"):
                    self._say("stream", {"name": name, "text": text})
            for each in result.displays:
                self._say("display_data", {"data": _bundle(each, everything=self.html), "metadata": {}})
        if result.ok:
            return {
                "status": "ok",
                "execution_count": self.execution_count,
                "payload": [],
                "user_expressions": {},
            }
        name, _, value = result.message.partition(": ")
        raised = result.outcome is result.outcome.NONZERO_EXIT and name.isidentifier()
        kind = name if raised else "SandboxFailed" if result.cause is Cause.INFRA else result.outcome.name
        lines = result.stderr.text.splitlines()
        return self._error(
            silent, kind, value if raised else result.message, lines if raised else [*lines, result.message]
        )

    def _error(self, silent: bool, name: str, value: str, traceback: list[str]) -> dict[str, Any]:
        content = {"ename": name, "evalue": value, "traceback": traceback}
        if not silent:
            self._say("error", content)
        return {"status": "error", "execution_count": self.execution_count, **content}

    def _say(self, kind: str, content: dict[str, Any]) -> None:
        self.send_response(self.iopub_socket, kind, content)


def _limits(given: dict[str, Any]) -> Limits:
    names = [each.name for each in fields(Limits)]
    if wrong := {
        name: value for name, value in given.items() if name not in names or not isinstance(value, int | float)
    }:
        raise TraitError(f"FairboxKernel.limits has {wrong}; there are {', '.join(names)}, each a number")
    return Limits(**given)


def _bundle(display: Display, *, everything: bool) -> dict[str, Any]:
    """The forms of a value as Jupyter has them: text, JSON as itself, everything else in base64."""
    found: dict[str, Any] = {}
    for kind, data in display.data.items():
        if kind not in _STILL and not everything:
            continue
        if kind.startswith("text/") or kind.endswith(("+xml", "javascript", "latex")):
            found[kind] = data.decode("utf-8", "replace")
        elif kind.endswith("json"):
            with suppress(ValueError, RecursionError):
                found[kind] = json.loads(data)
        else:
            found[kind] = b64encode(data).decode()
    return found
