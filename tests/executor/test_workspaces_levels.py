"""Workspaces as programs, sessions, branches and candidates find them, at the strongest and the weakest level."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator

import pytest

from executor_service import (
    AssertCase,
    CannotBranch,
    ExecutorClient,
    FunctionCase,
    InputFile,
    InvalidRequest,
    Limits,
    NotFound,
    Outcome,
    PytestCase,
    Session,
    StdioCase,
    Verdict,
    Workspace,
)
from tests.executor.levels import EXTREMES, Level
from tests.executor.repositories import SECRET, bundle, project, shell
from tests.executor.servers import Server, said, wait_for

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
BUGGY = "def add(a, b):\n    return a - b\n"
FOLDER = "import os; folder = os.environ['FAIRBOX_WORKSPACE']\n"
READ = f"{FOLDER}print(open(folder + '/src/add.py').read(), end='')"


@pytest.fixture(scope="module", params=EXTREMES)
def level(request: pytest.FixtureRequest) -> Level:
    found: Level = request.param
    return found


@pytest.fixture(scope="module")
def server(level: Level) -> Iterator[Server]:
    with level.running("max_concurrent=4") as started:
        yield started


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    """As a bundle, which a server of any user can read; and the buggy commit."""
    folder, base = project(tmp_path_factory.mktemp("repository") / "project")
    return bundle(folder), base


@pytest.fixture
async def workspace(executor: ExecutorClient, repository: tuple[bytes, str]) -> Workspace:
    return await executor.prepare_workspace(bundle=repository[0], commit=repository[1])


async def test_the_variable_names_the_folder(executor: ExecutorClient, workspace: Workspace, level: Level) -> None:
    result = await executor.execute(READ + "\nprint(folder)", workspace_id=workspace.workspace_id)
    assert result.stdout.text.startswith(BUGGY)
    folder = result.stdout.text.splitlines()[-1]
    assert folder.endswith("/workspace") if level.landlock else folder == "/testbed"
    code = "import os; print('FAIRBOX_WORKSPACE' in os.environ)"
    assert (await executor.execute(code)).stdout.text == "False\n"


async def test_variables_and_arguments_below_the_mount_path_follow_it(
    executor: ExecutorClient, workspace: Workspace
) -> None:
    result = await executor.execute(
        "import os, sys; print(*(len(open(name).read()) for name in (sys.argv[1], os.environ['FILE'])))",
        args=["/testbed/src/add.py"],
        env={"FILE": "/testbed/src/add.py"},
        workspace_id=workspace.workspace_id,
    )
    assert result.stdout.text == f"{len(BUGGY)} {len(BUGGY)}\n", result.stderr.text


async def test_other_languages_find_it(executor: ExecutorClient, workspace: Workspace) -> None:
    code = 'cat "$FAIRBOX_WORKSPACE/src/add.py"; cd "$FAIRBOX_WORKSPACE" && ./run.sh && echo x > made'
    result = await executor.execute(code, language="bash", workspace_id=workspace.workspace_id)
    assert (result.stdout.text, result.exit_code) == (f"{BUGGY}ran\n", 0), result.stderr.text


async def test_git_works_as_agents_use_it(executor: ExecutorClient, workspace: Workspace) -> None:
    code = shell(
        "git status --short",
        "sed -i 's/a - b/a + b/' src/add.py && echo new > new.txt && rm data.bin && chmod 644 run.sh",
        "git status --short",
        "git diff -- src",
        "git stash --quiet && git status --short && git stash pop --quiet",
        "git add --all && git commit --quiet --message done && git log --format=%s",
        f"git log --all --format=%B | grep -c {SECRET}",
        "readlink link",
        "touch -d 2020-01-01 link src/add.py && git checkout --quiet HEAD~1 && cat src/add.py",
    )
    result = await executor.execute(code, workspace_id=workspace.workspace_id)
    found = result.stdout.text
    assert found.startswith(" D data.bin\n M run.sh\n M src/add.py\n?? new.txt\n")
    assert "-    return a - b\n+    return a + b\n" in found
    assert found.endswith(f"done\nworkspace\n0\nsrc/add.py\n{BUGGY}")
    assert (await executor.execute(READ, workspace_id=workspace.workspace_id)).stdout.text == BUGGY


async def test_a_workspace_that_is_only_read_can_not_be_written(
    executor: ExecutorClient, workspace: Workspace, level: Level
) -> None:
    lines = [
        "cat src/add.py",
        "echo x > new",
        "echo x >> src/add.py",
        "rm data.bin",
        "mkdir folder",
        "git status --short; git log --format=%s; git grep -n 'a - b'",
        "git commit --allow-empty -qm x && echo committed",
        "echo work > ~/file; echo tmp > $TMPDIR/file; cat ~/file $TMPDIR/file",
        "echo in the workspace: $(ls -A)",
    ]
    for code in (shell(*lines), f"{shell(*lines)}0"):
        display = code.endswith("0")
        result = await executor.execute(
            code, workspace_id=workspace.workspace_id, workspace_read_only=True, display=display
        )
        text = result.stdout.text
        assert result.outcome is Outcome.FINISHED, (result.message, result.stderr.text)
        assert text.startswith(BUGGY)
        refused = "Read-only file system" if level.name == "namespaces" else "Permission denied"
        assert text.count(refused) >= 5
        assert "committed" not in text
        assert "\nworkspace\nsrc/add.py:2:    return a - b\n" in text
        assert "\nwork\ntmp\nin the workspace: .git data.bin link run.sh src\n" in text
    # The next one that asks for a layer has one.
    result = await executor.execute(shell("echo x > new; ls"), workspace_id=workspace.workspace_id)
    assert "new" in result.stdout.text


async def test_reading_only_needs_a_workspace_and_no_session(executor: ExecutorClient, workspace: Workspace) -> None:
    for workspace_id, session_id in (("", ""), (workspace.workspace_id, "s")):
        with pytest.raises(InvalidRequest, match="workspace_read_only is set, must not be with a session_id"):
            await executor.execute("1", workspace_read_only=True, workspace_id=workspace_id, session_id=session_id)


async def test_a_program_with_displays_has_it_too(executor: ExecutorClient, workspace: Workspace) -> None:
    code = f"{FOLDER}open(folder + '/src/add.py').read()"
    result = await executor.execute(code, display=True, workspace_id=workspace.workspace_id)
    assert result.displays[0].text == repr(BUGGY)


async def test_cells_of_a_session_share_one_layer(executor: ExecutorClient, workspace: Workspace) -> None:
    name = workspace.workspace_id
    async with executor.session(workspace_id=name) as session, executor.session(workspace_id=name) as other:
        assert session.info.workspace_id == name
        assert await said(session, READ) == BUGGY
        await said(session, "open(folder + '/src/add.py', 'w').write('mine'); os.remove(folder + '/data.bin')")
        assert await said(session, READ) == "mine"
        assert await said(session, "print(sorted(os.listdir(folder)))") == "['.git', 'link', 'run.sh', 'src']\n"
        assert await said(other, READ) == BUGGY
        assert [info.workspace_id for info in await executor.list_sessions()] == [name, name]
    assert (await executor.execute(READ, workspace_id=name)).stdout.text == BUGGY


async def test_a_cell_may_name_the_workspace_of_its_session_and_no_other(
    executor: ExecutorClient, workspace: Workspace
) -> None:
    name = workspace.workspace_id
    async with executor.session(workspace_id=name) as session, executor.session() as bare:
        same = await executor.execute(READ, session_id=session.session_id, workspace_id=name)
        assert same.stdout.text == BUGGY
        for session_id, other, text in (
            (session.session_id, "ws-other", "empty or the session's"),
            (bare.session_id, name, "the session has none"),
        ):
            with pytest.raises(InvalidRequest, match=text) as caught:
                await executor.execute("1", session_id=session_id, workspace_id=other)
            assert [field.field for field in caught.value.fields] == ["workspace_id"]
        assert await said(session, READ) == BUGGY


async def test_a_session_with_an_unknown_workspace_is_not_made(executor: ExecutorClient) -> None:
    with pytest.raises(NotFound, match="ws-unknown"):
        await executor.create_session(workspace_id="ws-unknown")
    assert await executor.list_sessions() == []


async def test_a_branch_has_its_own_workspace(executor: ExecutorClient, workspace: Workspace) -> None:
    async with executor.session(workspace_id=workspace.workspace_id) as session:
        await said(
            session,
            f"{FOLDER}import subprocess, sys; os.chdir(folder + '/src'); sys.path.insert(0, folder + '/src')\n"
            "open('add.py', 'a').write('# before\\n'); os.remove('../data.bin'); os.mkdir('../made')\n"
            "import shutil; shutil.rmtree('../.git'); os.mkdir('../.git'); os.symlink('x', '../made/link')",
        )
        first, second = await session.branch(2)
        before = f"{BUGGY}# before\n"
        for number, branch in enumerate((first, second)):
            # The current folder and the variable follow; what the session wrote before is there.
            assert await said(branch, "print(open('add.py').read(), end='')") == before
            assert await said(branch, READ) == before
            assert await said(branch, "print(sorted(os.listdir(folder)))") == (
                "['.git', 'link', 'made', 'run.sh', 'src']\n"
            )
            assert await said(branch, "print(os.listdir(folder + '/.git'), os.readlink(folder + '/made/link'))") == (
                "[] x\n"
            )
            await said(branch, f"open('add.py', 'w').write('NUMBER = {number}'); os.remove('../run.sh')")
            assert await said(branch, "import add; print(add.NUMBER)") == f"{number}\n"
        assert await said(session, READ) == before
        assert "run.sh" in await said(session, "print(os.listdir(folder))")
        assert await said(first, READ) == "NUMBER = 0"
        await said(first, "open('new.py', 'w').close()")
        (third,) = await first.branch()
        assert await said(third, f"{READ}; print(os.path.exists('new.py'), os.path.exists('../run.sh'))") == (
            "NUMBER = 0True False\n"
        )
        await said(third, "open('add.py', 'w').write('third')")
        assert [await said(each, READ) for each in (session, first, second, third)] == [
            before,
            "NUMBER = 0",
            "NUMBER = 1",
            "third",
        ]
        await first.delete()
        assert await said(third, READ) == "third"
        for branch in (second, third):
            await branch.delete()
    assert (await executor.execute(READ, workspace_id=workspace.workspace_id)).stdout.text == BUGGY


async def test_the_mount_path_is_shared_by_a_family(
    executor: ExecutorClient, workspace: Workspace, level: Level
) -> None:
    """Absolute paths in a branch are those of the first session, as docs/how-to/workspaces.md says."""
    if level.landlock:
        pytest.skip("nothing is mounted at this level")
    async with executor.session(workspace_id=workspace.workspace_id) as session:
        first, second = await session.branch(2)
        await said(first, "open('/testbed/src/add.py', 'w').write('everywhere')")
        assert await said(session, READ) == "everywhere"
        assert await said(second, READ) == BUGGY
        await said(first, f"{FOLDER}open(folder + '/src/add.py', 'w').write('first')")
        assert await said(second, "print(open('/branches/1/src/add.py').read(), end='')") == "first"
        for branch in (first, second):
            await branch.delete()


async def test_git_goes_on_in_a_branch(executor: ExecutorClient, workspace: Workspace) -> None:
    async with executor.session(workspace_id=workspace.workspace_id) as session:
        await said(session, shell("sed -i 's/a - b/a + b/' src/add.py && git commit -qam one && echo x > data.bin"))
        (branch,) = await session.branch()
        code = shell("git log --format=%s", "git status --short", "git commit -qam two")
        assert await said(branch, code) == "one\nworkspace\n M data.bin\n"
        assert await said(session, code) == "one\nworkspace\n M data.bin\n"
        await branch.delete()


async def test_a_branch_takes_nothing_along_that_its_parent_could_not_have(
    executor: ExecutorClient, workspace: Workspace, level: Level
) -> None:
    """The copier of the layer has rights that the code lacks, and copies what the code chose."""
    swap = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3): os.close(fd)
        os.chdir(folder)
        until = time.time() + 8
        while time.time() < until:
            os.rename('swap', 'aside'); os.symlink('/usr/lib', 'swap')
            os.unlink('swap'); os.rename('aside', 'swap')
        os._exit(0)
    os._exit(0)
os.wait()
"""
    limits = Limits(disk_bytes=64 << 20)
    async with executor.session(workspace_id=workspace.workspace_id, limits=limits) as session:
        await said(
            session,
            f"{FOLDER}os.mkdir(folder + '/swap'); open(folder + '/swap/mine', 'w').close()\n"
            "os.mkfifo(folder + '/pipe'); os.symlink('/proc/1', folder + '/init'); os.symlink('/', folder + '/root')\n"
            "open(folder + '/closed', 'w').write('x'); os.chmod(folder + '/closed', 0o4600)",
        )
        (branch,) = await session.branch()
        look = (
            f"{FOLDER}print(sorted(n for n in os.listdir(folder) if n in ('pipe', 'init', 'root', 'closed', 'swap')))"
        )
        assert await said(branch, look) == "['closed', 'init', 'root', 'swap']\n"
        assert (
            await said(branch, "print(os.readlink(folder + '/init'), os.readlink(folder + '/root'))") == "/proc/1 /\n"
        )
        assert await said(branch, "print(oct(os.stat(folder + '/closed').st_mode))") in ("0o100600\n", "0o104600\n")
        await branch.delete()
        if level.landlock:
            return  # there a branch copies by itself, with the rights of the code
        await said(session, swap)
        for _ in range(15):
            try:
                (branch,) = await session.branch()
            except CannotBranch:
                continue  # it met a name that had just gone
            count = (
                f"{FOLDER}found = [f'{{folder}}/{{name}}' for name in ('swap', 'aside')]\n"
                "print({n for path in found if os.path.isdir(path) and not os.path.islink(path)"
                " for n in os.listdir(path)})"
            )
            assert await said(branch, count) in ("{'mine'}\n", "set()\n")  # both folders: renamed while it was copied
            await branch.delete()
    assert (await executor.execute(READ, workspace_id=workspace.workspace_id)).stdout.text == BUGGY


