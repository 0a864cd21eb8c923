"""`fairbox up`: three doors under one limit, and a sentence for each that can't be had."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from executor_service import Executor
from limiter.v1 import limiter_pb2, limiter_pb2_grpc
from rollout.stack import StackPorts
from tests.e2e.conftest import Service, children, ports_as_settings, start, stop, until_gone
from tests.executor.servers import each_ended, wait_for

COMMAND = ("rollout.cli", "rollout.cli.up")


@pytest.fixture(scope="module")
def anywhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, str]]:
    """One that may choose its ports, also beyond loopback, and has a gateway, for one program at a time; where it says
    that this is."""
    settings = [f"{name}=127.0.0.1:0" for name in ("limiter", "gateway")]
    settings += ["executor=0.0.0.0:0", "insecure=true", "max_in_flight=1"]
    with up(tmp_path_factory.mktemp("anywhere"), *settings) as (service, said):
        words = said.replace(",", "").replace(";", "").split()
        executor = words[words.index("executor") + 2].replace("0.0.0.0", "127.0.0.1")
        (gateway,) = (word for word in words if word.startswith("http://"))
        yield replace(service, ports=replace(service.ports, executor=executor, gateway=gateway)), said


@contextmanager
def up(folder: Path, *settings: str) -> Iterator[tuple[Service, str]]:
    """A running one, and what it says that it is."""
    running = start(folder, *settings)
    try:
        yield running, next(line for line in (folder / "up.log").read_text().splitlines() if "Ctrl-C" in line)
    finally:
        assert stop(running) == 130


def asked(url: str, code: str) -> dict[str, object]:
    body = json.dumps({"code": code, "language": "python"}).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, object] = json.load(answer)["run_result"]
    return found


@contextmanager
def taken() -> Iterator[str]:
    """An address on which somebody else listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield f"127.0.0.1:{other.getsockname()[1]}"


def held(service: Service) -> int:
    with grpc.insecure_channel(service.ports.limiter_admin) as channel:
        stub = limiter_pb2_grpc.LimiterAdminServiceStub(channel)
        return int(stub.GetStatus(limiter_pb2.GetStatusRequest(), timeout=10).buckets[0].held)


def test_the_door_for_sandboxfusions_clients_is_under_the_same_limit(anywhere: tuple[Service, str]) -> None:
    service, _ = anywhere
    url = service.ports.gateway
    assert url.endswith("/run_code")
    assert asked(url, "print(6 * 7)")["stdout"] == "42\n"
    ended: list[str] = []
    with Executor(service.ports.executor) as box:
        code = "import time; time.sleep(2); print(time.monotonic())"
        first = threading.Thread(target=lambda: ended.append(box.run(code).stdout.text))
        wait_for(lambda: held(service) == 0)  # an answer may come before its lease is given back
        first.start()
        wait_for(lambda: held(service) == 1)
        began = asked(url, "import time; print(time.monotonic())")["stdout"]
        first.join()
    assert float(str(began)) > float(ended[0])


def test_programs_see_the_packages_of_the_environment_that_it_was_started_in(
    anywhere: tuple[Service, str], tmp_path: Path
) -> None:
    with Executor(anywhere[0].ports.executor) as box:
        assert box.run("import sys, grpc; print(sys.prefix)").stdout.text == f"{sys.prefix}\n"
    with up(tmp_path, "python=/usr/bin/python3") as (service, _), Executor(service.ports.executor) as box:
        assert box.run("import sys; print(sys.prefix)").stdout.text == "/usr\n"


def test_an_environment_that_only_its_owner_reads_is_told_of(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("programs of an ordinary user are that user's")
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=120)
    environment.chmod(0o700)
    program = "import sys; from rollout.stack import own_python; print(*own_python(), sep='\\n')"
    words = [str(environment / "bin" / "python"), "-c", program]
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True, env={"PYTHONPATH": paths})
    python, sentence = done.stdout.splitlines()
    assert python == os.path.realpath(sys.executable)
    assert sentence.startswith(f"programs see no packages of {environment}: only its owner may read")


def test_beyond_loopback_it_listens_where_somebody_says_that_this_is_meant(anywhere: tuple[Service, str]) -> None:
    """On a free port, which is said."""
    service, said = anywhere
    port = service.ports.executor.rpartition(":")[2]
    assert port != "0"
    assert f"executor on 0.0.0.0:{port}" in said
    with Executor(service.ports.executor) as box:
        assert box.run("print(1)").stdout.text == "1\n"


def test_a_port_that_is_taken_is_one_sentence_before_anything_starts() -> None:
    names = ("limiter", "executor", "gateway")
    with taken() as address:
        free = StackPorts.free()
        ended = each_ended((["up", *ports_as_settings(replace(free, **{name: address}))] for name in names), *COMMAND)
    for name, done in zip(names, ended, strict=True):
        assert done.code == 1
        assert done.err.startswith(f"fairbox up: {name}: can't listen on {address}: Address already in use"), done.err
        assert done.err.count("\n") == 1
        if name != "gateway":
            assert f"`fairbox status` tells. {name}=127.0.0.1:0 takes a free port" in done.err


def test_a_setting_that_can_not_be_is_named() -> None:
    settings = {
        "isolation=none": "isolation is 'none', must be one of: auto, namespaces, landlock",
        "executor=0.0.0.0:50051": "executor is '0.0.0.0:50051', which is not loopback",
        "gateway=8080": "gateway is '8080', must be HOST:PORT",
        "python=/nonexistent/python": "python is '/nonexistent/python', which does not run as a Python interpreter",
    }
    ports = ports_as_settings(StackPorts.free())
    for sentence, done in zip(
        settings.values(), each_ended((["up", *ports, setting] for setting in settings), *COMMAND), strict=True
    ):
        assert done.code in (1, 2)
        assert sentence in done.err
        assert "Traceback" not in done.err


def test_without_the_extra_there_is_no_gateway_and_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rollout.cli.up import UpConfig

    monkeypatch.setitem(sys.modules, "aiohttp", None)
    settings = dict(word.split("=") for word in ports_as_settings(StackPorts.free()))
    del settings["gateway"]
    ports, problem = UpConfig(**settings).ports()  # type: ignore[arg-type]
    assert ports.gateway == ""
    assert problem == "gateway needs aiohttp: run `pip install 'fairbox[gateway]'`"


def test_ctrl_c_ends_everything(anywhere: tuple[Service, str]) -> None:
    """It ends what the tests above have used."""
    service, _ = anywhere
    below = children(service.process.pid)
    assert len(below) >= 2
    assert stop(service) == 130
    until_gone(below)
    assert " INFO " not in service.log.read_text()
