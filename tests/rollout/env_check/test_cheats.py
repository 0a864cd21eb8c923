"""The library of cheats."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from rollout.env_check.cheats import cheats_for

INSTRUCTION = (
    "Write the sum to `/app/out/sum.txt` and run /app/go.sh (see https://a.b/c and /etc/hosts), not a/b or ~/c."
)


def test_each_is_a_script_of_its_own() -> None:
    cheats = cheats_for(INSTRUCTION)
    assert len(cheats) >= 30
    assert len({cheat.name for cheat in cheats}) == len({cheat.script for cheat in cheats}) == len(cheats)
    assert all(cheat.advice for cheat in cheats)
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    for cheat in cheats:
        done = subprocess.run([bash, "-n", "-c", cheat.script], capture_output=True, text=True, timeout=10)
        assert (done.returncode, done.stderr) == (0, ""), cheat


def test_answers_are_put_where_the_instruction_asks_for_them() -> None:
    scripts = {cheat.name: cheat.script for cheat in cheats_for(INSTRUCTION)}
    assert scripts["answers-empty"].startswith("for each in /app/out/sum.txt /app/go.sh; do")
    assert not any(name.startswith("answers") for name in (cheat.name for cheat in cheats_for("Say hello.")))
