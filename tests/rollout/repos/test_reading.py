"""Groups over prepared repositories: one preparation, one mount path, commands that only read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from executor_service import ExecutorClient
from executor_service.v1 import executor_pb2 as pb
from fairbox.errors import ConfigError
from rollout.data.repos import RepoStore, Want
from rollout.stack import LocalStack
from rollout.tools import InfraError, ToolCall, ToolOutcome
from rollout.tools.code import runner as code_runner
from rollout.tools.code.bash import BashConfig, BashTool
from rollout.tools.toolbox import Toolbox
from tests.executor import repositories
from tests.executor.repositories import SECRET
from tests.rollout.real_tasks import RealTask, real_tasks
from tests.rollout.services import executor_status, nothing_left

pytestmark = pytest.mark.asyncio(loop_scope="module")

AT_ONCE = 2
"""Preparations that an executor does at once."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RepoStore:
    return RepoStore(tmp_path_factory.mktemp("store"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(store: RepoStore) -> AsyncIterator[LocalStack]:
    executor = [f"workspace_roots=[{store.folder}]"]
    async with LocalStack(limiter_args=["buckets.code.max_in_flight=4"], executor_args=executor) as stack:
        yield stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tool(stack: LocalStack) -> AsyncIterator[BashTool]:
    config = BashConfig(read_only=True, default_timeout=20.0)
    async with BashTool(config, executor=stack.ports.executor, limiter=stack.ports.limiter) as tool:
        yield tool


async def counts(stack: LocalStack) -> pb.WorkspaceStatus:
    return (await executor_status(stack)).workspaces


async def run(tool: BashTool, trajectory_id: str, command: str) -> str:
    return (await tool.execute(trajectory_id, {"command": command})).text


@contextlib.asynccontextmanager
async def group(tool: BashTool, name: str, size: int, workspace: dict[str, Any]) -> AsyncIterator[list[str]]:
    """Trajectories over one workspace, begun at once as a runner does."""
    members = [f"{name}-{number}" for number in range(size)]
    await asyncio.gather(*(tool.create(member, workspace=workspace) for member in members))
    try:
        yield members
    finally:
        await asyncio.gather(*(tool.release(member) for member in members))


async def test_a_group_shares_one_preparation_and_one_path(stack: LocalStack, store: RepoStore, tool: BashTool) -> None:
    origin, base = repositories.project(store.folder / "origins" / "shared")
    checkout = await store.make(Want("ada/shared", str(origin), base))
    before = await counts(stack)
    async with group(tool, "one", 8, checkout.workspace()) as members:
        after = await counts(stack)
        assert after.prepared_total == before.prepared_total + 1
        seen = await asyncio.gather(*(run(tool, member, "pwd; git rev-parse HEAD; ls -lA; env") for member in members))
        assert len(set(seen)) == 1
        assert seen[0].startswith("/testbed\n")
        await asyncio.gather(*(run(tool, member, "cat src/add.py") for member in members))
        # A later group asks once a trajectory, and nothing is made or read again.
        async with group(tool, "two", 8, checkout.workspace()):
            later = await counts(stack)
        assert (later.prepared_total, later.entries) == (after.prepared_total, after.entries)
        assert later.hits_total == after.hits_total + 8
    await nothing_left(stack)


async def test_a_workspace_that_went_meanwhile_is_prepared_again(
    stack: LocalStack, store: RepoStore, tool: BashTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_runner, "_IDLE_TTL_S", 0.2)
    origin, _ = repositories.project(store.folder / "origins" / "gone")
    repositories.commit(origin, "another", {"other.txt": b"other"})
    checkout = await store.make(Want("ada/gone", str(origin)))
    expired = (await counts(stack)).expired_total
    async with group(tool, "gone", 1, checkout.workspace()) as (member,):
        async with asyncio.timeout(60):
            while (await counts(stack)).expired_total == expired:
                await asyncio.sleep(0.1)
        monkeypatch.undo()  # or the next one can go as well, before it is used
        assert await run(tool, member, "cat other.txt") == "other"


async def test_many_repositories_at_once_are_prepared_two_by_two_and_all_get_there(
    stack: LocalStack, store: RepoStore
) -> None:
    wants = []
    for number in range(12):
        folder = repositories.new(store.folder / "origins" / f"n{number}")
        repositories.commit(folder, "one", {"number.txt": str(number).encode()})
        wants.append(Want(f"ada/n{number}", str(folder)))
    checkouts = [await store.make(want) for want in wants]
    assert len({checkout.commit for checkout in checkouts}) == len(wants)
    before = await counts(stack)
    most = 0
    async with ExecutorClient(stack.ports.executor) as client, asyncio.timeout(90), asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(client.prepare_workspace(**checkout.workspace())) for checkout in checkouts * 3]
        while not all(call.done() for call in calls):
            most = max(most, preparations(stack.pid("executor_service")))
            await asyncio.sleep(0.01)
    assert 1 <= most <= AT_ONCE
    assert len({call.result().workspace_id for call in calls}) == len(wants)
    assert (await counts(stack)).prepared_total == before.prepared_total + len(wants)


def preparations(executor: int) -> int:
    """Programs of the executor that are making a workspace."""
    found = 0
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            found += parent == executor and b"prepare/bootstrap.py" in (path / "cmdline").read_bytes()
    return found


async def test_commands_that_write_fail_and_say_so(stack: LocalStack, store: RepoStore, tool: BashTool) -> None:
    assert tool.parallel
    origin, base = repositories.project(store.folder / "origins" / "reading")
    checkout = await store.make(Want("ada/reading", str(origin), base))
    async with group(tool, "reading", 1, checkout.workspace()) as (member,):
        commands = [
            "echo x > new",
            "rm -rf src",
            "sed -i s/-/+/ src/add.py",
            "cat",  # nobody will ever type anything
            "grep -rn 'a - b' src; find . -name '*.py' | head -1",
            "yes | head -c 1000000",
            "echo $((6 * 7)) > $TMPDIR/n; sort $TMPDIR/n",
        ]
        box = Toolbox([tool], max_parallel_calls=5)
        calls = [ToolCall("bash", {"command": command}, "") for command in commands]
        answers = await box.answer(member, calls, run=len(calls), time_limit_s=None)
        texts = [answer.text for answer in answers]
        for text in texts[:3]:
            assert "Read-only file system" in text or "Permission denied" in text
            assert text.endswith("[exit code 1]") or text.endswith("[exit code 4]")
        assert texts[3] == "[no output]"
        assert texts[4] == "src/add.py:2:    return a - b\n./src/add.py"
        assert answers[5].truncated
        assert "[... cut: 1000000 bytes in all ...]" in texts[5]
        assert texts[6] == "42"
        slow = await tool.execute(member, {"command": "sleep 60"}, time_limit_s=0.5)
        assert slow.outcome is ToolOutcome.TIME_LIMIT
        assert await run(tool, member, "cat src/add.py; ls") == (
            "def add(a, b):\n    return a - b\ndata.bin\nlink\nrun.sh\nsrc"
        )
    async with group(tool, "none", 1, checkout.workspace()), _without_workspace(tool) as member:
        assert await run(tool, member, "echo x > file; cat file") == "x"  # it has only its own folder
    await nothing_left(stack)


@contextlib.asynccontextmanager
async def _without_workspace(tool: BashTool) -> AsyncIterator[str]:
    await tool.create("without")
    try:
        yield "without"
    finally:
        await tool.release("without")


async def test_the_schema_tells_what_there_is_to_search_with(stack: LocalStack, tool: BashTool) -> None:
    description = tool.schema.description
    assert description.startswith("Runs a bash command in the read-only repository and returns its output.")
    programs = description.partition("Available programs: ")[2].removesuffix(".").split(", ")
    assert {"grep", "find", "git", "sed"} <= set(programs)
    for name in ("rg", "grep"):
        present = "there" in await run(tool, "schema", f"type -P {name} > /dev/null && echo there")
        assert present == (name in programs)
    async with BashTool(BashConfig(), executor=stack.ports.executor, limiter=stack.ports.limiter) as other:
        assert other.schema == BashTool.default_schema
    with pytest.raises(ConfigError, match=r"tool.read_only is true, which mode 'session' does not have"):
        BashTool(BashConfig(read_only=True, mode="session"))
    with pytest.raises(InfraError):
        async with BashTool(BashConfig(read_only=True, enable_global_rate_limit=False), executor="127.0.0.1:1"):
            pass


async def test_the_answer_is_in_no_object_of_the_workspace(store: RepoStore, tool: BashTool) -> None:
    """Uses real tasks, whose mirror also holds the sources before the bug."""
    search = (
        "for o in $(git cat-file --batch-all-objects --batch-check='%(objectname)'); do git cat-file -p $o; done"
        " | grep -a -c -F -e {line}; git log --all --format=%s; git reflog; git fsck --lost-found --no-progress"
    )
    tasks: list[RealTask] = await real_tasks(store, 2)
    for task in tasks:
        fixed = [line[1:].strip() for line in task.row["patch"].splitlines() if line[:1] == "-" and line[:3] != "---"]
        made = [line[1:].strip() for line in task.row["patch"].splitlines() if line[:1] != "-"]
        line = max((each for each in fixed if each not in made), key=len)
        quoted = "'" + line.replace("'", "'\\''") + "'"
        clean = await store.make(task.want.base)
        async with group(tool, "clean", 1, clean.workspace()) as (member,):
            assert int((await run(tool, member, search.format(line=quoted))).splitlines()[0]) > 0
        async with group(tool, "buggy", 1, task.checkout.workspace()) as (member,):
            assert (await run(tool, member, search.format(line=quoted))).splitlines() == ["0", "workspace"]


async def test_a_later_fix_is_in_the_repository_and_not_in_the_workspace(store: RepoStore, tool: BashTool) -> None:
    origin, base = repositories.project(store.folder / "origins" / "fixed")
    repositories.git(origin, "bundle", "create", "--quiet", str(store.folder / "fixed.bundle"), "--all")
    checkout = await store.make(Want("ada/fixed", str(store.folder / "fixed.bundle"), base))
    fix = repositories.git(origin, "rev-parse", "HEAD")
    assert SECRET in repositories.git(checkout.path, "log", "--max-count=1", "--format=%s", fix)
    async with group(tool, "fixed", 1, checkout.workspace()) as (member,):
        found = await run(tool, member, f"grep -r {SECRET} . ; git log --all --format=%s; git count-objects -v")
    assert SECRET not in found
    assert "\ngarbage: 0\n" in found
