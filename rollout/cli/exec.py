"""`fairbox exec`: runs one program through the executor and behaves as if it had run here.

Its output goes to stdout and stderr as it is written, its exit code is this command's; a sentence on stderr says why it
was killed. What a compiler says goes to stderr, at the end. Ctrl-C kills it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import aclosing, nullcontext
from pathlib import Path

from executor_service import (
    ExecutionResult,
    ExecutorClient,
    ExecutorUnavailable,
    FileStatus,
    InputFile,
    Limits,
    Outcome,
    OutputChunk,
    Program,
    Stream,
)
from fairbox.byte_count import byte_count
from fairbox.errors import ConfigError, FairboxError
from rollout.stack import STARTS_SERVICES, own_executor

_BY_SUFFIX = {
    ".c": "c",
    ".cc": "cpp",
    ".cpp": "cpp",
    ".cs": "csharp",
    ".cxx": "cpp",
    ".d": "D_ut",
    ".go": "go",
    ".java": "java",
    ".jl": "julia",
    ".js": "nodejs",
    ".kts": "kotlin_script",
    ".lean": "lean",
    ".lua": "lua",
    ".mjs": "nodejs",
    ".php": "php",
    ".pl": "perl",
    ".py": "python",
    ".R": "R",
    ".r": "R",
    ".rb": "ruby",
    ".rkt": "racket",
    ".rs": "rust",
    ".scala": "scala",
    ".sh": "bash",
    ".sql": "sql",
    ".sv": "verilog",
    ".swift": "swift",
    ".ts": "typescript",
    ".v": "verilog",
}
_INTERRUPTED, _NOBODY_READS = 128 + 2, 128 + 13
"""Exit codes of a program that ends by SIGINT or SIGPIPE."""


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the program's exit code, or 1 when the service did not do its job."""
    options = _parser().parse_args(argv)
    try:
        program, wanted = _program(options)
        result = asyncio.run(_execute(None if options.up else options.executor, program))
        return _report(result, wanted)
    except FairboxError as error:
        hint = f"; {STARTS_SERVICES}" if isinstance(error, ExecutorUnavailable) and "refused" in str(error) else ""
        print(f"fairbox exec: {error}{hint}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is flushed at the end goes nowhere
        return _NOBODY_READS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fairbox exec",
        description=(__doc__ or "").splitlines()[0],
        usage="fairbox exec [options] (FILE | -c CODE | -) [arguments of the program ...]",
    )
    parser.add_argument("-c", "--code", help="the source itself, instead of a file")
    parser.add_argument("--language", help="default: by the file's suffix; of -c and of stdin python")
    parser.add_argument("--timeout", type=float, help="wall time limit, seconds; default: the server's")
    parser.add_argument(
        "--memory", type=byte_count, default=0, help="memory limit, such as 512m or 2g; default: the server's"
    )
    parser.add_argument(
        "--file",
        action="append",
        default=[],
        metavar="HERE[=THERE]",
        help="a file to give it, by default under its name",
    )
    parser.add_argument(
        "--out",
        action="append",
        default=[],
        metavar="THERE[=HERE]",
        help="a file to take from it, by default under its path",
    )
    parser.add_argument("--profile", default="", help="runtime profile, such as python-numpy; default: the server's")
    parser.add_argument(
        "--image", default="", help="image that is its root, as `fairbox image` lists it; default: none"
    )
    parser.add_argument("--user", default="", help="user of that image that it runs as; default: the image's own")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--executor", default="127.0.0.1:50051", help="address of the executor (%(default)s)")
    where.add_argument("--up", action="store_true", help="start an executor for this program alone")
    parser.add_argument(
        "rest", nargs=argparse.REMAINDER, help="source file, `-` or nothing for stdin; then its arguments"
    )
    return parser


def _program(options: argparse.Namespace) -> tuple[Program, dict[str, Path]]:
    """The program to run, and the local path of each file that it returns."""
    rest: list[str] = options.rest
    if rest[:1] == ["--"]:
        del rest[0]
    source = None if options.code is not None or not rest else rest.pop(0)
    code, language = _source(source, options.code, options.language)
    from_stdin = options.code is None and source in (None, "-")
    nothing = from_stdin or sys.stdin is None or sys.stdin.isatty()
    wanted = dict(_pair(each) for each in options.out)
    program = Program(
        code=code,
        language=language,
        stdin=b"" if nothing else sys.stdin.buffer.read(),
        args=rest,
        files=[_file(each) for each in options.file],
        return_paths=list(wanted),
        limits=Limits(memory_bytes=options.memory),
        timeout=options.timeout,
        image=options.image,
        user=options.user,
        profile=options.profile,
    )
    return program, {there: Path(here) for there, here in wanted.items()}


def _source(file: str | None, code: str | None, language: str | None) -> tuple[str, str]:
    if code is not None:
        return code, language or "python"
    if file in (None, "-"):
        return sys.stdin.read(), language or "python"
    path = Path(str(file))
    if language is None and path.suffix not in _BY_SUFFIX:
        known = " ".join(_BY_SUFFIX)
        raise ConfigError(f"{path}: its suffix is none of {known}, so --language has to say what it is written in")
    try:
        return path.read_text(encoding="utf-8"), language or _BY_SUFFIX[path.suffix]
    except (OSError, UnicodeDecodeError) as error:
        raise _no_access(path, error) from None


def _pair(text: str) -> tuple[str, str]:
    first, _, second = text.partition("=")
    return first, second or first


def _file(text: str) -> InputFile:
    here, there = _pair(text)
    path = Path(here)
    try:
        return InputFile(there if "=" in text else path.name, path.read_bytes(), path.stat().st_mode & 0o777)
    except OSError as error:
        raise _no_access(path, error) from None


def _no_access(path: Path, error: OSError | UnicodeDecodeError) -> ConfigError:
    return ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}")


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise _no_access(path, error) from None


async def _execute(target: str | None, program: Program) -> ExecutionResult:
    """Its result, when all that it has written is out. Without a target an executor is started for it."""
    pipes = {Stream.STDOUT: sys.stdout.buffer, Stream.STDERR: sys.stderr.buffer}
    async with (
        own_executor() if target is None else nullcontext(target) as address,
        ExecutorClient(address) as client,
        aclosing(client.stream(program)) as events,
    ):
        async for event in events:
            if isinstance(event, OutputChunk):
                pipes[event.stream].write(event.data)
                pipes[event.stream].flush()
            else:
                return event
    raise AssertionError("a stream ends with a result")


def _report(result: ExecutionResult, wanted: dict[str, Path]) -> int:
    if result.compilation is not None:
        for output in (result.compilation.stdout, result.compilation.stderr):
            sys.stderr.buffer.write(output.data)
            sys.stderr.buffer.flush()
    for output in (result.stdout, result.stderr):
        if output.truncated:
            print(f"\nfairbox exec: {output.total_bytes} bytes in all, cut to {len(output.data)}", file=sys.stderr)
    missing = False
    for file in result.files:
        if file.status is FileStatus.RETURNED:
            _write(wanted[file.path], file.content)
        else:
            missing = True
            print(f"fairbox exec: {file.path}: {file.status}", file=sys.stderr)
    if result.outcome not in (Outcome.FINISHED, Outcome.NONZERO_EXIT):
        print(f"fairbox exec: {result.outcome}: {result.message}", file=sys.stderr)
    return result.exit_code or int(missing or result.outcome is Outcome.COMPILE_ERROR)
