"""Many repositories at once: what starts when, what fails and why, and how a run that was killed goes on."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout.cli.data.repos import main
from rollout.data.repos import Checkout, FailureKind, Progress, RepoError, RepoStore, Want, fetch_all
from rollout.data.repos import store as repo_store
from tests.executor import repositories
from tests.executor.repositories import git

ROOT = Path(__file__).parents[3]
HANGS, DAMAGED, GONE = "o/r03", "o/r07", "o/r40"


async def test_a_source_that_comes_back_is_tried_again_and_one_that_lacks_a_commit_is_not(tmp_path: Path) -> None:
    origin, base = repositories.project(tmp_path / "origin")
    hidden = origin.rename(tmp_path / "hidden")
    asyncio.get_running_loop().call_later(0.5, hidden.rename, origin)
    said: list[Progress] = []
    wants = [Want("o/p", origin.as_uri(), base), Want("o/p", origin.as_uri(), "0" * 40)]
    found = await fetch_all(RepoStore(tmp_path / "store"), wants, report=said.append)
    assert isinstance(found[wants[0]], Checkout)
    assert isinstance(error := found[wants[1]], RepoError)
    assert error.kind is FailureKind.MISSING
    assert [(each.wanted, each.failures) for each in said] == [(2, (error,))]


async def test_few_repositories_are_worked_on_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once: list[int] = []
    running = 0

    async def fill(*_: object) -> None:
        nonlocal running
        running += 1
        at_once.append(running)
        await asyncio.sleep(0.01)
        running -= 1
        raise OSError("no")

    monkeypatch.setattr(RepoStore, "_fill", fill)
    monkeypatch.setattr(repo_store, "_BACKOFF_S", 0.001)
    wants = [Want(f"o/r{number}", "/srv") for number in range(10)]
    found = await fetch_all(RepoStore(tmp_path / "store", parallel=3), wants)
    assert {str(each) for each in found.values()} == {f"{want.repo}: no" for want in wants}
    assert (max(at_once), len(at_once)) == (3, 30)  # each is tried three times


@contextlib.contextmanager
def file_server(folder: Path) -> Iterator[str]:
    """Serves files: what git calls dumb HTTP."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


async def test_a_server_without_single_commits_gives_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    origin, base = repositories.project(tmp_path / "origin")
    git(origin, "update-server-info")
    store = RepoStore(tmp_path / "store", timeout_s=60)
    with file_server(tmp_path) as url:
        checkout = await store.make(Want("o/p", f"{url}/origin/.git", base))
        lost = Want("o/p", f"{url}/origin/.git", "0" * 40)
        with pytest.raises(RepoError, match="on any branch or tag"):
            await store.make(lost)
    assert checkout.commit == base
    assert git(checkout.path, "rev-list", "--count", base) == "2"


def processes(word: Path) -> list[str]:
    """Command lines of git processes that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found += [line] if "git" in line and str(word) in line else []
    return found


async def test_a_source_that_hangs_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    origin, base = repositories.project(tmp_path / "origin")
    hang(origin)
    store = RepoStore(tmp_path / "store", timeout_s=2)
    with pytest.raises(RepoError, match="not done after 2 s") as caught:
        await store.make(Want("o/p", origin.as_uri(), base))
    assert caught.value.kind is FailureKind.SOURCE
    async with asyncio.timeout(30):
        while processes(origin):
            await asyncio.sleep(0.05)


def hang(origin: Path) -> None:
    (origin / ".git" / "HEAD").unlink()
    os.mkfifo(origin / ".git" / "HEAD")


def let_go(origin: Path) -> None:
    """Ends a git that waits for somebody to write: one whose parent was killed."""
    with contextlib.suppress(OSError):
        os.close(os.open(origin / ".git" / "HEAD", os.O_WRONLY | os.O_NONBLOCK))


def many(folder: Path, count: int) -> tuple[list[dict[str, str]], str]:
    """Origins `folder`/o/rNN of one commit, one of which hangs, and one damaged; and the rows that need them."""
    first, base = repositories.project(folder / "first")
    for number in range(count):
        shutil.copytree(first, folder / "o" / f"r{number:02}", symlinks=True)
    hang(folder / HANGS)
    blob = git(folder / DAMAGED, "rev-parse", f"{base}:data.bin")
    path = folder / DAMAGED / ".git" / "objects" / blob[:2] / blob[2:]
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    rows = [{"instance_id": f"i{n}", "repo": f"o/r{n:02}", "base_commit": base, "patch": ""} for n in range(count)]
    return rows, base


DIES = """
import os, signal, sys
from rollout.cli.data import repos

def said(progress, count, say=repos._say):
    say(progress, count)
    if count.startswith("[12/"):
        os.kill(os.getpid(), signal.SIGKILL)

