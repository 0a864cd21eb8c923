"""One server of images for each level that can mount one, with a store that has some; a client of it for each test."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from executor_service import ExecutorClient
from rollout.cli import main
from tests.executor.images.archives import Entry, folder, host_layer, layer, layout_files, write_folder
from tests.executor.levels import ENV, HOME, LEVELS, PREFIX, PYTHON, Level
from tests.executor.servers import Server

PROGRAMS = [
    *(
        "bash",
        "cat",
        "chmod",
        "chroot",
        "id",
        "ln",
        "ls",
        "mkdir",
        "mkfifo",
        "mount",
        "readlink",
        "rm",
        "sleep",
        "stat",
    ),
    *("script", "stty", "touch", "truncate", "tty", "unshare", "wc"),
]
ADD = """
import sys
from pathlib import Path
from executor_service.images.archive import open_archive
from executor_service.images.store import ImageStore
store = ImageStore(Path(sys.argv[1]), timeout_s=120)
for archive in sys.argv[2:]:
    store.add(open_archive(Path(archive)))
"""
PEOPLE = b"""root:x:0:0:root:/root:/bin/bash
ann:x:1234:55:Ann:/home/ann:/bin/bash
odd line
huge:x:99999999999:1:::
"""
LETTERS = Path("/usr/lib/locale/C.utf8/LC_CTYPE")
MOUNTING = [level for level in LEVELS if not level.landlock and level.place is None]


@dataclass(frozen=True)
class Setting:
    server: Server
    store: Path


@pytest.fixture(scope="session", params=MOUNTING, ids=str)
def setting(request: pytest.FixtureRequest) -> Iterator[Setting]:
    """A server, and a store of its user's with two images of one base, which differ in a file, and others."""
    # Not below the folder of pytest, which no ordinary user may enter.
    with tempfile.TemporaryDirectory(prefix="fairbox-images-") as folder:
        Path(folder).chmod(0o755)
        yield from _served(request.param, Path(folder))


@pytest.fixture
async def client(setting: Setting) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(setting.server.target) as made:
        yield made


def _served(level: Level, top: Path) -> Iterator[Setting]:
    base = host_layer(*PROGRAMS)
    archives = []
    for name in ("one", "two"):
        own = layer(folder("srv"), Entry("srv/name", name.encode()), Entry("srv/d/file", b"x"), Entry("etc/.wh.passwd"))
        files = layout_files([base, own], name=name, WorkingDir="/srv", Env=["GREETING=hello", "PATH=/usr/bin"])
        archives.append(str(write_folder(top / name, files)))
    odd = layer(Entry("etc/hosts/is/a/folder", b""), Entry("dev", b"a file"), Entry("proc/version", b"own"))
    archives.append(str(write_folder(top / "odd", layout_files([base, odd], name="odd", WorkingDir="/bin/bash"))))
    peopled = layer(Entry("etc/passwd", PEOPLE), Entry("etc/group", b"staff:x:77:\n"), Entry("home/ann/name", b"ann"))
    for name, user in (("peopled", "ann:staff"), ("stray", "nobody-here")):
        files = layout_files([base, peopled], name=name, User=user)
        archives.append(str(write_folder(top / name, files)))
    for name, programs in (("plain", ["cat", "sh", "sleep"]), ("shell-less", ["cat"])):
        archives.append(str(write_folder(top / name, layout_files([host_layer(*programs)], name=name))))
    if shutil.which("tmux"):
        letters = layer(Entry(str(LETTERS).lstrip("/"), LETTERS.read_bytes()))  # as any image has
        files = layout_files([host_layer("bash", "sleep", "tmux"), letters], name="tmux", Env=["LANG=C.UTF-8"])
        archives.append(str(write_folder(top / "tmux", files)))
    store = top / "store"
    if level.who == "user" and PREFIX:
        store.mkdir()
        os.chown(store, 65534, 65534)
        command = [*PREFIX, str(PYTHON), "-P", "-c", ADD, str(store), *archives]
        subprocess.run(command, check=True, env=ENV, cwd=HOME, timeout=120)
    else:
        for archive in archives:
            assert main(["image", "add", archive, "--dir", str(store)]) == 0
    with level.running(f"image_dir={store}", "max_concurrent=4") as server:
        yield Setting(server, store)
