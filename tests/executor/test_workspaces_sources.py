"""Repositories that try to do more than hold files: nothing of them is started, followed or fetched."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor_service import ExecutorClient, ExecutorError, InvalidRequest, Outcome
from tests.executor.repositories import SECRET, bundle, commit, git, kept, new, project, unfolding
from tests.executor.servers import Server, owner, processes_with, running, wait_for

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
MOST = 64 << 20


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("roots")


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A repository that no workspace may be made of."""
    folder = tmp_path_factory.mktemp("outside") / "private"
    new(folder)
    return folder, commit(folder, "private", {"secret.txt": SECRET.encode()})


@pytest.fixture(scope="module")
def server(roots: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    store = tmp_path_factory.mktemp("store")
    settings = (f"workspace_roots=[{roots}]", f"workspace_bytes={MOST}", f"workspace_dir={store}")
    with running("max_concurrent=2", *settings) as started:
        yield started
        wait_for(lambda: not list((kept(store) / "making").iterdir()))  # no preparation leaves anything behind


def trap(folder: Path) -> tuple[str, Path]:
    """A command that leaves a mark, and the mark."""
    mark = folder.parent / f"{folder.name}.mark"
    program = folder.parent / f"{folder.name}.sh"
    program.write_text(f"#!/bin/sh\ntouch {mark}\nexec cat\n")
    program.chmod(0o755)
    return str(program), mark


async def run(executor: ExecutorClient, workspace_id: str, code: str) -> str:
    result = await executor.execute(code, workspace_id=workspace_id)
    assert result.outcome is Outcome.FINISHED, (result.message, result.stderr.text)
    return result.stdout.text


async def test_no_command_of_the_repository_is_started(executor: ExecutorClient, roots: Path) -> None:
    folder, base = project(roots / "commands")
    command, mark = trap(folder)
    attributes = b"* filter=evil diff=evil text eol=crlf ident\n*.enc working-tree-encoding=UTF-16\n"
    commit(folder, "attributes", {"ident.txt": b"$Id$\nline\n", ".gitattributes": attributes})
    for name in ("post-checkout", "post-index-change", "reference-transaction", "pre-commit", "fsmonitor-watchman"):
        hook = folder / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        shutil.copy(command, hook)
    for key in (
        "core.fsmonitor",
        "core.sshCommand",
        "core.pager",
        "core.alternateRefsCommand",
        "core.askPass",
        "uploadpack.packObjectsHook",
        "gpg.program",
        "diff.external",
        "filter.evil.clean",
        "filter.evil.smudge",
        "filter.evil.process",
        "credential.helper",
        "remote.origin.uploadpack",
    ):
        git(folder, "config", key, command)
    git(folder, "config", "core.hooksPath", str(folder / ".git" / "hooks"))
    git(folder, "config", "filter.evil.required", "true")
    workspace = await executor.prepare_workspace(local_path=str(folder), commit="main")
    code = "import os; os.chdir('/testbed'); print(open('ident.txt', newline='').read().encode(), os.listdir('.git'))"
    found = await run(executor, workspace.workspace_id, code)
    assert "b'$Id$\\nline\\n'" in found
    assert "hooks" not in found
    assert base != workspace.commit
    assert not mark.exists()


async def test_missing_objects_are_not_fetched_from_where_the_repository_says(
    executor: ExecutorClient, roots: Path, outside: tuple[Path, str]
) -> None:
    """A partial clone names a repository, and a program, to get missing objects from."""
    folder, _ = project(roots / "partial")
    command, mark = trap(folder)
    gone = git(folder, "rev-parse", "main:src/add.py")
    (folder / ".git" / "objects" / gone[:2] / gone[2:]).unlink()
    for key, value in (
        ("extensions.partialClone", "origin"),
        ("core.repositoryFormatVersion", "1"),
        ("remote.origin.url", str(outside[0])),
        ("remote.origin.promisor", "true"),
        ("remote.origin.uploadpack", command),
    ):
        git(folder, "config", key, value)
    with pytest.raises(InvalidRequest, match="local_path git"):
        await executor.prepare_workspace(local_path=str(folder), commit="main")
    git(folder, "config", "remote.origin.url", f"ext::{command}")
    with pytest.raises(InvalidRequest, match="local_path git"):
        await executor.prepare_workspace(local_path=str(folder), commit="main")
    assert not mark.exists()


async def test_a_repository_outside_the_roots_is_refused(
    executor: ExecutorClient, roots: Path, outside: tuple[Path, str]
) -> None:
    private, base = outside
    (roots / "way-out").symlink_to(private)
    for path in (str(private), str(roots / "way-out"), f"{roots}/../{private.parent.name}/private", str(roots) + "x"):
        with pytest.raises(InvalidRequest) as caught:
            await executor.prepare_workspace(local_path=path, commit=base)
        assert [field.field for field in caught.value.fields] == ["local_path"]


@pytest.mark.parametrize(
    "trick", ["dotgit file", "dotgit link", "commondir", "alternates", "objects link", "pack link"]
)
async def test_a_git_folder_that_leads_out_of_the_roots_is_refused(
    executor: ExecutorClient, roots: Path, outside: tuple[Path, str], trick: str
) -> None:
    private, base = outside
    folder = new(roots / f"trick-{trick.replace(' ', '-')}")
    commit(folder, "mine", {"mine.txt": b"mine"})
    dot_git = folder / ".git"
    match trick:
        case "dotgit file":
            shutil.rmtree(dot_git)
            dot_git.write_text(f"gitdir: {private}/.git\n")
        case "dotgit link":
            shutil.rmtree(dot_git)
            dot_git.symlink_to(private / ".git")
        case "commondir":
            (dot_git / "commondir").write_text(f"{private}/.git\n")
        case "alternates":
            (dot_git / "objects" / "info" / "alternates").write_text(f"{private}/.git/objects\n")
        case "objects link":
            shutil.rmtree(dot_git / "objects")
            (dot_git / "objects").symlink_to(private / ".git" / "objects")
        case "pack link":
            git(private, "repack", "-a", "-q")
            for pack in (private / ".git" / "objects" / "pack").iterdir():
                (dot_git / "objects" / "pack" / pack.name).symlink_to(pack)
    with pytest.raises(InvalidRequest, match=r"workspace_roots|link among its objects"):
        await executor.prepare_workspace(local_path=str(folder), commit=base)


async def test_a_worktree_below_the_roots_is_a_repository(executor: ExecutorClient, roots: Path) -> None:
    folder, base = project(roots / "main-tree")
    git(folder, "worktree", "add", "--quiet", "--detach", str(roots / "side-tree"), base)
    assert (await executor.prepare_workspace(local_path=str(roots / "side-tree"), commit="HEAD")).commit == base


async def test_links_in_the_tree_lead_nowhere(executor: ExecutorClient, roots: Path) -> None:
    folder = new(roots / "links")
    for name, target in (("shadow", "/etc/shadow"), ("up", "../../../../etc"), ("store", "/proc/1/root"), ("dir", "/")):
        (folder / name).symlink_to(target)
    base = commit(folder, "links", {"file": b"x"})
    workspace = await executor.prepare_workspace(local_path=str(folder), commit=base)
    code = """
import os
os.chdir('/testbed')
for name in ('shadow', 'store'):
    try: print(open(name) if name == 'shadow' else os.listdir(name))
    except OSError as error: print(name, type(error).__name__)
print(sorted(os.listdir('up')) == sorted(os.listdir('/etc')), 'root' in os.listdir('dir'))
"""
    assert (await run(executor, workspace.workspace_id, code)).splitlines()[0] == "shadow FileNotFoundError"


async def test_submodules_are_empty_folders(executor: ExecutorClient, roots: Path, outside: tuple[Path, str]) -> None:
    folder = new(roots / "submodules")
    (folder / ".gitmodules").write_text(f'[submodule "x"]\n\tpath = x\n\turl = {outside[0]}\n')
    git(folder, "update-index", "--add", "--cacheinfo", f"160000,{outside[1]},x")
    git(folder, "add", ".gitmodules")
    git(folder, "commit", "--quiet", "-m", "submodule")
    workspace = await executor.prepare_workspace(local_path=str(folder), commit="main")
    code = "import os; print(sorted(os.listdir('/testbed')), os.listdir('/testbed/x'))"
    assert await run(executor, workspace.workspace_id, code) == "['.git', '.gitmodules', 'x'] []\n"


def tree_with(folder: Path, entries: list[tuple[str, str, str]]) -> str:
    """A commit whose tree git itself would not write: (mode, name, object)."""
    body = b"".join(f"{mode} {name}\0".encode() + bytes.fromhex(found) for mode, name, found in entries)
    data = b"tree %d\0" % len(body) + body
    name = hashlib.sha1(data).hexdigest()
    path = folder / ".git" / "objects" / name[:2] / name[2:]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(zlib.compress(data))
    return git(folder, "commit-tree", name, "-m", "by hand")


@pytest.mark.parametrize("name", [".git", "..", ".", "a/b", ".GIT", "git~1", ".g\u200cit"])
async def test_names_that_would_write_elsewhere_are_refused(executor: ExecutorClient, roots: Path, name: str) -> None:
    folder = new(roots / f"name-{name.encode().hex()}")
    commit(folder, "x", {"x/config": b"[core]\n\tfsmonitor = touch /tmp/mark\n"})
    base = tree_with(folder, [("40000", name, git(folder, "rev-parse", "main:x"))])
    with pytest.raises(InvalidRequest, match="local_path"):
        await executor.prepare_workspace(local_path=str(folder), commit=base)


async def test_a_link_and_a_folder_of_one_name_are_refused(executor: ExecutorClient, roots: Path) -> None:
    """Writing the folder would follow the link."""
    folder = new(roots / "twice")
    commit(folder, "x", {"d/f": b"1", "target": b"/tmp"})
    found = {name: git(folder, "rev-parse", f"main:{name}") for name in ("d", "target")}
    base = tree_with(folder, [("120000", "a", found["target"]), ("40000", "a", found["d"])])
    with pytest.raises(InvalidRequest, match="local_path"):
        await executor.prepare_workspace(local_path=str(folder), commit=base)


async def test_a_file_beyond_the_bound_is_refused_before_it_is_written(executor: ExecutorClient, roots: Path) -> None:
    """A few hundred kilobytes in the repository, four times the bound as a file."""
    folder = new(roots / "huge")
    with (folder / "huge").open("wb") as file:
        file.truncate(4 * MOST)
    base = commit(folder, "huge", {})
    with pytest.raises(InvalidRequest, match=f"more than {MOST} bytes, the most that a workspace may have"):
        await executor.prepare_workspace(local_path=str(folder), commit=base)


async def test_a_tree_that_unfolds_without_end_is_refused(
    executor: ExecutorClient, roots: Path, server: Server
) -> None:
    """Ten levels of ten equal folders: ten objects, ten thousand million files."""
    folder = new(roots / "bomb")
    inner = git(folder, "hash-object", "-w", "--stdin", stdin=b"x")
    mode = "100644 blob"
    for _ in range(10):
        lines = "".join(f"{mode} {inner}\tf{i}\n" for i in range(10))
        inner, mode = git(folder, "mktree", stdin=lines.encode()), "040000 tree"
    base = git(folder, "commit-tree", inner, "-m", "bomb")
    with pytest.raises(InvalidRequest, match="more than 500000 files and folders"):
        await executor.prepare_workspace(local_path=str(folder), commit=base)
    assert server.readiness() == 1


async def test_an_object_that_is_not_what_its_name_says_is_refused(executor: ExecutorClient, roots: Path) -> None:
    folder, _ = project(roots / "forged")
    for what in ("main", "main:src/add.py"):
        found = git(folder, "rev-parse", what)
        path = folder / ".git" / "objects" / found[:2] / found[2:]
        kept = path.read_bytes()
        data = zlib.decompress(kept).replace(b"fix", b"xif").replace(b"a + b", b"a * b")
        path.chmod(0o644)
        path.write_bytes(zlib.compress(data))
        with pytest.raises(InvalidRequest):
            await executor.prepare_workspace(local_path=str(folder), commit=git(folder, "rev-parse", "HEAD"))
        path.write_bytes(kept)
    assert (await executor.prepare_workspace(local_path=str(folder), commit="main")).commit


async def test_replacements_and_grafts_have_no_effect(executor: ExecutorClient, roots: Path) -> None:
    folder, base = project(roots / "replaced")
    git(folder, "replace", base, "main")
    workspace = await executor.prepare_workspace(local_path=str(folder), commit=base)
    assert SECRET not in await run(executor, workspace.workspace_id, "print(open('/testbed/src/add.py').read())")


async def test_what_is_no_repository_and_what_is_no_commit(executor: ExecutorClient, roots: Path) -> None:
    folder, _ = project(roots / "plain")
    (roots / "empty").mkdir()
    (roots / "file").write_text("x")
    for path in ("empty", "file", "absent"):
        with pytest.raises(InvalidRequest) as caught:
            await executor.prepare_workspace(local_path=str(roots / path), commit="main")
        assert [field.field for field in caught.value.fields] == ["local_path"]
    for name in (
        "absent",
        "f" * 40,
        git(folder, "rev-parse", "main:src/add.py"),
        git(folder, "rev-parse", "main^{tree}"),
    ):
        with pytest.raises(InvalidRequest, match="which is no commit of this repository") as caught:
            await executor.prepare_workspace(local_path=str(folder), commit=name)
        assert [field.field for field in caught.value.fields] == ["commit"]


async def test_bundles_that_are_broken_or_not_whole(executor: ExecutorClient, roots: Path, tmp_path: Path) -> None:
    folder, base = project(roots / "bundled")
    git(folder, "bundle", "create", "--quiet", str(tmp_path / "whole"), "--all")
    git(folder, "bundle", "create", "--quiet", str(tmp_path / "part"), f"{base}..main")
    whole = (tmp_path / "whole").read_bytes()
    for bad in (b"no bundle", whole[: len(whole) // 2], whole[:-30] + os.urandom(30), (tmp_path / "part").read_bytes()):
        with pytest.raises(InvalidRequest) as caught:
            await executor.prepare_workspace(bundle=bad, commit="main", mount_path="/broken")
        assert [field.field for field in caught.value.fields] == ["bundle"]


async def test_a_small_bundle_that_unfolds_in_memory_is_refused(executor: ExecutorClient, roots: Path) -> None:
    """17 kilobytes, of which git makes 1.9 GiB: outside of a sandbox it gets them, and the workspace is made."""
    folder, base = project(roots / "unfolding")
    small = unfolding(folder, objects=1, copies=120)
    assert len(small) < 20_000
    with pytest.raises(InvalidRequest, match="memory") as caught:
        await executor.prepare_workspace(bundle=small, commit=base)
    assert caught.value.fields[0].field == "bundle"
    bounded = await executor.prepare_workspace(bundle=unfolding(folder, objects=1, copies=1), commit=base)
    assert SECRET not in await run(executor, bounded.workspace_id, "print(open('/testbed/src/add.py').read())")


async def test_no_tenant_waits_for_bundles_of_another(executor: ExecutorClient, roots: Path, server: Server) -> None:
    """Minutes of work in some kilobytes, three times: two are read at once, by somebody else than the server's user."""
    folder, base = project(roots / "endless")
    calls = [
        asyncio.create_task(executor.prepare_workspace(bundle=long, commit=base, tenant="first"))
        for long in (unfolding(folder, objects=5000 + number, copies=1) for number in range(3))
    ]
    await asyncio.to_thread(wait_for, lambda: len(processes_with("index-pack", server.pid)) == 2)
    assert os.geteuid() or all(map(owner, processes_with("index-pack", server.pid)))
    async with asyncio.timeout(60):
        ready = await executor.prepare_workspace(bundle=bundle(folder), commit=base, tenant="second")
    assert (ready.commit, [call.done() for call in calls]) == (base, [False] * 3)
    assert (len(processes_with("index-pack", server.pid)), server.status().workspaces.preparing) == (2, 3)
    for call in calls:
        call.cancel()
    await asyncio.to_thread(wait_for, lambda: not processes_with("index-pack", server.pid))


@pytest.fixture(scope="module")
def hasty(roots: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that ends preparations after 3 s."""
    store = tmp_path_factory.mktemp("hasty")
    settings = (f"workspace_roots=[{roots}]", f"workspace_dir={store}", "workspace_timeout_s=3")
    with running("max_concurrent=1", *settings) as started:
        yield started
        wait_for(lambda: not list((kept(store) / "making").iterdir()))


async def test_a_preparation_that_takes_too_long_is_ended_with_all_its_processes(hasty: Server, roots: Path) -> None:
    """A pipe that nobody writes to stands in place of the reference that git reads."""
    folder, _ = project(roots / "slow")
    before = hasty.status().workspaces.entries
    reference = folder / ".git" / "refs" / "heads" / "main"
    reference.unlink()
    os.mkfifo(reference)
    async with ExecutorClient(hasty.target) as executor:
        call = asyncio.create_task(executor.prepare_workspace(local_path=str(folder), commit="main"))
        await asyncio.to_thread(wait_for, lambda: processes_with(f"--git-dir={folder}"))
        with pytest.raises(ExecutorError, match="longer than 3 s"):
            await call
        # Killed before the answer, they are gone a moment later.
        await asyncio.to_thread(wait_for, lambda: not processes_with(f"--git-dir={folder}"))
        long = unfolding(project(roots / "long")[0], objects=5000, copies=1)
        with pytest.raises(ExecutorError, match="longer than 3 s"):
            await executor.prepare_workspace(bundle=long, commit="main")
        await asyncio.to_thread(wait_for, lambda: not processes_with("index-pack", hasty.pid))
        assert hasty.status().workspaces.entries == before


async def test_the_time_of_others_is_not_the_preparations_own(hasty: Server, roots: Path) -> None:
    """Four that hang until they are ended take both places twice; the one after them has all of its time."""
    hanging = []
    for name in ("first", "second", "third", "fourth"):
        folder, _ = project(roots / name)
        reference = folder / ".git" / "refs" / "heads" / "main"
        reference.unlink()
        os.mkfifo(reference)
        hanging.append(folder)
    good, commit = project(roots / "fifth")

    def of(folder: Path) -> list[int]:
        return processes_with(f"--git-dir={folder}")

    async with ExecutorClient(hasty.target) as executor:
        calls = [
            asyncio.create_task(executor.prepare_workspace(local_path=str(folder), commit="main")) for folder in hanging
        ]
        await asyncio.to_thread(wait_for, lambda: sum(map(bool, map(of, hanging))) == 2)
        ready = await executor.prepare_workspace(local_path=str(good), commit=commit)
        assert ready.commit == commit
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert all("longer than 3 s" in str(end) for end in ends)


async def test_cancelling_the_last_call_ends_the_preparation(
    executor: ExecutorClient, roots: Path, server: Server
) -> None:
    folder, _ = project(roots / "cancelled")
    reference = folder / ".git" / "refs" / "heads" / "main"
    reference.unlink()
    os.mkfifo(reference)
    calls = [asyncio.create_task(executor.prepare_workspace(local_path=str(folder), commit="main")) for _ in range(2)]
    await asyncio.to_thread(wait_for, lambda: processes_with(f"--git-dir={folder}"))
    before = server.status().workspaces
    assert before.preparing == 1
    calls[0].cancel()
    await asyncio.sleep(0.5)
    assert len(processes_with(f"--git-dir={folder}")) == 1, "the two calls did not share the work"
    calls[1].cancel()
    await asyncio.to_thread(wait_for, lambda: not processes_with(f"--git-dir={folder}"))
    await asyncio.to_thread(wait_for, lambda: server.status().workspaces.preparing == 0)
    after = server.status().workspaces
    assert (after.entries, after.prepared_total) == (before.entries, before.prepared_total)
    assert server.readiness() == 1
