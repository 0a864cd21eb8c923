"""Programs in images, at each kind of server that can mount one: what they see, may change, and leave."""

from __future__ import annotations

import asyncio
import os

import pytest

from executor_service import ExecutorClient, InputFile, InvalidRequest, Limits, NotFound, Outcome
from executor_service.images.errors import ImageInUse
from executor_service.images.store import ImageStore
from tests.executor.images.conftest import PROGRAMS, Setting
from tests.executor.servers import Server, wait_for


async def ran(setting: Setting, code: str, image: str = "one", **more: object) -> str:
    async with ExecutorClient(setting.server.target) as client:
        result = await client.execute(code, language="bash", image=image, **more)  # type: ignore[arg-type]
    assert result.outcome is Outcome.FINISHED, (result, result.stderr.text)
    return result.stdout.text


async def test_a_program_sees_its_image_and_nothing_of_the_host(setting: Setting) -> None:
    said = await ran(setting, 'id -u; pwd; cat name; echo " $GREETING $HOME"; ls -d /* ; ls /etc')
    top = "bin dev etc lib lib64 proc root sandbox sbin srv tmp usr"
    assert said.splitlines() == ["0", "/srv", "one hello /root", *(f"/{name}" for name in top.split()), "hosts"]
    assert await ran(setting, "cat name", "two") == "two"


async def test_what_it_changes_is_gone_afterwards(setting: Setting) -> None:
    changes = "echo new > name; rm -r d; mkdir d; touch d/more /usr/bin/more /etc/more /tmp/more; ls d; cat name"
    assert await ran(setting, changes) == "more\nnew\n"
    assert await ran(setting, "cat name; cd d; echo *; cd /tmp; echo *; cd /usr/bin; echo *") == "onefile\n*\n" + (
        " ".join(sorted(PROGRAMS)) + "\n"
    )


async def test_files_and_arguments_are_given_and_returned(setting: Setting) -> None:
    code = 'cat /sandbox/in "$1" - > /sandbox/out'
    async with ExecutorClient(setting.server.target) as client:
        result = await client.execute(
            code,
            language="bash",
            image="one",
            args=["/srv/name"],
            stdin=b"!",
            files=[InputFile("in", b"1 ")],
            return_paths=["out"],
        )
    assert result.files[0].content == b"1 one!"


ESCAPES = {
    "mount": "mount -t tmpfs none /tmp",
    "a namespace": "unshare --mount /usr/bin/id",
    "a user namespace": "unshare --user /usr/bin/id",
    "another root": "chroot /srv /usr/bin/id",
    "the init's root": "ls /proc/1/root/",
    "the init's memory": "cat /proc/1/mem",
    "devices": "touch /dev/new",
    "proc": "echo 1 > /proc/self/oom_score_adj",
}


async def test_root_of_an_image_is_nobody_outside(setting: Setting) -> None:
    lines = [f"if {code} 2>/dev/null >&2; then echo done: {what}; fi" for what, code in ESCAPES.items()]
    assert await ran(setting, "\n".join([*lines, "echo all were tried"])) == "all were tried\n"


async def test_its_limits_hold(setting: Setting) -> None:
    async with ExecutorClient(setting.server.target) as client:
        full = await client.execute(
            "cat /dev/zero > /srv/big; echo; ls -l /srv/big | cat",
            language="bash",
            image="one",
            limits=Limits(disk_bytes=4 << 20, file_bytes=64 << 20),
        )
        assert "No space left" in full.stderr.text
        late = await client.execute("sleep 60", language="bash", image="one", timeout=0.5)
        assert late.outcome is Outcome.TIME_LIMIT


async def test_what_cannot_be_is_said(setting: Setting) -> None:
    async with ExecutorClient(setting.server.target) as client:
        with pytest.raises(NotFound, match=r"no image 'three' in .*, but: .*one"):
            await client.execute("true", language="bash", image="three")
        with pytest.raises(InvalidRequest, match="is 'one', in which python3 can't be started"):
            await client.execute("print(1)", image="one")
        with pytest.raises(InvalidRequest, match="is 'odd', in which bash can't be started"):
            await client.execute("true", language="bash", image="odd")  # its working folder can't be had
        with pytest.raises(InvalidRequest, match="language is 'cpp'"):
            await client.execute("int main() {}", language="cpp", image="one")
        with pytest.raises(InvalidRequest, match="image is set, must not be with"):
            await client.execute("true", language="bash", image="one", profile="python-base")
        with pytest.raises(InvalidRequest, match="its remotes name none"):
            await client.prepare_image("docker://python:3.12")


async def test_many_at_once_of_two_images_leave_nothing(setting: Setting) -> None:
    said = await asyncio.gather(*(ran(setting, "cat name", "one" if n % 2 else "two") for n in range(24)))
    assert said == ["one" if n % 2 else "two" for n in range(24)]
    assert setting.server.status().images.held >= 2  # boxes wait for work in them
    wait_for(lambda: (images := setting.server.status().images).in_use == 0 and images.ready >= 1)
    if os.geteuid() == setting.store.stat().st_uid:
        with pytest.raises(ImageInUse):  # boxes wait for work in it
            ImageStore(setting.store).remove("one")


async def test_a_server_without_images_says_so(server: Server) -> None:
    async with ExecutorClient(server.target) as client:
        for call in (
            client.execute("true", language="bash", image="one"),
            client.prepare_image("docker://python:3.12"),
        ):
            with pytest.raises(InvalidRequest, match="its image_dir is empty"):
                await call
