"""Each language that is installed runs, reads its input, says what is wrong with a program, and can be killed."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor_service import Cause, ExecutionResult, ExecutorClient, InputFile, InvalidRequest, Limits, Outcome
from executor_service.config import ExecutorConfig
from executor_service.languages import LANGUAGES
from tests.executor.language_samples import SAMPLES, Sample
from tests.executor.servers import ROOT, START_WITHIN_S, Server, running, wait_for

GENEROUS = Limits(wall_time_s=100, compile_time_s=100)
VERL = Limits(wall_time_s=100, compile_time_s=100, memory_bytes=1024 << 20)
"""The memory limit that verl sends."""
SUITES = ("pytest", "jest", "go_test")
"""Their report is about the tests, and does not show what they print."""
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that offers all that is installed here."""
    folder = ROOT / ".toolchains"
    settings = [f"toolchains={folder}"] if folder.is_dir() else []
    with running("max_concurrent=2", "languages=", *settings) as started:
        yield started


def skip_unless_installed(server: Server, language: str) -> None:
    facts = next(facts for facts in server.status().languages if facts.name == language)
    if not facts.installed:
        pytest.skip(facts.reason)


def said(result: ExecutionResult) -> str:
    """All that compiler and program wrote, for the message of a failed assertion too."""
    parts = [result.message, result.stdout.text, result.stderr.text]
    if result.compilation is not None:
        parts += [result.compilation.stdout.text, result.compilation.stderr.text]
    return "\n".join(parts)


def test_every_language_has_samples_and_a_line_in_the_manual() -> None:
    assert {sample.language for sample in SAMPLES} == LANGUAGES.keys()
    manual = (ROOT / "docs" / "how-to" / "languages.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| `(\w+)` \| (\S+) .*$", manual, re.MULTILINE)
    assert {name for name, _ in lines} == LANGUAGES.keys()
    files = {name: spec.file_name for name, spec in LANGUAGES.items() if "{" not in spec.file_name}
    assert {name: file for name, file in lines if name in files} == files


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.language)
async def test_a_program_reads_its_input_and_prints(executor: ExecutorClient, server: Server, sample: Sample) -> None:
    skip_unless_installed(server, sample.language)
    result = await executor.execute(sample.hello, language=sample.language, stdin=b"world\n", limits=VERL)
    assert (result.outcome, result.cause, result.exit_code) == (Outcome.FINISHED, Cause.POLICY, 0), said(result)
    if sample.language not in SUITES:
        assert "hello world" in result.stdout.text + result.stderr.text
    assert (result.compilation is not None) == bool(LANGUAGES[sample.language].compile)


@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if sample.broken], ids=lambda sample: sample.language)
async def test_what_is_wrong_with_a_program_is_said(executor: ExecutorClient, server: Server, sample: Sample) -> None:
    skip_unless_installed(server, sample.language)
    result = await executor.execute(sample.broken, language=sample.language, limits=GENEROUS)
    expected = Outcome.COMPILE_ERROR if LANGUAGES[sample.language].compile else Outcome.NONZERO_EXIT
    assert (result.outcome, result.cause) == (expected, Cause.POLICY), said(result)
    assert sample.said in said(result)
    if result.compilation is not None:
        assert (result.compilation.outcome, result.compilation.cached) == (Outcome.NONZERO_EXIT, False)
        assert result.compilation.exit_code != 0
        assert (result.wall_time_s, result.stdout.total_bytes) == (0, 0)


@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if sample.endless], ids=lambda sample: sample.language)
async def test_a_program_that_does_not_end_is_killed(executor: ExecutorClient, server: Server, sample: Sample) -> None:
    skip_unless_installed(server, sample.language)
    limits = Limits(wall_time_s=1, compile_time_s=100)
    result = await executor.execute(sample.endless, language=sample.language, limits=limits)
    assert (result.outcome, result.cause, result.exit_code) == (Outcome.TIME_LIMIT, Cause.POLICY, 137), said(result)
    if result.compilation is not None:
        assert result.compilation.outcome is Outcome.FINISHED


async def test_a_language_without_its_toolchain_is_refused_by_name() -> None:
    with running("languages=python") as server:
        facts = {facts.name: facts for facts in server.status().languages}
        assert [name for name, each in facts.items() if each.installed] == ["python"]
        assert facts["bash"].reason == "the setting `languages` leaves it out"
        assert facts.keys() == LANGUAGES.keys()
        async with ExecutorClient(server.target) as executor:
            with pytest.raises(InvalidRequest, match="which this server does not have") as caught:
                await executor.execute("echo", language="bash")
            assert [error.field for error in caught.value.fields] == ["language"]


