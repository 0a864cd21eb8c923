"""Clients work where a server does not: on macOS and Windows, whose interpreters lack what Linux has."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.e2e.conftest import Service
from tests.executor.servers import ROOT


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_clients_and_commands_need_nothing_of_linux(service: Service, system: str) -> None:
    ports = service.ports
    words = [sys.executable, "-m", "tests.e2e.elsewhere", system, ports.executor, ports.limiter, ports.limiter_admin]
    done = subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    program, status, end = done.stdout.splitlines()
    assert (program, end) == ("from exec", "done")
    found = json.loads(status)
    assert [each["problem"] for each in (found["limiter"], *found["executors"])] == ["", ""]
