"""Pages of runs that go on, and whom they are served to."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollout.page import live as module
from rollout.page import write_page
from tests.rollout.page.conftest import write_dump
from tests.rollout.page.test_figures import results

ROOT = Path(__file__).parents[3]


@contextlib.contextmanager
def served(run: Path) -> Iterator[str]:
    """Address of the page of a run, which `fairbox view` serves."""
    words = [sys.executable, "-m", "rollout.cli", "view", "--web", str(run)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().partition(" ")[0]
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()


def answer(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_run_without_steps_is_waited_for_and_other_sites_get_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        status, text = answer(url)
        assert (status, "has no steps yet" in text) == (503, True)
        write_dump(tmp_path, *results(), step=1)
        status, text = answer(url)
        assert (status, "connect-src 'self'" in text) == (200, True)
        assert answer(url, Host="evil.example")[0] == 403
        assert answer(url, Host="evil.example:80")[0] == 403
        for path in ("1/../../etc/passwd", "1/report-parts/..%2f..%2fpasswd", "x/report.html", "stamp/1"):
            assert answer(url + path)[0] == 404
        assert answer(f"{url}99/report.html")[0] == 200  # the newest


async def test_pages_that_are_open_keep_their_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollout.page.writer.MAX_INLINE", 0)
    run, folder = tmp_path / "run", tmp_path / "written"
    run.mkdir()
    folder.mkdir()
    async with module.LivePage(run, folder, listen="127.0.0.1:0", tokenizer=None) as live:
        for step in range(1, 8):
            write_dump(run, *results(), step=step)
            live._rest_until = 0.0
            status, _ = await asyncio.to_thread(answer, live.address)
            assert status == 200
        kept = sorted(int(each.name) for each in folder.iterdir())
        assert kept == [4, 5, 6, 7]
        for number in kept:
            assert (await asyncio.to_thread(answer, f"{live.address}{number}/report-parts/0.js"))[0] == 200
        write_dump(run, *results(), step=8)
        live._rest_until = live._clock.now() + 60
        await asyncio.to_thread(answer, live.address)
        assert sorted(int(each.name) for each in folder.iterdir()) == kept  # it has just written one


async def test_who_goes_away_while_a_page_is_written_is_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on, writing = threading.Event(), threading.Event(), write_page

    def slow(*args: Any, **options: Any) -> Path:
        begun.set()
        assert goes_on.wait(60)
        return writing(*args, **options)

    monkeypatch.setattr(module, "write_page", slow)
    run, folder = tmp_path / "run", tmp_path / "written"
    folder.mkdir()
    write_dump(run, *results(), step=1)
    async with module.LivePage(run, folder, listen="127.0.0.1:0", tokenizer=None) as live:
        host, port = live.address[7:-1].split(":")
        _, gone = await asyncio.open_connection(host, int(port))
        gone.write(f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        await asyncio.to_thread(begun.wait, 60)
        gone.transport.abort()
        asking = asyncio.create_task(asyncio.to_thread(answer, live.address))
        await asyncio.sleep(0.2)
        goes_on.set()
        assert (await asking)[0] == 200
        assert [each.name for each in folder.iterdir()] == ["1"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["web=true", "filter=score>0"], "filter is set, which has no meaning with web"),
        (["listen=127.0.0.1:1"], "listen is set, which has no meaning without web"),
        (["web=true", "listen=0.0.0.0:0"], "listen is '0.0.0.0:0', must be loopback: the page has no password"),
    ],
)
def test_what_can_not_be_served_is_one_sentence(tmp_path: Path, words: list[str], sentence: str) -> None:
    command = [sys.executable, "-m", "rollout.cli", "view", str(tmp_path), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    assert done.stderr == f"fairbox view: {sentence}\n"