def test_a_tool_that_is_nowhere_is_named_with_its_packages(tmp_path: Path) -> None:
    with running("languages=", env={"PATH": str(tmp_path)}) as server:
        reasons = {facts.name: facts.reason for facts in server.status().languages}
    wanted = "lua or lua5.4 is not in the toolchain folders or on the server's PATH; it comes with lua5.4"
    assert reasons["lua"] == wanted


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that programs do not see unless they are shown it, and that does not lie below their own /tmp."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_tool_outside_what_programs_see_is_found_by_its_folder(outside: Path) -> None:
    """A folder of the configuration is seen by programs; the same tool on the PATH alone is not."""
    tool = outside / "bin" / "lua"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho lua 0.1\n")
    tool.chmod(0o755)
    with running("languages=", env={"PATH": str(tool.parent)}) as server:
        reasons = {facts.name: facts.reason for facts in server.status().languages}
    assert reasons["lua"] == f"{tool} is outside what programs can see: add the folder of its toolchain to `toolchains`"
    with running("languages=lua", f"toolchains={outside}") as server:
        versions = {facts.name: facts.version for facts in server.status().languages}
    assert versions["lua"] == "lua 0.1"


async def test_a_language_that_does_not_come_keeps_the_server_from_being_ready(outside: Path) -> None:
    tool = outside / "bin" / "lua"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\ntest -e {outside}/there || exit 3\necho lua 0.1\n")
    tool.chmod(0o755)
    with running("languages=lua,python", f"toolchains={outside}", ready=False) as server:
        facts = {facts.name: facts for facts in server.status().languages}
        assert facts["python"].installed
        assert not facts["lua"].installed
        assert facts["lua"].reason.startswith(f"{tool} -v failed with exit code 3")
        assert facts["lua"].reason.endswith("this server is not ready without it")
        assert server.readiness() == 2
        async with ExecutorClient(server.target) as executor:
            assert (await executor.execute("print(1)")).ok
            with pytest.raises(InvalidRequest, match="which this server does not have"):
                await executor.execute("print(1)", language="lua")
            (outside / "there").touch()
            await asyncio.to_thread(wait_for, lambda: server.readiness() == 1, START_WITHIN_S)
            assert (await executor.execute("return", language="lua")).stdout.text == "lua 0.1\n"
    assert ExecutorConfig().promised() == {"python"}


@pytest.fixture
def greeting(outside: Path) -> Path:
    """A toolchain folder with a library for node."""
    module = outside / "node_modules" / "greeting" / "index.js"
    module.parent.mkdir(parents=True)
    module.write_text("module.exports = 'good day';")
    return outside


async def test_libraries_of_a_toolchain_folder_can_be_imported(greeting: Path) -> None:
    with running("languages=nodejs", f"toolchains={greeting}", ready=False) as server:
        skip_unless_installed(server, "nodejs")
        async with ExecutorClient(server.target) as executor:
            result = await executor.execute("console.log(require('greeting'))", language="nodejs", limits=GENEROUS)
    assert result.stdout.text == "good day\n", said(result)


async def test_a_php_source_with_and_without_its_tag(executor: ExecutorClient, server: Server) -> None:
    skip_unless_installed(server, "php")
    for source in ("echo $argv[1];", "<?php echo $argv[1];"):
        result = await executor.execute(source, language="php", args=["-x"], limits=GENEROUS)
        assert "-x" in result.stdout.text, said(result)


async def test_a_csharp_program_prints_what_it_prints_and_imports_what_dotnet_does(
    executor: ExecutorClient, server: Server
) -> None:
    """Mono says on standard output what it can't do to its threads."""
    skip_unless_installed(server, "csharp")
    main = "class P { static void Main() { Console.WriteLine(new List<int> { 1, 2 }.Sum()); } }"
    explicit = "#define WITH\nusing System; using System.Linq; using System.Collections.Generic;\n"
    for before in ("", explicit, "using System;\n"):
        result = await executor.execute(before + main, language="csharp", limits=GENEROUS)
        assert (result.stdout.text, result.stderr.text) == ("3\n", ""), said(result)


