"""`fairbox exec`: runs one program through the executor and behaves as if it had run here.

Its output goes to stdout and stderr, its exit code is this command's; a sentence on stderr says why it was killed. What
a compiler says goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from executor_service import ExecutionResult, ExecutorClient, Limits, Outcome
from fairbox.errors import ConfigError, FairboxError

_BY_SUFFIX = {
    ".c": "c",
    ".cc": "cpp",
    ".cpp": "cpp",
    ".cs": "csharp",
    ".cu": "cuda",
    ".d": "D_ut",
    ".go": "go",
    ".java": "java",
    ".jl": "julia",
    ".js": "nodejs",
    ".kts": "kotlin_script",
    ".lean": "lean",
    ".lua": "lua",
    ".php": "php",
    ".pl": "perl",
    ".py": "python",
    ".R": "R",
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


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the program's exit code, or 1 when the service did not do its job."""
    options = _parser().parse_args(argv)
    try:
        code, language = _source(options.file, options.code, options.language)
        stdin = b"" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read()
        result = asyncio.run(_execute(options, code, language, stdin))
    except FairboxError as error:
        print(f"fairbox exec: {error}", file=sys.stderr)
        return error.exit_code
    return _report(result)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fairbox exec", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", help="source file; `-` or nothing: read the source from stdin")
    parser.add_argument("args", nargs="*", help="arguments of the program")
    parser.add_argument("-c", "--code", help="the source itself, instead of a file")
    parser.add_argument("--language", help="default: by the file's suffix, else python")
    parser.add_argument("--timeout", type=float, default=0.0, help="wall time limit, seconds; default: the server's")
    parser.add_argument("--executor", default="127.0.0.1:50051", help="address of the executor (%(default)s)")
    return parser


def _source(file: str | None, code: str | None, language: str | None) -> tuple[str, str]:
    if code is not None:
        return code, language or "python"
    if file in (None, "-"):
        return sys.stdin.read(), language or "python"
    path = Path(str(file))
    try:
        return path.read_text(encoding="utf-8"), language or _BY_SUFFIX.get(path.suffix, "python")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


async def _execute(options: argparse.Namespace, code: str, language: str, stdin: bytes) -> ExecutionResult:
    async with ExecutorClient(options.executor) as client:
        return await client.execute(
            code, language=language, stdin=stdin, args=options.args, limits=Limits(wall_time_s=options.timeout)
        )


def _report(result: ExecutionResult) -> int:
    streams = [(sys.stdout, result.stdout), (sys.stderr, result.stderr)]
    if result.compilation is not None:
        streams = [(sys.stderr, result.compilation.stdout), (sys.stderr, result.compilation.stderr), *streams]
    for stream, output in streams:
        stream.flush()
        stream.buffer.write(output.data)
        stream.buffer.flush()
        if output.truncated:
            print(f"\nfairbox exec: {output.total_bytes} bytes in all, cut to {len(output.data)}", file=sys.stderr)
    if result.outcome not in (Outcome.FINISHED, Outcome.NONZERO_EXIT):
        print(f"fairbox exec: {result.outcome}: {result.message}", file=sys.stderr)
    return 1 if result.outcome is Outcome.COMPILE_ERROR else result.exit_code
