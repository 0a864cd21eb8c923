"""Uids of programs if the server is root."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

import pytest

from executor_service.sandbox.host import _uid_base
from tests.executor.servers import ROOT, wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives uids away")
ASK = "from executor_service.sandbox.host import _uid_base; print(_uid_base(10), flush=True); input()"


def test_servers_of_one_machine_have_uids_that_no_other_has() -> None:
    words = [sys.executable, "-c", ASK]
    servers = [
        subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    bases = [int(server.stdout.readline()) for server in servers if server.stdout]
    for server in servers:
        server.communicate("\n", timeout=60)
    assert len(set(bases)) == 4
    assert all((base - bases[0]) % 4096 == 0 for base in bases)


def test_a_server_has_the_same_ones_however_often_it_asks() -> None:
    assert _uid_base(10) == _uid_base(20)


def test_the_first_ones_are_shared_when_all_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor_service.sandbox.host._claim", lambda _: False)
    assert _uid_base(10) in (200_000, 30_000)


def test_what_says_so_goes_with_its_server() -> None:
    words = [sys.executable, "-c", ASK]

    def gone() -> bool:
        done = subprocess.run(words, cwd=ROOT, input="\n", capture_output=True, text=True, check=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as name, contextlib.suppress(OSError):
            name.bind(f"\0fairbox-uids-{int(done.stdout)}")
            return True
        return False  # another suite has started a server meanwhile

    wait_for(gone)
