"""Sessions that are shells: what stays between commands, how commands end, and how shells do."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from executor_service import (
    CannotBranch,
    Cause,
    ExecutorClient,
    InputFile,
    InvalidRequest,
    Limits,
    Outcome,
    Session,
    SessionNotFound,
)
from tests.executor.servers import Server, parent, processes_with, said, wait_for


@pytest.fixture
async def shell(executor: ExecutorClient) -> AsyncIterator[Session]:
    async with executor.session(language="bash", limits=Limits(wall_time_s=20)) as made:
        yield made


async def test_variables_functions_folder_and_jobs_stay(shell: Session) -> None:
    assert shell.info.language == "bash"
    await said(shell, "x=5; export Y=6; f() { echo f $1; }; mkdir there; cd there; alias g='f a'")
    assert (await said(shell, "echo $x; sh -c 'echo $Y'; f b; basename $PWD")) == "5\n6\nf b\nthere\n"
    assert await said(shell, "g") == "f a\n"
    await said(shell, "sleep 600 &")
    assert "sleep 600" in await said(shell, "jobs")


COMMANDS = [
    ("false", 1, "", ""),
    ("(exit 7)", 7, "", ""),
    ("nowhere-to-be-found", 127, "", "bash: nowhere-to-be-found: command not found"),
    ("if (", 2, "", "syntax error"),
    ("echo 'a\nb'; cat <<'X'\n$x 'quoted'\nX\nfalse", 1, "a\nb\n$x 'quoted'\n", ""),
    ("echo hi!! \"a!b\" 'it'\\''s'", 0, "hi!! a!b it's\n", ""),
    ("cat; read -r line; echo $?", 0, "1\n", ""),
    ("echo before; sh -c 'kill -SEGV $$'", 139, "before\n", ""),
    ("printf '\\377\\0' | od -An -tx1", 0, " ff 00\n", ""),
    ("# nothing", 0, "", ""),
    ("exec 2>&1; ls /nowhere", 2, "ls: cannot access '/nowhere': No such file or directory\n", ""),
]
"""Commands of one shell: exit code, output, and part of what is on stderr."""


async def test_commands_end_as_those_of_a_person_do(shell: Session) -> None:
    for command, code, out, error in COMMANDS:
        result = await shell.run(command)
        assert (result.exit_code, result.stdout.text) == (code, out), command
        assert result.outcome is (Outcome.NONZERO_EXIT if code else Outcome.FINISHED), command
        assert error in result.stderr.text, command
        assert result.cause is Cause.POLICY, command


async def test_input_and_files_are_given_and_returned(shell: Session) -> None:
    for stdin in (b"first\nrest", b"", b"\0" * 100_000):
        result = await shell.run(
            "cat > out; wc -c < deep/in", stdin=stdin, files=[InputFile("deep/in", b"123")], return_paths=["out", "no"]
        )
        assert result.files[0].content == stdin
        assert result.files[1].status.value == "MISSING"
        assert result.stdout.text == "3\n"


ENDLESS = [
    "sleep 600",
    "while true; do sleep 0.1; done; echo no",
    "f() { sleep 600; echo no; }; f; echo no",
    "cat /dev/zero | wc -c; echo no",
    "(sleep 600; echo no)",
    "bash -c 'sleep 600; echo no'",
    "while :; do :; done",
]


async def test_a_command_that_takes_too_long_is_interrupted_whole(shell: Session) -> None:
    await said(shell, "x=kept")
    for command in ENDLESS:
        result = await shell.run(command, timeout=0.5)
        assert (result.outcome, result.cause) == (Outcome.TIME_LIMIT, Cause.POLICY), command
        assert "no" not in result.stdout.text, command
        assert result.message.endswith("The session's state is kept."), command
        assert await said(shell, "echo $x") == "kept\n", command


async def test_what_ignores_interrupts_is_killed_with_its_session(shell: Session) -> None:
    result = await shell.run("trap '' INT; sleep 600", timeout=0.5)
    assert (result.outcome, result.cause) == (Outcome.TIME_LIMIT, Cause.POLICY)
    with pytest.raises(SessionNotFound, match="a cell did not end when it was interrupted"):
        await shell.run("true")


async def test_a_caller_that_leaves_interrupts_its_command(shell: Session) -> None:
    await said(shell, "x=kept")
    running = asyncio.create_task(shell.run("sleep 600; x=changed"))
    await asyncio.sleep(0.5)
    running.cancel()
    await asyncio.wait([running])
    assert await said(shell, "echo $x") == "kept\n"


ENDINGS = [
    ("exit 3", 3, "exited with code 3"),
    ("exit", 0, "exited with code 0"),
    ("set -e; false; echo no", 1, "exited with code 1"),
    ("exec true", 0, "exited with code 0"),
    ("kill -9 $$", 128 + signal.SIGKILL, f"was ended by signal {signal.SIGKILL:d}"),
]


async def test_a_shell_that_ends_is_followed_by_another(shell: Session) -> None:
    for command, code, why in ENDINGS:
        await said(shell, "x=5; echo 1 > file; mkdir -p there; cd there")
        result = await shell.run(command)
        assert (result.exit_code, result.stdout.text) == (code, ""), command
        assert result.message == (
            f"The shell {why}. The session goes on with a new one: files stay, variables are gone."
        ), command
        assert await said(shell, "echo ${x-gone}; cat file") == "gone\n1\n", command


async def test_a_shell_that_an_interrupt_ends_is_said_to_be_another(shell: Session) -> None:
    result = await shell.run("exec sleep 600", timeout=0.5)
    assert result.outcome is Outcome.TIME_LIMIT
    assert result.message.endswith(
        "s. The shell was ended by signal 2. The session goes on with a new one: files stay, variables are gone."
    )


async def test_exit_codes_and_descriptors_stay_between_commands(shell: Session) -> None:
    await shell.run("(exit 7)")
    assert await said(shell, "echo $?") == "7\n"
    await said(shell, "trap 'echo trapped' ERR")
    assert (await shell.run("! true")).exit_code == 1
    assert await said(shell, "echo $?; trap - ERR") == "1\n"
    await said(shell, "exec 7>seven 8>eight 9>nine; echo 7 >&7")
    assert await said(shell, "echo 9 >&9; echo 8 >&8; cat seven eight nine") == "7\n8\n9\n"


async def test_a_session_that_can_have_no_other_shell_ends(shell: Session) -> None:
    result = await shell.run('chmod 0 "$HOME"; kill -9 $$')
    assert (result.cause, result.exit_code) == (Cause.POLICY, 1)
    assert "no shell can be started" in result.stderr.text
    with pytest.raises(SessionNotFound) as caught:
        await shell.run("true")
    assert caught.value.cause is Cause.POLICY


async def test_a_shell_that_ends_between_commands_is_followed_by_another(shell: Session) -> None:
    marker = f"600.{uuid.uuid4().int}"
    await said(shell, f"x=5; sleep {marker} &")
    await asyncio.to_thread(wait_for, lambda: processes_with(marker))
    (child,) = processes_with(marker)
    pid = parent(child)
    os.kill(pid, signal.SIGKILL)
    stat = Path(f"/proc/{pid}/stat")
    await asyncio.to_thread(wait_for, lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
    result = await shell.run("echo ${x-gone}")
    assert (result.exit_code, result.stdout.text) == (0, "gone\n")
    assert result.message.startswith("The shell was ended by signal 9.")


async def test_what_commands_redefine_does_not_hide_how_they_end(shell: Session) -> None:
    await said(shell, "alias echo=false eval=false command=false; eval() { false; }; echo() { false; }; true")
    assert await said(shell, "printf said") == "said"
    traced = await shell.run("set -x; true")
    assert traced.exit_code == 0
    assert (await shell.run("PS1=prompt PS2=more; true")).exit_code == 0
    lied = await shell.run("for n in 0 1 2 3 4 5 6 7 8 9; do printf '%s 0\\n' $n >&19; done; false")
    assert lied.exit_code == 1  # 19 is closed there


async def test_commands_of_many_bytes_and_odd_ones(shell: Session) -> None:
    text = "é'\"\\$`!" * 20_000
    result = await shell.run(f"cat <<'END' | md5sum; printf %s '{'x' * 100_000}' | wc -c\n{text}\nEND")
    assert result.stdout.text.split()[-1] == "100000"
    assert "NUL" in (await shell.run("echo \0 a")).message
    assert await said(shell, "echo fine") == "fine\n"


async def test_output_is_cut_at_its_limit(shell: Session) -> None:
    result = await shell.run("head -c 300000 /dev/zero", limits=Limits(output_bytes=1000))
    assert (len(result.stdout.data), result.stdout.total_bytes, result.stdout.truncated) == (1000, 300_000, True)
    assert await said(shell, "echo next") == "next\n"


async def test_limits_hold(executor: ExecutorClient) -> None:
    async with executor.session(language="bash", limits=Limits(cpu_time_s=1, wall_time_s=60)) as shell:
        assert (await shell.run("while :; do :; done")).outcome is Outcome.CPU_LIMIT
    async with executor.session(language="bash", limits=Limits(memory_bytes=64 << 20, wall_time_s=60)) as shell:
        result = await shell.run("x=$(head -c 200000000 /dev/zero | tr '\\0' a); echo ${#x}")
        assert result.outcome is Outcome.MEMORY_LIMIT


async def test_nothing_of_a_shell_outlives_its_session(executor: ExecutorClient) -> None:
    async with executor.session(language="bash") as shell:
        await said(shell, "setsid sleep 4141.5 & sleep 4142.5 & disown; true")
        wait_for(lambda: bool(processes_with("4141.5")))
    wait_for(lambda: not processes_with("4141.5") and not processes_with("4142.5"))


async def test_what_shells_cannot_do_is_said(executor: ExecutorClient, shell: Session, server: Server) -> None:
    with pytest.raises(CannotBranch, match="it is a shell"):
        await shell.branch()
    with pytest.raises(InvalidRequest, match="language is 'python', must be empty or the session's, 'bash'"):
        await executor.execute("1", session_id=shell.session_id)
    with pytest.raises(InvalidRequest, match="profile is 'python-base', must be empty"):
        await executor.create_session(language="bash", profile="python-base")
    with pytest.raises(InvalidRequest, match="language is 'perl', must be python or bash: sessions have no other"):
        await executor.create_session(language="perl")
    listed = {each.session_id: each.language for each in await executor.list_sessions()}
    assert listed[shell.session_id] == "bash"
