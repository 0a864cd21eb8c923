"""Ports that are free, and stay so while connections come and go."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fairbox.net import ports


def test_they_differ_and_can_be_bound() -> None:
    found = ports.free_ports(20)
    assert len(set(found)) == 20
    for port in found:
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))


def test_whoever_asks_again_gets_another() -> None:
    assert len({ports.free_port() for _ in range(400)}) == 400


@pytest.mark.parametrize("first", [10_003, 10_040])
def test_where_there_are_few_they_come_again(first: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = tmp_path / "range"
    told.write_text(f"{first} 60999\n")
    monkeypatch.setattr(ports, "_RANGE", told)
    monkeypatch.setattr(ports, "_claim", lambda port: True)  # so few may be those of another suite on this machine
    assert all(10_000 <= ports.free_port() < first for _ in range(200))


def test_no_connection_gets_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = tmp_path / "range"
    told.write_text("32768\t60999\n")
    monkeypatch.setattr(ports, "_RANGE", told)
    assert all(10_000 <= port < 32_768 for port in ports.free_ports(20))


@pytest.mark.parametrize("text", ["1024 65535", "", None])
def test_where_the_kernel_takes_them_all_or_says_nothing_it_gives_one(
    text: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = tmp_path / "range"
    if text is not None:
        told.write_text(text)
    monkeypatch.setattr(ports, "_RANGE", told)
    assert ports.free_port() > 0


def test_one_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr("fairbox.net.ports.random.choice", lambda _: taken.getsockname()[1])
        with pytest.raises(OSError, match="no 1 free ports"):
            ports.free_port()


def test_no_other_process_is_given_one_whose_server_has_yet_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from fairbox.net.ports import free_port; print(free_port(), flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout
        theirs = int(other.stdout.readline())
        monkeypatch.setattr("fairbox.net.ports.random.choice", lambda _: theirs)
        monkeypatch.setattr(ports, "_given", ports._given.__class__())  # tests before may have been given theirs
        with pytest.raises(OSError, match="no 1 free ports"):
            ports.free_port()
        other.communicate("\n", timeout=30)
        assert ports.free_port() == theirs


def test_what_it_keeps_is_bounded() -> None:
    ports.free_ports(50)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(200):
        ports.free_port()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 14
