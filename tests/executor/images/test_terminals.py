"""Terminals of programs in images: what opens one finds them as on any machine, and nobody else's."""

from __future__ import annotations

import shutil

import pytest

from executor_service import ExecutorClient, Outcome
from tests.executor.images.conftest import Setting
from tests.executor.images.test_programs import ran

MANY = """
for n in {100..150}; do eval "exec $n<>/dev/ptmx" 2>/dev/null || break; done
ls /dev/pts | wc -l
"""
TALK = """
export SHELL=/usr/bin/bash
script -qec 'tty; stty size rows 30 cols 100; stty size; read line; echo "got $line"' /dev/null <<< hello
"""


async def test_a_program_has_a_terminal_of_the_size_that_it_asks_for(setting: Setting) -> None:
    said = await ran(setting, TALK)
    lines = said.replace("\r", "").splitlines()
    assert {"/dev/pts/0", "30 100", "got hello"} <= set(lines), said


async def test_an_interrupt_from_a_terminal_reaches_what_runs_in_it(setting: Setting) -> None:
    code = r"""
cd /tmp
until_there() { until [ -e $1 ]; do sleep 0.05; done; }
(until_there ready; printf '\003'; until_there done) |
  SHELL=/usr/bin/bash script -qec 'trap "echo interrupted; touch done; exit 5" INT; touch ready; sleep 60' /dev/null
echo $?
"""
    *_, said, exit_code = (await ran(setting, code)).replace("\r", "").splitlines()
    assert (said.removeprefix("^C"), exit_code) == ("interrupted", "5")


async def test_terminals_are_those_of_the_run_alone_and_bounded(setting: Setting) -> None:
    async with ExecutorClient(setting.server.target) as client:
        async with client.session(language="bash", image="one") as other:
            assert (await other.run(MANY)).stdout.text == "13\n"  # with ptmx
            assert await ran(setting, "ls /dev/pts") == "ptmx\n"
            assert await ran(setting, MANY) == "13\n"
            assert (await other.run("echo still; ls /dev/pts | wc -l")).stdout.text == "still\n13\n"
        assert await ran(setting, "ls /dev/pts", image="two") == "ptmx\n"


@pytest.mark.parametrize("user", ["", "ann"])
async def test_every_user_of_an_image_can_open_one(setting: Setting, user: str) -> None:
    async with ExecutorClient(setting.server.target) as client:
        result = await client.execute("exec 3<>/dev/ptmx && ls /dev/pts", language="bash", image="peopled", user=user)
    assert (result.outcome, result.stdout.text) == (Outcome.FINISHED, "0\nptmx\n"), result


@pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux (Debian: tmux)")
async def test_an_agent_types_into_tmux_and_reads_its_screen(setting: Setting) -> None:
    """By commands of their own, as agents of terminal benchmarks do."""
    async with (
        ExecutorClient(setting.server.target) as client,
        client.session(language="bash", image="tmux", env={"SHELL": "/usr/bin/bash"}) as session,
    ):

        async def said(command: str) -> str:
            result = await session.run(command, beside=True)
            assert result.outcome is Outcome.FINISHED, (result, result.stderr.text)
            return result.stdout.text

        await said("tmux new-session -d -s main -x 100 -y 30")
        await said("tmux send-keys -t main 'x=$((6 * 7)); cd /tmp' Enter")
        await said("tmux send-keys -t main 'echo \"$x in $PWD\"' Enter ': > done' Enter")
        await said("until [ -e /tmp/done ]; do sleep 0.05; done")
        assert "42 in /tmp" in (await said("tmux capture-pane -p -t main")).splitlines()
