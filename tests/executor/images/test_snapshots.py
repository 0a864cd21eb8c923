"""Snapshots of shells in images: what they have, who may use them, and what makes room for others."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from executor_service import (
    CannotSnapshot,
    ExecutorClient,
    InputFile,
    Limits,
    NotFound,
    Outcome,
    SessionBusy,
    SessionNotFound,
)
from executor_service.images.archive import open_archive
from executor_service.images.errors import ImageError, ImageStoreFull, LayerTimeout
from executor_service.images.facts import StoredImage
from executor_service.images.snapshot import take_snapshot
from executor_service.images.store import ImageStore
from tests.executor.images.archives import Entry, layer, layout_files, write_folder
from tests.executor.images.conftest import Setting
from tests.executor.servers import said

CHANGES = r"""
set -e
umask 022
echo new > /srv/name
echo more > /usr/bin/more; chmod 750 /usr/bin/more; touch -d '2020-02-03 04:05:06' /usr/bin/more
mkdir -p /opt/deep/er /tmp/there
echo x > /opt/deep/er/file; ln /opt/deep/er/file /opt/hard; ln -s ../name /srv/link; ln -s /proc/self /opt/out
echo scratch > /tmp/there/file
mkfifo /opt/pipe
printf '%1000000d' 7 > /opt/large
mkdir /opt/closed; echo s > /opt/closed/secret; chmod 0 /opt/closed/secret /opt/closed
echo lost > /sandbox/work; echo lost > /dev/shm/memory
"""
LOOK = r"""
cat /srv/name /usr/bin/more /tmp/there/file /opt/hard
readlink /srv/link; readlink /opt/out
stat -c '%a %h %F %Y' /usr/bin/more
stat -c '%a %h %F' /opt/hard /opt/pipe /tmp /opt/closed
wc -c < /opt/large; cat /opt/closed/secret; ls /dev/shm; test ! -e /sandbox/work
"""
SEEN = """new
more
scratch
x
../name
/proc/self
750 1 regular file 1580702706
644 2 regular file
644 1 fifo
1777 1 directory
0 2 directory
1000000
s
"""


async def snapshots(client: ExecutorClient) -> int:
    (status,) = (await client.status()).values()
    return status.images.snapshots


async def test_a_snapshot_has_what_the_session_changed_and_goes_on_without_it(client: ExecutorClient) -> None:
    before = await snapshots(client)
    async with client.session(language="bash", image="one") as session:
        await said(session, CHANGES)
        snapshot = await session.snapshot()
        assert 1_000_000 < snapshot.bytes < 1_200_000
        await said(session, "echo later > /srv/name; rm -r /opt")
        assert await said(session, "cat /srv/name") == "later\n"
    assert await snapshots(client) == before + 1
    for _ in range(2):  # what the first run writes is not there for the second
        result = await client.execute(f"{LOOK} echo changed > /srv/name", language="bash", image=snapshot.image)
        assert (result.stdout.text, result.stderr.text) == (SEEN, "")
    async with client.session(language="bash", image=snapshot.image) as session:
        assert await said(session, "pwd; cat name") == "/srv\nnew\n"
    result = await client.execute("cat name", language="bash", image="one")
    assert result.stdout.text == "one"


async def test_snapshots_of_snapshots_keep_what_is_removed_and_made_anew(client: ExecutorClient) -> None:
    image = "one"
    for step in (
        "rm -r /srv/d; echo 1 > /srv/first; mkdir /opt; echo 1 > /opt/a",
        "rm /srv/name; mkdir /srv/d; echo 2 > /srv/d/own; rm -r /opt; mkdir /opt; echo 2 > /opt/b",
        "rm -r /srv/first /opt; echo file > /opt; mkdir /srv/first",
    ):
        async with client.session(language="bash", image=image) as session:
            await said(session, step)
            image = (await session.snapshot()).image
    result = await client.execute("cd /srv; ls -d * d/* first/*; cat /opt", language="bash", image=image)
    assert result.stdout.text == "d\nd/own\nfirst\nfile\n"


async def test_an_unchanged_session_has_the_same_snapshot_again(client: ExecutorClient) -> None:
    async with client.session(language="bash", image="two", tenant="a") as session:
        first, second = await session.snapshot(), await session.snapshot()
        assert first == second
        await said(session, "echo > /srv/more")
        assert (await session.snapshot()).image != first.image


async def test_snapshots_of_other_tenants_do_not_exist(client: ExecutorClient) -> None:
    async with client.session(language="bash", image="one", tenant="a") as session:
        image = (await session.snapshot()).image
    assert (await client.execute("true", language="bash", image=image, tenant="a")).outcome is Outcome.FINISHED
    for tenant in ("b", ""):
        for name in (image, image[7:20]):
            with pytest.raises(NotFound, match="there is no image"):
                await client.execute("true", language="bash", image=name, tenant=tenant)
        with pytest.raises(NotFound, match="there is no image"):
            await client.create_session(language="bash", image=image, tenant=tenant)


async def test_a_busy_session_is_refused_and_background_programs_are_not(client: ExecutorClient) -> None:
    async with client.session(language="bash", image="one") as session:
        for beside in (False, True):
            waits = "until [ -e /tmp/go ]; do sleep 0.1; done; rm /tmp/go"
            running = asyncio.create_task(session.run(waits, beside=beside))
            while not (await client.list_sessions())[0].busy:
                await asyncio.sleep(0.01)
            with pytest.raises(SessionBusy, match="runs a command beside its shell" if beside else "runs a cell"):
                await session.snapshot()
            assert (await session.run("touch /tmp/go", beside=not beside)).outcome is Outcome.FINISHED
            await running
        await said(session, "while true; do for i in 1 2 3 4 5 6; do echo $RANDOM > /srv/$i; rm /srv/$i; done; done &")
        for _ in range(5):
            await session.snapshot()


async def test_commands_that_come_meanwhile_wait(client: ExecutorClient) -> None:
    async with client.session(language="bash", image="one") as session:
        taking = asyncio.create_task(session.snapshot())
        while not (taking.done() or (await client.list_sessions())[0].busy):
            await asyncio.sleep(0.01)
        await said(session, "echo later > /srv/name")
        snapshot = await taking
    result = await client.execute("cat /srv/name", language="bash", image=snapshot.image)
    assert result.stdout.text == "one"


async def test_files_that_no_image_has_are_refused_and_the_session_goes_on(client: ExecutorClient) -> None:
    odd = {
        "cd /opt; for i in {1..300}; do mkdir d; cd d; done": "more than 256 folders in each other",
        "truncate -s 1T /opt/sparse": "has files of more than",
        "touch /opt/.wh.": "hides ''",
    }
    limits = Limits(file_bytes=1 << 30)
    for command, why in odd.items():
        async with client.session(language="bash", image="one", limits=limits) as session:
            result = await session.run(f"mkdir /opt; {command}")
            if result.exit_code and "truncate" in command:
                continue  # its limit forbids it
            assert result.outcome is Outcome.FINISHED, result.stderr.text
            with pytest.raises(CannotSnapshot, match=why):
                await session.snapshot()
            assert await said(session, "echo lives") == "lives\n"


async def test_sessions_without_an_image_and_unknown_ones_are_refused(client: ExecutorClient) -> None:
    async with client.session(language="bash") as session:
        with pytest.raises(CannotSnapshot, match="has no image"):
            await session.snapshot()
    with pytest.raises(SessionNotFound):
        await session.snapshot()


async def test_a_session_that_is_deleted_meanwhile_does_no_harm(client: ExecutorClient) -> None:
    async with client.session(language="bash", image="one") as session:
        await said(session, "printf '%20000000d' 7 > /opt")
        taking = asyncio.create_task(session.snapshot())
        await asyncio.sleep(0.02)
    await asyncio.gather(taking, return_exceptions=True)
    result = await client.execute("cat name", language="bash", image="one")
    assert result.stdout.text == "one"


async def test_a_caller_that_gives_up_leaves_nothing_behind(client: ExecutorClient, setting: Setting) -> None:
    before = await snapshots(client)
    async with client.session(language="bash", image="one", files=[InputFile("big", b"x" * 1_000_000)]) as session:
        await said(session, "for i in {1..8}; do cat /sandbox/big; done > /srv/big")
        taking = asyncio.create_task(session.snapshot())
        while not (taking.done() or (await client.list_sessions())[0].busy):
            await asyncio.sleep(0.01)
        taking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await taking

        while (await client.list_sessions())[0].busy:
            await asyncio.sleep(0.01)
        assert await said(session, "echo lives") == "lives\n"
    assert await snapshots(client) - before <= 1
    assert not list((setting.store / "making").iterdir())


def base_of(tmp_path: Path) -> tuple[ImageStore, StoredImage]:
    store = ImageStore(tmp_path / "store")
    archive = write_folder(tmp_path / "base", layout_files([layer(Entry("base", b"x" * 50_000))], name="base"))
    return store, store.add(open_archive(archive))[0]


def taken(store: ImageStore, base: StoredImage, folder: Path, *, tenant: str = "", most: int = 1 << 30) -> StoredImage:
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        with store.hold(base.image_id):
            return take_snapshot(store, base, handle, tenant=tenant, most_bytes=most)
    finally:
        os.close(handle)


def written(tmp_path: Path, name: str, size: int) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    (folder / name).write_bytes(b"x" * size)
    return folder


def test_the_snapshots_used_longest_ago_go_and_images_stay(tmp_path: Path) -> None:
    store, base = base_of(tmp_path)
    most = 300_000
    made = [taken(store, base, written(tmp_path, f"{number}", 100_000 + number), most=most) for number in range(5)]
    assert {image.image_id for image in store.images()} == {base.image_id, made[3].image_id, made[4].image_id}
    with store.hold(made[3].image_id), store.hold(made[4].image_id):
        with pytest.raises(ImageStoreFull, match=f"of {most}"):
            taken(store, base, written(tmp_path, "more", 200_000), most=most)
        with pytest.raises(ImageError, match=f"more than {most} bytes"):
            taken(store, base, written(tmp_path, "too much", 400_000), most=most)
    assert store.find("base", "anybody").image_id == base.image_id
    assert not list((tmp_path / "store" / "making").iterdir())


def test_a_tenant_that_keeps_much_displaces_its_own(tmp_path: Path) -> None:
    store, base = base_of(tmp_path)
    few = taken(store, base, written(tmp_path, "few", 50_000), tenant="few", most=300_000)
    for number in range(6):
        taken(store, base, written(tmp_path, f"{number}", 70_000), tenant="many", most=300_000)
    owners = [image.owner for image in store.images()]
    assert sorted(map(str, owners)) == ["None", "few", "many", "many", "many"]
    assert store.find(few.image_id, "few").layers == few.layers


def test_links_lead_nowhere_else(tmp_path: Path) -> None:
    store, base = base_of(tmp_path)
    outside = written(tmp_path, "outside", 10)
    folder = written(tmp_path, "inside", 10)
    (folder / "file").symlink_to(outside / "outside")
    (folder / "folder").symlink_to(outside)
    (folder / "up").symlink_to("../../../../../../etc/passwd")
    root = store.folder(taken(store, base, folder).layers[-1])
    assert sorted(path.name for path in root.iterdir()) == ["file", "folder", "inside", "up"]
    assert (root / "file").readlink() == outside / "outside"
    assert (root / "folder").readlink() == outside
    assert (root / "up").readlink() == Path("../../../../../../etc/passwd")


def test_there_are_only_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor_service.images.store._MOST_SNAPSHOTS", 3)
    store, base = base_of(tmp_path)
    made = [taken(store, base, written(tmp_path, f"{number}", 100)) for number in range(5)]
    assert {image.image_id for image in store.images()} == {base.image_id, *(image.image_id for image in made[2:])}


def test_a_layer_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    store, base = base_of(tmp_path)
    store.timeout_s = 0.0
    with pytest.raises(LayerTimeout, match="to pack it took longer than 0 s"):
        taken(store, base, written(tmp_path, "file", 100))
    assert not list((tmp_path / "store" / "making").iterdir())


def test_one_layer_of_two_tenants_is_kept_once(tmp_path: Path) -> None:
    store, base = base_of(tmp_path)
    folder = written(tmp_path, "file", 100_000)
    one, two = (taken(store, base, folder, tenant=tenant) for tenant in ("a", "b"))
    assert one.image_id != two.image_id
    assert one.layers == two.layers
    before = store.bytes()
    store.remove(one.image_id)
    assert store.bytes() == before
    store.remove(two.image_id)
    assert store.bytes() == base.bytes


def test_an_image_of_as_many_layers_as_there_may_be_has_none(tmp_path: Path) -> None:
    store, _ = base_of(tmp_path)
    tall = replace(store.find("base"), layers=store.find("base").layers * 127)
    with pytest.raises(ImageError, match="has 127 layers already"):
        taken(store, tall, written(tmp_path, "file", 1))
