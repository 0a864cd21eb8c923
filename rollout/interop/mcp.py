"""A server of the Model Context Protocol over an executor: an agent's tools for programs, sessions and files.

Invariants: what a program does is the answer of a tool, whatever it is; what fairbox could not do is an error of the
tool, in a sentence. A session's id says all that is needed to use it, so this server keeps nothing that must outlive
it; the sessions that it opened end with it. Cancelling a call kills its program.

It checks nobody: who reaches it may run programs, so it listens on loopback or speaks over its own stdin and stdout.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ContentBlock, ImageContent, TextContent
from pydantic import BaseModel, Field

from executor_service import (
    Cause,
    ExecutionResult,
    ExecutorClient,
    ExecutorError,
    FileStatus,
    InputFile,
    SessionNotFound,
)
from fairbox.version import installed_version
from rollout.tools.code.program_text import describe

_log = logging.getLogger(__name__)
_MAX_CHARS = 20_000
"""Characters of each stream that an agent is shown: about 5,000 tokens."""
_MOST_TRACKED = 1024
"""Sessions that are ended with this server; older ones end after their idle time."""
_GOODBYE_S = 5.0
"""Seconds for ending all of them."""
_NOTHING = {"python": "pass", "bash": ":"}
"""A cell that does nothing, for its files."""
_PICTURES = ("image/png", "image/jpeg")
_INSTRUCTIONS = """Runs code in a sandbox without network. run_code alone runs a program that starts from nothing. \
open_session gives a session_id; with it, run_code keeps variables (python), or folder and variables (bash), and files \
stay until close_session."""

SessionId = Annotated[str, Field(description="From open_session; empty: a fresh program, of which nothing stays.")]
Result = TypeVar("Result")


class FileText(BaseModel):
    """A file, as text or as base64."""

    path: str = Field(description="Relative to the work folder.")
    text: str = Field("", description="Its content as text.")
    base64: str = Field("", description="Its content as base64, instead of text.")

    def content(self) -> bytes:
        """Raises ToolError for what is neither."""
        if self.text and self.base64:
            raise ToolError(f"{self.path}: has text and base64, must have one of them")
        try:
            return base64.b64decode(self.base64, validate=True) if self.base64 else self.text.encode()
        except ValueError as error:
            raise ToolError(f"{self.path}: its base64 is none: {error}") from None


class RunFacts(BaseModel):
    """Facts about how a program ended."""

    outcome: str = Field(description="FINISHED, NONZERO_EXIT, TIME_LIMIT, MEMORY_LIMIT and so on.")
    exit_code: int
    wall_time_s: float
    truncated: bool = Field(description="Whether the text leaves something out.")
    files: list[FileText] = []
    missing: dict[str, str] = Field({}, description="Files that were asked for and are not there, and why.")


class OpenedSession(BaseModel):
    """A session."""

    session_id: str
    idle_ttl_s: float = Field(description="It ends when it is not used for so long, seconds.")


@dataclass(eq=False, slots=True)
class SandboxTools:
    """The tools. `image`: root of programs and of shells that name none; empty: fairbox's own."""

    executor: ExecutorClient
    image: str = ""
    _opened: deque[str] = field(default_factory=lambda: deque(maxlen=_MOST_TRACKED))

    async def run_code(
        self,
        code: str,
        language: Annotated[str, Field(description="python, bash, javascript, cpp ...; of a session its own.")] = "",
        session_id: SessionId = "",
        stdin: str = "",
        timeout_s: Annotated[float, Field(ge=0, description="Seconds that it may take; 0: the default.")] = 0,
        files: Annotated[list[FileText], Field(description="Files to write first.")] = [],  # noqa: B006
        return_paths: Annotated[list[str], Field(description="Files to read afterwards.")] = [],  # noqa: B006
    ) -> Annotated[CallToolResult, RunFacts]:
        """Runs code in the sandbox, and returns what it wrote and how it ended."""
        result = await self._run(
            code,
            session_id,
            language,
            stdin=stdin,
            timeout=timeout_s or None,
            files=[InputFile(each.path, each.content()) for each in files],
            return_paths=return_paths,
        )
        shell = session_id.startswith("bash:")  # which says so if it is another one now
        said = describe(result, max_chars=_MAX_CHARS, show_exit_code=True, show_message=shell)
        found, missing = _files(result)
        facts = RunFacts(
            outcome=result.outcome,
            exit_code=result.exit_code,
            wall_time_s=round(result.wall_time_s, 3),
            truncated=said.truncated,
            files=found,
            missing=missing,
        )
        content: list[ContentBlock] = [TextContent(type="text", text=said.text), *_pictures(result)]
        return CallToolResult(content=content, structured_content=facts.model_dump())

    async def open_session(self, language: Literal["python", "bash"] = "python") -> OpenedSession:
        """Opens a session that keeps its state between calls of run_code: an interpreter of Python, or a shell."""
        image = self.image if language == "bash" else ""
        info = await _answered(self.executor.create_session(language=language, image=image))
        self._opened.append(info.session_id)
        return OpenedSession(session_id=f"{language}:{info.session_id}", idle_ttl_s=info.idle_ttl_s)

    async def close_session(self, session_id: str) -> str:
        """Ends a session, and what runs in it."""
        _, own = _split(session_id)
        ended = await _answered(self.executor.delete_session(own))
        if own in self._opened:
            self._opened.remove(own)
        return "It has ended." if ended else "It had ended before."

    async def write_file(self, session_id: str, file: FileText) -> str:
        """Writes a file into a session's work folder."""
        language, _ = _split(session_id)
        content = file.content()
        await self._run(_NOTHING[language], session_id, files=[InputFile(file.path, content)])
        return f"{len(content)} bytes are in {file.path}."

    async def read_file(self, session_id: str, path: str) -> FileText:
        """Reads a file of a session's work folder."""
        language, _ = _split(session_id)
        found, missing = _files(await self._run(_NOTHING[language], session_id, return_paths=[path]))
        if missing:
            raise ToolError(f"{path}: {missing[path]}")
        return found[0]

    async def close(self) -> None:
        """Ends the sessions that it opened, as far as that takes no more than _GOODBYE_S."""
        try:
            async with asyncio.timeout(_GOODBYE_S):
                for own in tuple(self._opened):
                    await self.executor.delete_session(own)
        except (TimeoutError, ExecutorError) as error:
            _log.warning("some sessions live on for their idle time: %s", error or "ending them takes too long")

    async def _run(self, code: str, session_id: str, language: str = "", **given: Any) -> ExecutionResult:
        """Raises ToolError if it is not the program's doing what became of it."""
        if session_id:
            kept, own = _split(session_id)
            if language not in ("", kept):
                raise ToolError(f"language is {language!r}, but the session's is {kept!r}")
            asked = self.executor.execute(code, language=kept, session_id=own, **given)
        else:
            asked = self.executor.execute(code, language=language or "python", image=self.image, **given)
        result = await _answered(asked)
        if result.cause is Cause.INFRA:
            raise ToolError(f"the sandbox failed, not the program: {result.message or result.outcome}")
        return result