async def test_a_branch_that_has_no_room_is_refused(executor: ExecutorClient, workspace: Workspace) -> None:
    limits = Limits(disk_bytes=16 << 20)
    async with executor.session(workspace_id=workspace.workspace_id, limits=limits) as session:
        await said(session, f"{FOLDER}open(folder + '/big', 'wb').write(b'x' * (10 << 20))")
        if "/testbed" not in await said(session, "print(folder)"):
            return  # a disk limit is not kept at level landlock
        with pytest.raises(CannotBranch, match="can't be copied: No space left"):
            await session.branch()
        await said(session, "os.remove(folder + '/big')")
        assert await said(session, READ) == BUGGY


async def test_a_workspace_stays_while_a_session_or_a_branch_lives(
    executor: ExecutorClient, repository: tuple[bytes, str]
) -> None:
    asked = {"bundle": repository[0], "commit": repository[1], "mount_path": "/short"}
    name = (await executor.prepare_workspace(**asked, idle_ttl_s=1.5)).workspace_id  # type: ignore[arg-type]
    root = await executor.create_session(workspace_id=name)
    session = Session(executor, root)
    (branch,) = await session.branch()
    await session.delete()
    await asyncio.sleep(4)
    assert await said(branch, READ) == BUGGY
    assert (await executor.execute(READ, workspace_id=name)).stdout.text == BUGGY
    await branch.delete()
    async with asyncio.timeout(30):
        while (await executor.prepare_workspace(**asked, idle_ttl_s=1.5)).cached:  # type: ignore[arg-type]
            await asyncio.sleep(4)


