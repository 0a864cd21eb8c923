"""Compiling is a program of its own: with its own limits, in its own sandbox, once for each source."""

from __future__ import annotations

import asyncio
import shutil
import signal

import pytest

from executor_service import (
    Cause,
    ExecutionResult,
    ExecutorClient,
    InputFile,
    InvalidRequest,
    Limits,
    Outcome,
    OutputFile,
)
from tests.executor.servers import Server, processes_with, running, wait_for
from tests.executor.test_leases import limiter_running

pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed"),
]
GENEROUS = Limits(wall_time_s=100, compile_time_s=100)
DOUBLE = """#include <stdio.h>
int main(void) { int x; scanf("%d", &x); printf("%d\\n", 2 * x); }"""
FOR_EVER = '#if __INCLUDE_LEVEL__ < 150\n#include "main.c"\n#include "main.c"\n#endif\n'
"""Includes itself twice, 150 levels deep, without a word."""


@pytest.fixture(scope="module")
def server(compiling: Server) -> Server:
    return compiling


async def run(executor: ExecutorClient, code: str, *, limits: Limits = GENEROUS, **request: object) -> ExecutionResult:
    return await executor.execute(code, language="c", limits=limits, **request)  # type: ignore[arg-type]


def cached(result: ExecutionResult) -> bool:
    assert result.compilation is not None
    return result.compilation.cached


async def test_the_same_source_on_several_inputs_is_compiled_once(executor: ExecutorClient) -> None:
    results = [await run(executor, DOUBLE, stdin=str(x).encode()) for x in range(3)]
    assert [result.stdout.text for result in results] == ["0\n", "2\n", "4\n"]
    assert [cached(result) for result in results] == [False, True, True]
    first, second, _ = (result.compilation for result in results)
    assert first is not None
    assert second is not None
    assert first.wall_time_s == second.wall_time_s > 0


async def test_runs_at_the_same_time_wait_for_one_compiler(executor: ExecutorClient, server: Server) -> None:
    before = server.status().compile_cache
    code = DOUBLE + "/* at the same time */"
    results = await asyncio.gather(*(run(executor, code, stdin=str(x).encode()) for x in range(12)))
    assert [result.stdout.text for result in results] == [f"{2 * x}\n" for x in range(12)]
    assert [cached(result) for result in results].count(False) == 1
    status = server.status().compile_cache
    assert (status.building, status.waiting, status.built_total - before.built_total) == (0, 0, 1)
    assert (status.entries - before.entries, status.hits_total - before.hits_total) == (1, 11)
    assert status.bytes > before.bytes


async def test_another_source_file_or_header_is_another_compilation(executor: ExecutorClient) -> None:
    code = '#include "value.h"\n#include <stdio.h>\nint main(void) { printf("%d", VALUE); }'
    one, two = ([InputFile("value.h", f"#define VALUE {x}".encode())] for x in (1, 2))
    results = [await run(executor, code, files=files) for files in (one, two, one)]
    assert [result.stdout.text for result in results] == ["1", "2", "1"]
    assert [cached(result) for result in results] == [False, False, True]


async def test_a_source_that_does_not_compile_is_not_compiled_again(executor: ExecutorClient) -> None:
    results = [await run(executor, "int main(void) { return nothing; }", request_id=f"broken-{n}") for n in range(2)]
    for result in results:
        assert (result.outcome, result.cause) == (Outcome.COMPILE_ERROR, Cause.POLICY)
        assert result.message == "Not run: compiling failed. The compiler ended with exit code 1."
        assert result.compilation is not None
        assert (result.compilation.outcome, result.compilation.exit_code) == (Outcome.NONZERO_EXIT, 1)
        assert "nothing" in result.compilation.stderr.text
        assert (result.stdout.total_bytes, result.wall_time_s, result.exit_code) == (0, 0, 0)
    assert [cached(result) for result in results] == [False, True]
    again = await run(executor, "int main(void) { return nothing; }", request_id="broken-1")
    assert again.deduplicated


async def test_a_compiler_has_its_own_time_limit(executor: ExecutorClient) -> None:
    result = await run(executor, FOR_EVER, limits=Limits(wall_time_s=100, compile_time_s=1))
    assert (result.outcome, result.cause) == (Outcome.COMPILE_ERROR, Cause.POLICY)
    assert result.message == "Not run: compiling failed. Killed: the compiler ran for longer than 1 s."
    assert result.compilation is not None
    assert (result.compilation.outcome, result.compilation.exit_code) == (Outcome.TIME_LIMIT, 137)


async def test_the_limits_of_a_run_do_not_bind_its_compiler(executor: ExecutorClient) -> None:
    small = Limits(
        wall_time_s=100, compile_time_s=100, memory_bytes=16 << 20, processes=1, disk_bytes=8192, file_bytes=4096
    )
    code = '#include <stdio.h>\nint main(void) { FILE *f = fopen("x", "w"); fputs("y", f); return fclose(f); }'
    result = await run(executor, code, limits=small, return_paths=["x"])
    assert result.outcome is Outcome.FINISHED, result
    assert [file.content for file in result.files] == [b"y"]


