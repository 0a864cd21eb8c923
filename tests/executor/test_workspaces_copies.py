"""Workspaces where nothing can be mounted: private copies, bounded, never charged to a program, gone after the use."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from executor_service import ExecutorClient, Limits, Outcome, WorkspaceTooLarge
from executor_service.guest.walls import copies, landlock
from executor_service.v1 import executor_pb2 as pb
from executor_service.v1 import executor_pb2_grpc
from tests.executor.levels import LEVELS, Level
from tests.executor.repositories import bundle, commit, kept, new, project
from tests.executor.servers import Server, wait_for

pytestmark = [
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
    pytest.mark.skipif(not landlock.abi(), reason="the level landlock is not offered here"),
]
FOLDER = "import os; folder = os.environ['FAIRBOX_WORKSPACE']\n"
MOST = 4 << 20


@pytest.fixture(scope="module", params=[level for level in LEVELS if level.landlock], ids=str)
def level(request: pytest.FixtureRequest) -> Level:
    found: Level = request.param
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of the workspaces, usable by servers of any user; pytest's own folders are private."""
    path = Path("/tmp") / f"fairbox-store-{os.urandom(8).hex()}"
    path.mkdir()
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def server(level: Level, folder: Path) -> Iterator[Server]:
    (folder / f"roots-{level}").mkdir(mode=0o755)
    roots = f"workspace_roots=[{folder}/roots-{level}]"
    settings = (f"workspace_dir={folder}/{level}", f"workspace_copy_bytes={MOST}", roots)
    with level.running("max_concurrent=2", *settings) as started:
        yield started


@pytest.fixture
def store(folder: Path, level: Level) -> Path:
    return kept(folder / str(level))


async def prepared(executor: ExecutorClient, path: Path, files: dict[str, bytes]) -> str:
    base = commit(new(path), "files", files)
    return (await executor.prepare_workspace(bundle=bundle(path), commit=base)).workspace_id


def facts(top: Path) -> dict[str, tuple[int, ...]]:
    """Facts about a store that must not change."""
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(top.rglob("*")):
        status = path.lstat()
        found[str(path)] = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_nlink, status.st_uid)
    return found


async def test_no_program_can_change_the_store(executor: ExecutorClient, store: Path, tmp_path: Path) -> None:
    name = await prepared(executor, tmp_path / "r", {"a": b"kept", "d/b": b"kept", "run.sh": b"echo"})
    before = facts(store / "ready")
    code = f"""
{FOLDER}import shutil
tree = {str(store / "ready" / name / "tree")!r}
def attempt(what):
    try: what()
    except OSError: return
    print('could', what)
attempt(lambda: open(tree + '/a').read())
attempt(lambda: open(tree + '/a', 'w'))
attempt(lambda: os.listdir(tree))
attempt(lambda: os.link(tree + '/a', folder + '/link'))
attempt(lambda: os.rename(folder + '/a', tree + '/a'))
open(folder + '/a', 'w').write('mine'); os.chmod(folder + '/run.sh', 0); os.utime(folder + '/d/b', (0, 0))
shutil.rmtree(folder + '/.git')
os.symlink(tree + '/a', folder + '/s')
attempt(lambda: open(folder + '/s'))
print('mode', oct(os.stat(folder + '/d/b').st_mode & 0o7000))
"""
    result = await executor.execute(code, workspace_id=name)
    assert (result.stdout.text, result.stderr.text) == ("mode 0o0\n", "")
    assert facts(store / "ready") == before


async def test_the_folder_that_holds_the_store_is_out_of_reach(
    executor: ExecutorClient, store: Path, level: Level, request: pytest.FixtureRequest
) -> None:
    if level.who == "user":
        request.applymarker(pytest.mark.xfail(reason="Landlock does not restrict chmod", strict=True))
    before = stat.S_IMODE(store.parent.stat().st_mode)
    result = await executor.execute(f"import os; os.chmod({str(store.parent)!r}, 0o755)")
    after = stat.S_IMODE(store.parent.stat().st_mode)
    store.parent.chmod(before)
    assert (result.exit_code, after) == (1, before)


def test_the_folder_of_the_store_has_a_name_that_can_not_be_guessed(store: Path) -> None:
    assert len(store.name) == len("store-") + 32
    assert stat.S_IMODE(store.stat().st_mode) == 0o700


async def test_the_copy_costs_the_program_nothing(executor: ExecutorClient, tmp_path: Path) -> None:
    name = await prepared(executor, tmp_path / "r", {f"d{n % 10}/{n}": b"x" for n in range(600)})
    code = f"{FOLDER}print(sum(len(files) for top, _, files in os.walk(folder) if '.git' not in top))"
    await executor.execute(code, workspace_id=name)
    plain = [await executor.execute("pass") for _ in range(5)]
    copied = [await executor.execute("pass", workspace_id=name) for _ in range(5)]
    setup_s = min(each.setup_time_s for each in copied)
    assert setup_s > min(each.setup_time_s for each in plain) + 0.01
    assert min(each.wall_time_s for each in copied) < setup_s
    assert min(each.cpu_time_s for each in copied) < max(0.02, 3 * min(each.cpu_time_s for each in plain))
    limits = Limits(wall_time_s=1, cpu_time_s=0.2)
    result = await executor.execute(code, workspace_id=name, limits=limits)
    assert (result.outcome, result.stdout.text) == (Outcome.FINISHED, "600\n")