async def test_every_style_of_verification_gives_it_to_the_candidate_alone(
    executor: ExecutorClient, workspace: Workspace
) -> None:
    name = workspace.workspace_id
    code = (
        f"{FOLDER}import sys; sys.path.insert(0, folder + '/src')\nfrom add import add as there\n"
        "def add(a, b): return there(a, b) + 2 * b\ndef has(): return os.path.exists(folder)\n"
    )
    seen = "import os\nassert os.environ.get('FAIRBOX_WORKSPACE') is None and not os.path.exists('/testbed')\n"
    outputs = [StdioCase(b"", BUGGY.encode()), StdioCase(b"", b"else")]
    found = await executor.verify(READ, outputs, workspace_id=name)
    assert [case.verdict for case in found.cases] == [Verdict.PASSED, Verdict.WRONG_ANSWER], found.cases
    found = await executor.verify(code, [FunctionCase((1, 2), 3)], entry_point="add", workspace_id=name)
    assert [case.verdict for case in found.cases] == [Verdict.PASSED], found.cases
    cases = [AssertCase("assert add(1, 2) == 3 and has()"), AssertCase("assert add(1, 2) == 4")]
    found = await executor.verify(code, cases, setup_code=seen, workspace_id=name)
    assert [case.verdict for case in found.cases] == [Verdict.PASSED, Verdict.WRONG_ANSWER], found.cases
    tests = f"{seen}from solution import add, has\ndef test_add(): assert add(1, 2) == 3 and has()\n"
    files = [InputFile("test_add.py", tests.encode())]
    found = await executor.verify(code, [PytestCase()], test_files=files, workspace_id=name)
    if "No module named 'pytest'" not in found.cases[0].message:  # which the interpreter of this level may lack
        assert [case.verdict for case in found.cases] == [Verdict.PASSED], found.cases


async def test_a_verification_with_an_unknown_workspace_is_not_found(executor: ExecutorClient) -> None:
    with pytest.raises(NotFound, match="ws-unknown"):
        await executor.verify("def f(): pass", [AssertCase("assert f() is None")], workspace_id="ws-unknown")


async def test_nothing_of_a_use_is_left(executor: ExecutorClient, workspace: Workspace, server: Server) -> None:
    async with executor.session(workspace_id=workspace.workspace_id) as session:
        (branch,) = await session.branch()
        await said(branch, f"{FOLDER}open(folder + '/left', 'w').close()")
        await branch.delete()
    await asyncio.to_thread(wait_for, lambda: server.status().sessions == 0)
    for _ in range(8):  # the same boxes again
        result = await executor.execute("import os; print([os.path.exists(p) for p in ('/testbed', '/branches')])")
        assert result.stdout.text == "[False, False]\n"