async def test_who_leaves_takes_no_compiler_from_those_who_wait(executor: ExecutorClient, server: Server) -> None:
    """One that waits leaves, and then the one that compiles: the last compiles for itself."""
    limits = Limits(wall_time_s=100, compile_time_s=6)
    calls: list[asyncio.Task[ExecutionResult]] = []
    for number in range(1, 4):
        calls.append(asyncio.create_task(run(executor, FOR_EVER, limits=limits)))
        await until(lambda number=number: server.status().running == number)
    for call, left in ((calls[2], 2), (calls[0], 1)):
        call.cancel()
        await until(lambda left=left: server.status().running == left)
        assert server.status().compile_cache.building == 1
    result = await calls[1]
    assert (result.outcome, cached(result)) == (Outcome.COMPILE_ERROR, False)
    assert result.compilation is not None
    assert result.compilation.outcome is Outcome.TIME_LIMIT


async def test_a_compiler_sees_nothing_of_the_host(executor: ExecutorClient) -> None:
    for path in ("/etc/shadow", "/proc/1/environ"):
        result = await run(executor, f'#include "{path}"\nint main(void) {{}}')
        assert result.compilation is not None
        assert result.outcome is Outcome.COMPILE_ERROR
        assert "No such file" in result.compilation.stderr.text or "Permission denied" in result.compilation.stderr.text


async def test_a_program_that_is_too_large_is_refused(executor: ExecutorClient) -> None:
    result = await run(executor, "char filler[100 << 20] = {1};\nint main(void) { return filler[0]; }")
    assert result.outcome is Outcome.COMPILE_ERROR
    assert result.message == (
        "Not run: compiling failed. The compiler made something of more than 67108864 bytes as 'main'."
    )


async def test_a_flood_of_errors_is_cut(executor: ExecutorClient) -> None:
    limits = Limits(wall_time_s=100, compile_time_s=100, output_bytes=1000)
    result = await run(executor, "int main(void) { return 0; }\n" + "x;\n" * 5000, limits=limits)
    assert result.outcome is Outcome.FINISHED
    assert result.compilation is not None
    said = result.compilation.stderr
    assert (len(said.data), said.truncated) == (1000, True)
    assert said.total_bytes > 100_000


async def test_variables_of_a_request_are_for_the_program_alone(executor: ExecutorClient) -> None:
    code = '#include <stdio.h>\n#include <stdlib.h>\nint main(void) { puts(getenv("CPATH")); }'
    results = [await run(executor, code, env={"CPATH": path}) for path in ("/one", "/two")]
    assert [result.stdout.text for result in results] == ["/one\n", "/two\n"]
    assert [cached(result) for result in results] == [False, True]


async def test_a_file_that_the_compiler_makes_can_not_be_brought(executor: ExecutorClient) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await run(executor, DOUBLE, files=[InputFile("main", b"")])
    assert [(error.field, error.problem) for error in caught.value.fields] == [
        ("files[0].path", "is 'main', which the compiler makes")
    ]
    assert (await executor.execute("print(1)", files=[InputFile("main", b"")])).ok


async def test_the_source_and_the_files_are_beside_the_program(executor: ExecutorClient) -> None:
    code = '#include <stdio.h>\nint main(void) { rename("in.txt", "out.txt"); }'
    result = await run(executor, code, files=[InputFile("in.txt", b"data")], return_paths=["main.c", "out.txt"])
    source, moved = result.files
    assert (source.content, moved.content) == (code.encode(), b"data")
    assert isinstance(source, OutputFile)


async def test_a_compiler_is_killed_with_the_lease_that_it_ran_under() -> None:
    with limiter_running() as limiter, running("languages=c", f"limiter={limiter.target}") as server:
        wait_for(lambda: server.status().limiter.valid)
        async with ExecutorClient(server.target) as executor:
            call = asyncio.create_task(run(executor, FOR_EVER, limits=Limits(wall_time_s=100, compile_time_s=200)))
            await until(lambda: server.status().compile_cache.building == 1 and server.status().limiter.bound == 1)
            await until(lambda: compilers(server))
            limiter.process.send_signal(signal.SIGSTOP)
            result = await call
            assert (result.outcome, result.cause) == (Outcome.CANCELLED, Cause.INFRA)
            assert result.message == "Killed: the limiter no longer vouches for the lease that the compiler ran under."
            assert not compilers(server)
            status = server.status().compile_cache
            assert (status.building, status.entries) == (0, 0)


def compilers(server: Server) -> set[int]:
    """Processes of a server that compile C."""
    return {*processes_with("main.c", server.pid)}


async def until(what: object) -> None:
    """`wait_for` that lets calls of this event loop go on."""
    await asyncio.to_thread(wait_for, what)
