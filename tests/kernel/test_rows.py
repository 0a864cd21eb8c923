"""The executor on the kernel that `boot.sh` starts, for each kind of user: what works, and how limits are held."""

from __future__ import annotations

import os
import subprocess

import pytest

from executor_service import ExecutorClient, Outcome
from tests.executor.levels import HOME
from tests.executor.servers import command

ROW = os.environ.get("FAIRBOX_KERNEL_ROW", "")
REFUSED = {
    "no-namespaces": "user.max_user_namespaces (0)",
    "no-sysadmin": "root needs CAP_SYS_ADMIN",
}
"""Rows in which nothing works, and what the one sentence about it names."""
pytestmark = pytest.mark.kernel
starts = pytest.mark.skipif(ROW in REFUSED, reason="there the executor does not start")


@starts
async def test_programs_run(executor: ExecutorClient) -> None:
    result = await executor.execute("print(open('/proc/self/cgroup').read(), end='')")
    assert (result.outcome, result.stdout.text) == (Outcome.FINISHED, "0::/\n")


@pytest.mark.skipif(ROW not in REFUSED, reason="there the executor starts")
def test_it_says_in_one_sentence_what_is_missing() -> None:
    words, _, _ = command("languages=python")
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=HOME)
    assert done.returncode == 1
    assert REFUSED[ROW] in done.stderr.splitlines()[-1]