def _split(session_id: str) -> tuple[str, str]:
    language, _, own = session_id.partition(":")
    if language not in _NOTHING or not own:
        raise ToolError(f"session_id is {session_id!r}, must be what open_session gave")
    return language, own


async def _answered(call: Coroutine[Any, Any, Result]) -> Result:
    try:
        return await call
    except SessionNotFound as error:
        raise ToolError(f"{error}; its variables and files are gone: open another one") from None
    except ExecutorError as error:
        raise ToolError(str(error)) from None


def _files(result: ExecutionResult) -> tuple[list[FileText], dict[str, str]]:
    found, missing = [], {}
    for each in result.files:
        if each.status is not FileStatus.RETURNED:
            missing[each.path] = each.status.lower().replace("_", " ")
            continue
        try:
            found.append(FileText(path=each.path, text=each.content.decode(), base64=""))
        except UnicodeDecodeError:
            found.append(FileText(path=each.path, text="", base64=base64.b64encode(each.content).decode()))
    return found, missing


def _pictures(result: ExecutionResult) -> list[ImageContent]:
    return [
        ImageContent(type="image", data=base64.b64encode(display.data[kind]).decode(), mime_type=kind)
        for display in result.displays
        for kind in _PICTURES
        if kind in display.data
    ]


@asynccontextmanager
async def open_server(executor: ExecutorClient, *, image: str = "") -> AsyncIterator[MCPServer]:
    """A server with the tools; sessions that it opened end with the block."""
    tools = SandboxTools(executor, image)
    server = MCPServer("fairbox", instructions=_INSTRUCTIONS, version=installed_version(), log_level="WARNING")
    methods: Sequence[Callable[..., Any]] = (
        tools.run_code,
        tools.open_session,
        tools.close_session,
        tools.write_file,
        tools.read_file,
    )
    for method in methods:
        server.add_tool(method)
    try:
        yield server
    finally:
        await tools.close()