repos._say = said
sys.exit(repos.main(sys.argv[1:]))
"""
"""The command, killed when twelve repositories are done."""


def test_fifty_repositories_of_which_some_are_bad_and_a_run_that_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout.data.repos.store._ATTEMPTS", 2)
    rows, base = many(tmp_path / "origins", 50)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = (tmp_path / "origins").as_uri() + "/{repo}"
    words = [f"rows={tmp_path / 'rows.jsonl'}", f"out={tmp_path / 'store'}", f"source={source}"]
    command = [sys.executable, "-c", DIES, *words, "parallel=4"]
    killed = subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL, timeout=200, check=False)
    assert killed.returncode == -signal.SIGKILL
    let_go(tmp_path / "origins" / HANGS)
    mirrors = tmp_path / "store" / "mirrors"
    before = {path: path.stat().st_mtime_ns for path in mirrors.glob("*/*.git/objects/pack/*.pack")}
    assert 11 <= len(before) < 48
    shutil.rmtree(tmp_path / "origins" / GONE)
    assert main([*words, "parallel=8", "timeout_s=6"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("47 of 50 rows ready: 50 repositories")
    for repo, reason in ((HANGS, "source: "), (DAMAGED, "source: "), (GONE, "source: ")):
        assert f"  {repo} ({base[:12]}): {reason}" in out
    assert out.count("\n") == 4
    assert "[50/50]" in err
    assert {path: path.stat().st_mtime_ns for path in before} == before  # nothing was fetched twice
    store = RepoStore(tmp_path / "store")
    ready = [store.find(Want(str(row["repo"]), source.replace("{repo}", str(row["repo"])), base)) for row in rows]
    assert sum(checkout is not None for checkout in ready) == 47
    for checkout in ready:
        if checkout is not None:
            git(checkout.path, "fsck", "--connectivity-only", checkout.commit)


def test_what_a_killed_fetch_has_left_in_a_repository_is_not_in_the_way(tmp_path: Path) -> None:
    origin, base = repositories.project(tmp_path / "origin")
    earlier = git(origin, "rev-parse", f"{base}~1")
    store = RepoStore(tmp_path / "store", timeout_s=60)
    checkout = asyncio.run(store.make(Want("o/p", origin.as_uri(), base)))
    # A marker without the objects it speaks of would be believed; a commit without a marker is not.
    git(checkout.path, "update-ref", "-d", f"refs/fairbox/wants/{Want('o/p', 'x', base).digest()}")
    for name in ("shallow.lock", f"refs/fairbox/fetched/{earlier}.lock", "packed-refs.lock", "objects/pack/tmp_pack_x"):
        (checkout.path / name).write_bytes(b"")
    assert store.find(Want("o/p", origin.as_uri(), base)) is None
    again = asyncio.run(store.make_all("o/p", [Want("o/p", origin.as_uri(), each) for each in (base, earlier)]))
    assert all(isinstance(each, Checkout) for each in again.values()), again
    assert not list(checkout.path.rglob("tmp_*"))


async def test_two_processes_fetch_a_repository_once(tmp_path: Path) -> None:
    """Two stores of one folder are to each other what two processes are: the lock is all that they share."""
    origin, base = repositories.project(tmp_path / "origin")
    want = Want("o/p", origin.as_uri(), base)
    stores = [RepoStore(tmp_path / "store") for _ in range(4)]
    checkouts = await asyncio.gather(*(store.make(want) for store in stores))
    assert len(set(checkouts)) == 1
    assert len(list(checkouts[0].path.glob("objects/pack/*.pack"))) == 1


def test_bad_rows_are_named_before_anything_is_fetched(tmp_path: Path) -> None:
    from rollout.data import DataError

    good = {"repo": "o/p", "base_commit": "a" * 40}
    bad = [good, good | {"base_commit": "main"}, [1], {"base_commit": None}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in bad))
    with pytest.raises(DataError) as caught:
        main([f"rows={tmp_path / 'rows.jsonl'}", f"out={tmp_path / 'store'}", "source=/srv/{repo}"])
    lines = str(caught.value).splitlines()
    assert [line.removeprefix(f"{tmp_path}/")[:40] for line in lines] == [
        "rows.jsonl:2: base_commit is 'main', mus",
        "rows.jsonl:3: is no object",
        "rows.jsonl:4: repo is None, must be a te",
    ]
    assert not (tmp_path / "store").exists()
    with pytest.raises(Exception, match="may have of names in braces only"):
        main([f"rows={tmp_path / 'rows.jsonl'}", f"out={tmp_path / 'store'}", "source=/srv/{rep}"])


async def test_a_commit_whose_files_are_not_all_there_is_never_marked(tmp_path: Path) -> None:
    origin, base = repositories.project(tmp_path / "origin")
    store = RepoStore(tmp_path / "store", timeout_s=60)
    want = Want("o/p", origin.as_uri(), base)
    checkout = await store.make(want)
    (pack,) = checkout.path.glob("objects/pack/*.pack")
    blob = git(checkout.path, "rev-parse", f"{base}:data.bin")
    data = pack.read_bytes()
    for path in checkout.path.glob("objects/pack/*"):
        path.unlink()
    git(checkout.path, "unpack-objects", "-q", stdin=data)
    (checkout.path / "objects" / blob[:2] / blob[2:]).unlink()
    git(checkout.path, "update-ref", "-d", f"refs/fairbox/wants/{want.digest()}")
    with pytest.raises(RepoError, match=r"missing blob|is not whole"):  # git's own word, or ours
        await store.make(want)
    assert store.find(want) is None
