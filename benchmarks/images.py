"""Programs and shells in images, beside fairbox's own and a chroot of the same files. Only root may chroot."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import os
import statistics
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from benchmarks.executor.server import executor
from benchmarks.rows import Row, figure
from executor_service import ExecutorClient, Outcome
from executor_service.images.archive import open_archive
from executor_service.images.store import ImageStore
from tests.executor.images.archives import Entry, host_layer, layer, layout_files, write_folder
from tests.executor.servers import children

_PROGRAMS = ("bash", "cat", "sleep")
_RUNS = 200
_PAUSE_S = 0.02
"""Between two runs: what is measured is the wait of one caller, who finds a waiting sandbox."""
_QUIET_S = 10.0
"""After a server has started, in which it makes sandboxes."""
_SHELLS, _IMAGES, _COMMANDS = 64, 8, 20
_SNAPSHOTS = 20


async def store_rows() -> list[Row]:
    """A hundred images of one base, with a layer of 20 kB each."""
    with tempfile.TemporaryDirectory(prefix="fairbox-bench-") as folder:
        store = ImageStore(Path(folder) / "store")
        took = [await asyncio.to_thread(_add, store, Path(folder), number) for number in range(100)]
        whole = sum(image.bytes for image in store.images())
        share = 100 * store.bytes() / whole
    return [
        figure("100 images of one base: on disk", share, "%", most=10, against=f"{whole / 1e6:.0f} MB in all"),
        figure("image of a known base: add", statistics.median(took) * 1e3, "ms"),
    ]


async def programs_rows() -> list[Row]:
    """One shell command after the other."""
    async with _served(1) as (client, folder, _):
        first = await _timed(lambda: _ran(client, "image-0"))
        with tarfile.open(fileobj=io.BytesIO(_base())) as archive:
            archive.extractall(folder / "root", filter="fully_trusted")
        in_chroot = await _median(lambda: _chrooted(folder / "root"))
        own, in_image = await _median(lambda: _ran(client, "")), await _median(lambda: _ran(client, "image-0"))
    return [
        figure("bash in a chroot", in_chroot, "ms"),
        figure("bash, fairbox's own", own, "ms"),
        figure("bash in a warm image", in_image, "ms", most=1.5 * own, against="1.5 of fairbox's own"),
        figure("bash in an image: the first", first, "ms", most=1.3 * in_chroot, against="1.3 of a chroot"),
    ]


async def shells_rows() -> list[Row]:
    """Sessions that are shells: until one is ready, a command in it, and many at once."""
    async with _served(_IMAGES) as (client, _, server):
        ready = await _median(lambda: _ended(client))
        async with client.session(language="bash", image="image-0") as shell:
            command = await _median(lambda: shell.run("true"))
            wall = [(await shell.run("true")).wall_time_s * 1e3 for _ in range(_RUNS)]
        began = time.perf_counter()
        await asyncio.gather(*(_worked(client, f"image-{number % _IMAGES}") for number in range(_SHELLS)))
        whole = time.perf_counter() - began
        await asyncio.sleep(_QUIET_S)
        before = _own_bytes(server)
        async with contextlib.AsyncExitStack() as stack:
            for number in range(_SHELLS):
                image = f"image-{number % _IMAGES}"
                shell = await stack.enter_async_context(client.session(language="bash", image=image))
                await shell.run("true")
            await asyncio.sleep(_QUIET_S)
            idle = (_own_bytes(server) - before) / _SHELLS
    return [
        figure("shell in a warm image: ready and ended", ready, "ms", most=15),
        figure("command of a shell: round trip", command, "ms"),
        figure("command of a shell: in the sandbox", statistics.median(wall), "ms", most=2),
        figure(f"{_SHELLS} shells at once, {_COMMANDS} commands each", whole, "s"),
        figure("idle shell: memory beside bash", idle / (1 << 20), "MiB", most=4, against="shared pages by share"),
    ]


async def snapshots_rows() -> list[Row]:
    """Snapshots of a shell that has written a hundred files, and a program in each."""
    rows = []
    for name, size in (("1 kB", 1000), ("100 kB", 100_000)):
        async with _served(1) as (client, _, _):
            taken, first = [], []
            for number in range(_SNAPSHOTS):
                async with client.session(language="bash", image="image-0") as shell:
                    await shell.run(f"mkdir /own; for i in {{1..100}}; do printf '%{size}d' {number} > /own/$i; done")
                    began = time.perf_counter()
                    snapshot = await shell.snapshot()
                    taken.append((time.perf_counter() - began) * 1e3)
                first.append(await _timed(functools.partial(_ran, client, snapshot.image)))
        rows.append(figure(f"snapshot of 100 files of {name}", statistics.median(taken), "ms"))
        rows.append(figure("bash in that snapshot: the first", statistics.median(first), "ms"))
    return rows


@functools.cache
def _base() -> bytes:
    return host_layer(*_PROGRAMS)


def _add(store: ImageStore, folder: Path, number: int) -> float:
    own = layer(Entry(f"own-{number}", os.urandom(20_000)))
    archive = write_folder(folder / f"archive-{number}", layout_files([_base(), own], name=f"image-{number}"))
    began = time.perf_counter()
    store.add(open_archive(archive))
    return time.perf_counter() - began


@contextlib.asynccontextmanager
async def _served(images: int) -> AsyncIterator[tuple[ExecutorClient, Path, int]]:
    """A client of a server with so many images, at rest; a folder; and the server's pid."""
    with tempfile.TemporaryDirectory(prefix="fairbox-bench-") as folder:
        store = ImageStore(Path(folder) / "store")
        for number in range(images):
            await asyncio.to_thread(_add, store, Path(folder), number)
        settings = (f"image_dir={folder}/store", "max_concurrent=4", "max_queued=5000")
        async with executor(*settings) as (client, addresses):
            await asyncio.sleep(_QUIET_S)
            yield client, Path(folder), addresses.pid


async def _ran(client: ExecutorClient, image: str) -> None:
    result = await client.execute("echo 1", language="bash", image=image)
    assert result.stdout.data == b"1\n", result


async def _chrooted(root: Path) -> None:
    command = ("chroot", str(root), "/bin/bash", "-c", "echo 1")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    assert await process.wait() == 0


async def _ended(client: ExecutorClient) -> None:
    async with client.session(language="bash", image="image-0"):
        pass


async def _worked(client: ExecutorClient, image: str) -> None:
    async with client.session(language="bash", image=image, owner="bench") as shell:
        for number in range(_COMMANDS):
            result = await shell.run(f"x=$((x + 1)); echo $x; test $x = {number + 1}")
            assert result.outcome is Outcome.FINISHED, result


def _own_bytes(server: int) -> int:
    """Memory of the server and of all below it but bash; of what several share, the share."""
    found = 0
    for pid in (server, *children(server)):
        with contextlib.suppress(OSError):  # it has ended
            if Path(f"/proc/{pid}/comm").read_text() != "bash\n":
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                found += next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return found


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1e3


async def _median(work: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds."""
    times = []
    for _ in range(_RUNS):
        times.append(await _timed(work))
        await asyncio.sleep(_PAUSE_S)
    return statistics.median(times)


PARTS = {"store": store_rows, "programs": programs_rows, "shells": shells_rows, "snapshots": snapshots_rows}
