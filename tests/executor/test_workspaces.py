"""Workspaces end to end: a real server, real repositories, programs that work in them."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor_service import (
    ExecutionResult,
    ExecutorClient,
    ExecutorUnavailable,
    InvalidRequest,
    Limits,
    NotFound,
    Outcome,
    Program,
    StdioCase,
)
from fairbox.net.ports import free_port
from tests.executor.repositories import SECRET, bundle, commit, git, kept, new, project, shell
from tests.executor.servers import Server, each_refused, running, sandbox_mounts, wait_for

pytestmark = [
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]
BUGGY = b"def add(a, b):\n    return a - b\n"


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("roots")


@pytest.fixture(scope="module")
def repository(roots: Path) -> tuple[Path, str]:
    return project(roots / "project")


@pytest.fixture(scope="module")
def server(roots: Path) -> Iterator[Server]:
    with running("max_concurrent=4", f"workspace_roots=[{roots}]", f"workspace_dir={roots}.store") as started:
        yield started


async def output(executor: ExecutorClient, workspace_id: str, *lines: str) -> str:
    result = await executor.execute(shell(*lines), workspace_id=workspace_id)
    assert result.outcome is Outcome.FINISHED, (result.message, result.stderr.text)
    return result.stdout.text


async def test_the_files_are_those_of_the_commit(executor: ExecutorClient, repository: tuple[Path, str]) -> None:
    folder, base = repository
    workspace = await executor.prepare_workspace(local_path=str(folder), commit=base)
    assert (workspace.commit, workspace.cached) == (base, False)
    assert workspace.size_bytes == len(BUGGY) + 256 + len("#!/bin/sh\necho ran\n") + len("src/add.py")
    found = await output(
        executor, workspace.workspace_id, "ls -A", "cat src/add.py", "readlink link", "./run.sh", "md5sum < data.bin"
    )
    assert found.split("\n")[:5] == [".git", "data.bin", "link", "run.sh", "src"]
    assert BUGGY.decode() in found
    assert "src/add.py\nran\n" in found
    assert "e2c865db4162bed963bfaa9ef6ac18f0" in found


async def test_there_is_no_history_and_no_answer(executor: ExecutorClient, repository: tuple[Path, str]) -> None:
    folder, base = repository
    workspace = await executor.prepare_workspace(local_path=str(folder), commit=base)
    found = await output(
        executor,
        workspace.workspace_id,
        "git log --all --format='%an: %s'",
        "git rev-list --all --objects | wc -l",
        "git for-each-ref",
        "git status --short",
        "git remote",
        "git stash list",
        "git fsck --lost-found --no-progress",
        f"for o in $(git cat-file --batch-all-objects --batch-check='%(objectname)'); do git cat-file -p $o; done"
        f" | grep -a -c {SECRET}",
        f"grep -r {SECRET} . | wc -l",
        "git cat-file -e " + git(folder, "rev-parse", "main") + " || echo unknown",
    )
    lines = found.splitlines()
    assert lines[0] == "fairbox: workspace"
    assert lines[1] == "7"  # a commit, two trees, four files
    assert lines[2].endswith("refs/heads/main")
    assert lines[3:5] == ["0", "0"]
    assert lines[-1] == "unknown"


async def test_each_run_has_its_own_copy(executor: ExecutorClient, repository: tuple[Path, str]) -> None:
    folder, base = repository
    name = (await executor.prepare_workspace(local_path=str(folder), commit=base)).workspace_id
    write = Program(
        code=shell("ls", "echo mine >> src/add.py", "rm -r data.bin .git", "mkdir .git", "sleep 1", "ls -A"),
        workspace_id=name,
    )
    items = await executor.execute_all([write] * 4)
    assert {item.stdout.text for item in items if isinstance(item, ExecutionResult)} == {
        "data.bin\nlink\nrun.sh\nsrc\n.git\nlink\nrun.sh\nsrc\n"
    }
    assert await output(executor, name, "cat src/add.py", "git status --short") == BUGGY.decode()


async def test_nothing_of_a_workspace_is_left_for_the_next_run(
    executor: ExecutorClient, server: Server, repository: tuple[Path, str]
) -> None:
    folder, base = repository
    workspace = await executor.prepare_workspace(local_path=str(folder), commit=base, mount_path="/somewhere/deep")
    for _ in range(6):
        found = await executor.execute(
            "import os; print(os.listdir('/somewhere/deep'))", workspace_id=workspace.workspace_id
        )
        assert "src" in found.stdout.text
        code = "import os; print(os.path.exists('/somewhere'), open('/proc/self/mountinfo').read().count(' overlay '))"
        assert (await executor.execute(code)).stdout.text == "False 0\n"


async def test_other_workspaces_can_not_be_reached(
    executor: ExecutorClient, roots: Path, repository: tuple[Path, str]
) -> None:
    folder, base = repository
    other = new(roots / "other")
    hidden = commit(other, "other", {"other.txt": b"needle-9173"})
    await executor.prepare_workspace(local_path=str(other), commit=hidden)
    mine = await executor.prepare_workspace(local_path=str(folder), commit=base)
    code = """