async def test_too_large_a_workspace_is_refused_and_says_what_is_allowed(
    executor: ExecutorClient, server: Server, tmp_path: Path
) -> None:
    told = server.status().workspaces
    assert (told.max_copy_bytes, told.max_copy_entries) == (MOST, copies.MOST_ENTRIES)
    large = await prepared(executor, tmp_path / "large", {"big": os.urandom(MOST)})
    for call in (executor.execute("1", workspace_id=large), executor.create_session(workspace_id=large)):
        with pytest.raises(WorkspaceTooLarge, match=rf"at most {MOST} bytes .*workspace_copy_bytes.*limits.disk_bytes"):
            await call
    small = await prepared(executor, tmp_path / "small", {"some": b"x" * (1 << 20)})
    assert (await executor.execute("1", workspace_id=small)).outcome is Outcome.FINISHED
    with pytest.raises(WorkspaceTooLarge, match=f"at most {1 << 20} bytes"):
        await executor.execute("1", workspace_id=small, limits=Limits(disk_bytes=1 << 20))
    with grpc.insecure_channel(server.target) as channel:
        stub = executor_pb2_grpc.ExecutorServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ExecuteCode(pb.ExecuteCodeRequest(code="1", workspace_id=large), timeout=30)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_the_copy_goes_with_the_use(executor: ExecutorClient, server: Server, tmp_path: Path) -> None:
    name = await prepared(executor, tmp_path / "r", {"a": b"x"})
    for _ in range(3):
        said = await executor.execute(f"{FOLDER}print(folder)\nopen(folder + '/left', 'w')", workspace_id=name)
        path = Path(said.stdout.text.strip())
        await asyncio.to_thread(wait_for, lambda path=path: not path.parent.exists())
    async with executor.session(workspace_id=name) as session:
        path = Path((await session.run(f"{FOLDER}print(folder)")).stdout.text.strip())
        assert path.exists()
    await asyncio.to_thread(wait_for, lambda: not path.parent.exists())
    assert (await executor.execute(f"{FOLDER}print(os.listdir(folder))", workspace_id=name)).ok


async def test_a_killed_server_leaves_no_copy_and_its_successor_finds_the_workspace(
    level: Level, folder: Path, tmp_path: Path
) -> None:
    path, base = project(tmp_path / "r")
    settings = ("max_concurrent=1", f"workspace_dir={folder}/killed-{level}")
    with level.running(*settings) as server:
        async with ExecutorClient(server.target) as executor:
            name = (await executor.prepare_workspace(bundle=bundle(path), commit=base)).workspace_id
            said = await executor.create_session(workspace_id=name)
            cell = await executor.execute(f"{FOLDER}print(folder)", session_id=said.session_id)
            copy = Path(cell.stdout.text.strip())
            server.process.kill()
            server.process.wait()
        # Nor anything else, of the box that has read the bundle for instance.
        await asyncio.to_thread(wait_for, lambda: not list(copy.parents[1].iterdir()))
    with level.running(*settings) as server:
        async with ExecutorClient(server.target) as executor:
            assert (await executor.execute(f"{FOLDER}print(os.listdir(folder))", workspace_id=name)).ok


def _copied(source: Path, target: Path, most_bytes: int = 1 << 30) -> None:
    target.mkdir()
    order = {"path": ".", "target": "", "branches": False, "read_only": False, "most_bytes": most_bytes}
    copies.copy_apart(order, str(source), str(target), None)  # type: ignore[arg-type]


def test_a_copy_is_as_its_source_but_for_what_is_no_file(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "closed").mkdir(parents=True)
    (source / "closed" / "file").write_bytes(b"y" * 10_000)
    (source / "link").symlink_to("/etc/shadow")
    (source / "setuid").write_text("x")
    (source / "setuid").chmod(0o4755)
    (source / "name \udcff\n").write_text("x")
    os.mkfifo(source / "pipe")
    os.utime(source / "closed" / "file", ns=(5, 7))
    (source / "closed").chmod(0o500)
    os.utime(source / "closed", ns=(1, 3))
    _copied(source, tmp_path / "copy")
    copy = tmp_path / "copy"
    assert {path.name for path in copy.iterdir()} == {path.name for path in source.iterdir()} - {"pipe"}
    assert (copy / "closed" / "file").read_bytes() == b"y" * 10_000
    assert (copy / "link").readlink() == Path("/etc/shadow")
    assert stat.S_IMODE((copy / "setuid").stat().st_mode) == 0o755
    assert (copy / "closed").stat().st_mtime_ns == 3
    assert stat.S_IMODE((copy / "closed").stat().st_mode) == 0o500
    assert (copy / "closed" / "file").stat().st_mtime_ns == 7
    assert (copy / "closed" / "file").stat().st_ino != (source / "closed" / "file").stat().st_ino
    assert (source / "closed" / "file").stat().st_nlink == 1


def test_a_copy_is_bounded_in_bytes_and_depth(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    for number in range(3):
        (tmp_path / "files" / str(number)).write_bytes(b"x" * 4096)
    _copied(tmp_path / "files", tmp_path / "fits", 3 * 4096)
    with pytest.raises(OSError, match="File too large"):
        _copied(tmp_path / "files", tmp_path / "large", 3 * 4096 - 1)
    deep = tmp_path / "deep"
    deep.joinpath(*("d" for _ in range(300))).mkdir(parents=True)
    with pytest.raises(OSError, match="can't be copied"):
        _copied(deep, tmp_path / "shallow")
