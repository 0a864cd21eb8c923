"""Homes on NFS: interpreter, workspaces and images there for their user, and a sentence for root, who is nobody there.

The row `nfs` runs other suites with their temporary folders there as well.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from executor_service import ExecutorClient
from fairbox.errors import EXIT_USAGE
from tests.executor import repositories
from tests.executor.servers import command, running
from tests.kernel.test_rows import ROW

NFS = Path("/run/nfs/home")
PYTHON = NFS / "venv" / "bin" / "python"
pytestmark = pytest.mark.kernel


@pytest.fixture
def project() -> tuple[Path, str]:
    """A repository, and an interpreter, in the home."""
    assert f" {NFS.parent} nfs4 " in Path("/proc/mounts").read_text()
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", NFS / "venv"], check=True, timeout=300)
    return repositories.project(NFS / "project")


@pytest.mark.skipif(ROW != "nfs", reason="is about a home on NFS")
async def test_interpreter_workspaces_and_images_may_be_there(project: tuple[Path, str]) -> None:
    folder, commit = project
    places = [f"{name}={NFS / name}" for name in ("workspace_dir", "image_dir")]
    with running(f"python={PYTHON}", *places) as server:
        async with ExecutorClient(server.target) as executor:
            result = await executor.execute("import sys; print(sys.prefix)")
            assert result.stdout.text == f"{PYTHON.parents[1]}\n"
            workspace = await executor.prepare_workspace(bundle=repositories.bundle(folder), commit=commit)
            result = await executor.execute(
                "open('new', 'w'); import os; print(os.listdir())", workspace_id=workspace.workspace_id
            )
            assert "new" in result.stdout.text, result
            async with executor.session() as session:
                assert (await session.run("print(1)")).stdout.text == "1\n"


@pytest.mark.skipif(ROW != "nfs-root", reason="is about root, whom NFS takes for nobody")
@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (f"python={PYTHON}", "which does not run as a Python interpreter: [Errno 13] Permission denied"),
        (f"workspace_dir={NFS / 'workspaces'}", "which can't be used: [Errno 13] Permission denied"),
        (f"image_dir={NFS / 'images'}", "which can't be used: [Errno 13] Permission denied"),
    ],
)
def test_root_is_told_what_it_may_not_enter(setting: str, sentence: str) -> None:
    words, _, _ = command("languages=python", setting)
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env={**os.environ, "HOME": str(NFS)})
    assert done.returncode == EXIT_USAGE
    name, _, value = setting.partition("=")
    assert done.stderr.splitlines()[-1].startswith(f"executor: {name} is {value!r}, {sentence}")