async def test_a_csharp_assertion_that_does_not_hold_ends_the_program(executor: ExecutorClient, server: Server) -> None:
    skip_unless_installed(server, "csharp")
    code = """
using System.Diagnostics;
class P { static void Main() {
    Debug.Assert(1 == 1, "it holds");
    Console.Write("before");
    try { Debug.Assert(1 == 2, "it does not hold"); } catch (Exception) {}
    Console.Write("after");
} }"""
    result = await executor.execute(code, language="csharp", limits=GENEROUS)
    assert (result.outcome, result.exit_code) == (Outcome.NONZERO_EXIT, 134), said(result)
    assert result.stdout.text == "before"
    assert "Assertion failed.\nit does not hold\n" in result.stderr.text


async def test_what_a_language_adds_to_a_source_is_not_charged(executor: ExecutorClient, server: Server) -> None:
    skip_unless_installed(server, "php")
    source = "echo 'here';".ljust(4096)
    limits = Limits(wall_time_s=100, disk_bytes=4096)
    result = await executor.execute(source, language="php", limits=limits)
    assert result.stdout.text.strip() == "here", said(result)


async def test_a_class_name_that_no_file_can_have_does_not_compile(executor: ExecutorClient, server: Server) -> None:
    skip_unless_installed(server, "junit")
    for name in ("X" * 300, "é" * 200):
        result = await executor.execute(f"public class {name} {{}}", language="junit", limits=GENEROUS)
        assert (result.outcome, result.cause) == (Outcome.COMPILE_ERROR, Cause.POLICY), said(result)


async def test_a_java_program_of_several_files(executor: ExecutorClient, server: Server) -> None:
    skip_unless_installed(server, "java")
    helper = InputFile("Helper.java", b"class Helper { static int f() { return 41; } }")
    data = InputFile("data.txt", b"1")
    code = """
import java.nio.file.*;
public class Main { public static void main(String[] a) throws Exception {
    System.out.println(Helper.f() + Integer.parseInt(Files.readString(Path.of("data.txt"))) + a[0]);
} }"""
    result = await executor.execute(code, language="java", files=[helper, data], args=["!"], limits=GENEROUS)
    assert result.stdout.text == "42!\n", said(result)


async def test_the_java_heap_follows_the_memory_limit(executor: ExecutorClient, server: Server) -> None:
    skip_unless_installed(server, "java")
    code = """
public class Main { public static void main(String[] a) {
    System.out.println(Runtime.getRuntime().maxMemory() >> 20);
} }"""
    for mib in (256, 1024):
        limits = Limits(wall_time_s=100, compile_time_s=100, memory_bytes=mib << 20)
        result = await executor.execute(code, language="java", limits=limits)
        assert mib // 2 < int(result.stdout.text) < mib, said(result)


async def test_a_go_program_with_modules_and_goroutines(executor: ExecutorClient, server: Server) -> None:
    skip_unless_installed(server, "go")
    files = [
        InputFile("go.mod", b"module example.org/sum\n\ngo 1.19\n"),
        InputFile("adder/adder.go", b"package adder\nfunc Add(a, b int) int { return a + b }\n"),
    ]
    code = """package main
import ("fmt"; "sync"; "example.org/sum/adder")
func main() {
    var wait sync.WaitGroup
    for i := 0; i < 1000; i++ { wait.Add(1); go func() { defer wait.Done(); adder.Add(i, i) }() }
    wait.Wait()
    fmt.Println(adder.Add(40, 2))
}"""
    result = await executor.execute(code, language="go", files=files, limits=VERL)
    assert result.stdout.text == "42\n", said(result)


async def test_a_rust_program_panics_on_overflow(executor: ExecutorClient, server: Server) -> None:
    skip_unless_installed(server, "rust")
    code = 'fn main() { let x: u8 = std::env::args().count() as u8; println!("{}", x - 2); }'
    result = await executor.execute(code, language="rust", limits=GENEROUS)
    assert (result.outcome, result.exit_code) == (Outcome.NONZERO_EXIT, 101), said(result)
    assert "attempt to subtract with overflow" in result.stderr.text


async def test_a_junit_test_that_fails_is_a_nonzero_exit(executor: ExecutorClient, server: Server) -> None:
    skip_unless_installed(server, "junit")
    code = """
import org.junit.jupiter.api.Test;
import static org.junit.jupiter.api.Assertions.*;
class SumTest { @Test void sums() { assertEquals(3, 1 + 1); } @Test void holds() { assertTrue(true); } }"""
    result = await executor.execute(code, language="junit", limits=GENEROUS)
    assert (result.outcome, result.exit_code) == (Outcome.NONZERO_EXIT, 1), said(result)
    assert "1 tests successful" in result.stdout.text
    assert "1 tests failed" in result.stdout.text