import os
def walk(top):
    for folder, folders, files in os.walk(top):
        if folder.startswith(('/usr', '/proc/sys')): folders.clear()
        for name in files:
            if name in ('other.txt', 'facts.json'): print('found', folder, name)
walk('/')
for fd in os.listdir('/proc/self/fd'): print(fd, end=' ')
print(os.path.exists('/proc/0/'), os.path.exists('/proc/1/fd/3'))
"""
    result = await executor.execute(code, workspace_id=mine.workspace_id)
    assert "found" not in result.stdout.text
    assert result.stdout.text.endswith("False False\n")


async def test_writes_count_against_the_disk_limit(executor: ExecutorClient, repository: tuple[Path, str]) -> None:
    folder, base = repository
    name = (await executor.prepare_workspace(local_path=str(folder), commit=base)).workspace_id
    code = "f = open('/testbed/big', 'wb')\nfor _ in range(64): f.write(b'x' * (1 << 20))\n"
    result = await executor.execute(code, workspace_id=name, limits=Limits(disk_bytes=16 << 20))
    assert (result.outcome, "No space left" in result.stderr.text) == (Outcome.NONZERO_EXIT, True)


@pytest.mark.parametrize("name", ["main", "v1", "HEAD", "refs/tags/v1", "short"])
async def test_a_commit_may_be_named_in_many_ways(
    executor: ExecutorClient, repository: tuple[Path, str], name: str
) -> None:
    folder, base = repository
    asked = base[:10] if name == "short" else name
    workspace = await executor.prepare_workspace(local_path=str(folder), commit=asked)
    assert workspace.commit == (base if name in ("short", "v1", "refs/tags/v1") else git(folder, "rev-parse", "main"))


async def test_a_bundle_gives_the_same_files(executor: ExecutorClient, repository: tuple[Path, str]) -> None:
    folder, base = repository
    whole = bundle(folder)
    first = await executor.prepare_workspace(bundle=whole, commit="v1", mount_path="/bundled")
    assert (first.commit, first.cached) == (base, False)
    for commit_name in (base, base[:10], "v1"):
        again = await executor.prepare_workspace(bundle=whole, commit=commit_name, mount_path="/bundled")
        assert (again.workspace_id, again.commit, again.cached) == (first.workspace_id, base, True)
    local = await executor.prepare_workspace(local_path=str(folder), commit=base)
    tell = "git rev-parse HEAD; git status --short; find . -mindepth 1 ! -path './.git*' -printf '%p %m %T@\\n' | sort"
    found = [
        await executor.execute(f"cd $FAIRBOX_WORKSPACE; {tell}", language="bash", workspace_id=each.workspace_id)
        for each in (first, local)
    ]
    assert found[0].stdout.text == found[1].stdout.text
    assert "./run.sh 777 1714564800.0" in found[0].stdout.text


async def test_what_is_there_answers_only_who_brings_the_content(
    executor: ExecutorClient, repository: tuple[Path, str], roots: Path
) -> None:
    """The hash of a commit is no secret: in a bundle that does not have it, it opens nothing."""
    folder, base = repository
    await executor.prepare_workspace(local_path=str(folder), commit=base)
    await executor.prepare_workspace(bundle=bundle(folder), commit=base)
    other = new(roots / "without")
    commit(other, "other", {"other.txt": b"x"})
    for junk, field in ((b"junk", "bundle"), (bundle(other), "commit")):
        with pytest.raises(InvalidRequest) as caught:
            await executor.prepare_workspace(bundle=junk, commit=base)
        assert [each.field for each in caught.value.fields] == [field]
    with pytest.raises(InvalidRequest, match="local_path"):
        await executor.prepare_workspace(local_path=str(roots / "nowhere"), commit=base)


async def test_an_id_is_its_tenants_alone(executor: ExecutorClient, repository: tuple[Path, str]) -> None:
    """To every other tenant it is like one that was never given, and preparing the same gives that one its own."""
    whole, base = bundle(repository[0]), repository[1]
    mine = (await executor.prepare_workspace(bundle=whole, commit=base, tenant="mine")).workspace_id
    theirs = await executor.prepare_workspace(bundle=whole, commit=base, tenant="theirs")
    assert (theirs.cached, theirs.workspace_id == mine) == (False, False)
    code, case = "print(open('/testbed/run.sh').read())", [StdioCase(stdin=b"", expected_stdout=b"1")]
    assert (await executor.execute(code, workspace_id=mine, tenant="mine")).outcome is Outcome.FINISHED
    for tenant in ("theirs", ""):
        words = set()
        for name in (mine, "ws-" + "0" * 32):
            program = Program(code=code, workspace_id=name, tenant=tenant)
            for attempt in (
                executor.execute(code, workspace_id=name, tenant=tenant),
                anext(executor.stream(program)),
                executor.session(workspace_id=name, tenant=tenant).__aenter__(),
                executor.verify(code, case, workspace_id=name, tenant=tenant),
            ):
                with pytest.raises(NotFound) as caught:
                    await attempt
                words.add(str(caught.value).replace(name, "ID"))
        assert len(words) == 1


SEARCH = """
import re
for line in open("/proc/self/maps"):
    ends, rights = line.split()[:2]
    start, end = (int(word, 16) for word in ends.split("-"))
    if "r" not in rights or "[v" in line: continue
    with open("/proc/self/mem", "rb", 0) as memory:
        memory.seek(start)
        try: data = memory.read(end - start)
        except OSError: continue
    for found in set(re.findall(b"ws-[0-9a-f]{32}", data)): print(found.decode())
"""


async def test_no_program_finds_the_id_of_an_earlier_one(
    executor: ExecutorClient, repository: tuple[Path, str]
) -> None:
    """Programs are forked from the init of their box, with all that it remembers."""
    folder, base = repository
    name = (await executor.prepare_workspace(local_path=str(folder), commit=base)).workspace_id
    for _ in range(6):
        await executor.execute("import re", workspace_id=name)  # by a worker of the same profile
        assert (await executor.execute(SEARCH)).stdout.text == ""


async def test_concurrent_preparations_are_one(executor: ExecutorClient, roots: Path) -> None:
    folder = new(roots / "many")
    base = commit(folder, "many", {f"d{i % 20}/f{i}": b"x" * 100 for i in range(2000)})
    found = await asyncio.gather(
        *(executor.prepare_workspace(local_path=str(folder), commit="main") for _ in range(10)),
        *(executor.prepare_workspace(local_path=str(folder), commit=base) for _ in range(10)),
    )
    assert len({workspace.workspace_id for workspace in found}) == 1
    result = await executor.execute(
        shell("git ls-files | wc -l", "git status --short"), workspace_id=found[0].workspace_id
    )
    assert result.stdout.text == "2000\n"


async def test_an_unknown_workspace_is_not_found(executor: ExecutorClient) -> None:
    with pytest.raises(NotFound, match="ws-unknown"):
        await executor.execute("1", workspace_id="ws-unknown")
    with pytest.raises(NotFound):
        await anext(executor.stream(Program(code="1", workspace_id="ws-unknown")))
    [item] = await executor.execute_all([Program(code="1", workspace_id="ws-unknown")])
    assert isinstance(item, NotFound)


async def test_an_unused_workspace_goes_after_its_time_and_a_used_one_stays(roots: Path, tmp_path: Path) -> None:
    folder, base = project(roots / "idle")
    with running("max_concurrent=2", f"workspace_roots=[{roots}]", f"workspace_dir={tmp_path}") as server:
        async with ExecutorClient(server.target) as executor:
            workspace = await executor.prepare_workspace(local_path=str(folder), commit=base, idle_ttl_s=1.5)
            name = workspace.workspace_id
            code = "import os, time; time.sleep(4); print(len(os.listdir('/testbed')))"
            case = [StdioCase(stdin=b"", expected_stdout=b"1")]
            assert (await executor.verify("print(1)", case, workspace_id=name, request_id="graded")).all_passed
            assert (await executor.execute(code, workspace_id=name, request_id="idle")).stdout.text == "5\n"
            # A run would be a use, so the folder is looked at.
            await asyncio.to_thread(wait_for, lambda: not list((kept(tmp_path) / "ready").iterdir()))
            with pytest.raises(NotFound):
                await executor.execute("import re", workspace_id=name)  # by a worker of the same profile
            # What was run under it is answered from the table of ids.
            assert (await executor.execute(code, workspace_id=name, request_id="idle")).deduplicated
            assert (await executor.verify("print(1)", case, workspace_id=name, request_id="graded")).deduplicated
            again = await executor.prepare_workspace(local_path=str(folder), commit=base)
            assert (again.workspace_id == name, again.cached) == (False, False)


async def test_a_killed_server_leaves_no_mount_and_its_successor_what_was_finished(roots: Path, tmp_path: Path) -> None:
    folder, base = project(roots / "restart")
    settings = ("max_concurrent=1", f"workspace_roots=[{roots}]", f"workspace_dir={tmp_path}")
    with running(*settings) as server:
        async with ExecutorClient(server.target) as executor:
            name = (await executor.prepare_workspace(local_path=str(folder), commit=base)).workspace_id
            call = asyncio.create_task(executor.execute("import time; time.sleep(600)", workspace_id=name))
            await asyncio.to_thread(wait_for, lambda: server.status().running == 1)
            server.process.send_signal(signal.SIGKILL)
            with pytest.raises(ExecutorUnavailable):
                await call
        server.process.wait()
    assert not sandbox_mounts(1)
    (kept(tmp_path) / "making" / "99" / "tree").mkdir(parents=True)
    [whole] = (kept(tmp_path) / "ready").iterdir()
    (kept(tmp_path) / "ready" / "partial" / "tree").mkdir(parents=True)
    (kept(tmp_path) / "ready" / "other").mkdir()
    (kept(tmp_path) / "ready" / "other" / "facts.json").write_text(json.dumps({"workspace_id": name}))
    with running(*settings) as server:
        async with ExecutorClient(server.target) as executor:
            assert await output(executor, name, "cat src/add.py") == BUGGY.decode()
            assert (await executor.prepare_workspace(local_path=str(folder), commit=base)).cached
            assert list((kept(tmp_path) / "ready").iterdir()) == [whole]
            assert list((kept(tmp_path) / "making").iterdir()) == []


def test_two_servers_do_not_share_a_folder(server: Server, roots: Path) -> None:
    [said] = each_refused({f"workspace_dir={roots}.store": "another server uses"})
    assert "workspace_dir" in said


async def test_a_remote_is_fetched_where_it_is_allowed(roots: Path, tmp_path: Path) -> None:
    """A real server of git on loopback."""
    folder, base = project(roots / "served")
    port = free_port()
    words = [
        "git",
        "daemon",
        "--reuseaddr",
        "--listen=127.0.0.1",
        f"--port={port}",
        "--export-all",
        f"--base-path={roots}",
    ]
    daemon = await asyncio.create_subprocess_exec(*words, str(roots), stderr=subprocess.DEVNULL)
    url = f"git://127.0.0.1:{port}/served"
    try:
        await asyncio.to_thread(
            wait_for, lambda: subprocess.run(["git", "ls-remote", url], capture_output=True).returncode == 0
        )
        allowed = f"remotes=['git://127.0.0.1:{port}/']"
        with running("max_concurrent=1", allowed, f"workspace_dir={tmp_path}") as server:
            async with ExecutorClient(server.target) as executor:
                workspace = await executor.prepare_workspace(remote_url=url, commit="v1")
                assert workspace.commit == base
                assert await output(executor, workspace.workspace_id, "cat src/add.py") == BUGGY.decode()
                head = await executor.prepare_workspace(remote_url=url, commit=git(folder, "rev-parse", "main"))
                assert SECRET in await output(executor, head.workspace_id, "cat src/add.py")
                with pytest.raises(ExecutorUnavailable, match="nowhere"):
                    await executor.prepare_workspace(remote_url=f"{url}-nowhere", commit="main")
                with pytest.raises(InvalidRequest, match="must begin with git:"):
                    await executor.prepare_workspace(remote_url="git://localhost/served", commit="main")
    finally:
        daemon.terminate()
        await daemon.wait()
