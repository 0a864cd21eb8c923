"""Sessions that are shells in images: what they keep, see, and say of images that have no shell."""

from __future__ import annotations

import asyncio

import pytest

from executor_service import CannotBranch, ExecutorClient, InputFile, InvalidRequest, Limits, NotFound, Outcome
from tests.executor.images.conftest import Setting
from tests.executor.servers import said, wait_for


async def test_a_shell_begins_in_its_image_and_keeps_what_commands_change(client: ExecutorClient) -> None:
    async with client.session(language="bash", image="one", env={"EXTRA": "more"}) as session:
        assert session.info.image == "one"
        assert await said(session, 'id -u; pwd; cat name; echo " $GREETING $EXTRA"') == "0\n/srv\none hello more\n"
        await said(session, "x=5; cd /tmp; echo new > /srv/name; touch /usr/bin/more; rm -r /srv/d")
        assert await said(session, "echo $x; pwd; cat /srv/name; ls /srv /usr/bin/more") == (
            "5\n/tmp\nnew\n/usr/bin/more\n\n/srv:\nname\n"
        )
    async with client.session(language="bash", image="one") as session:
        assert await said(session, "cat name; echo $x; ls") == "one\nd\nname\n"


async def test_files_go_to_the_work_folder_and_come_from_there(client: ExecutorClient) -> None:
    async with client.session(language="bash", image="one", files=[InputFile("first", b"1")]) as session:
        result = await session.run(
            "cat /sandbox/first /sandbox/second - > /sandbox/out",
            stdin=b"3",
            files=[InputFile("second", b"2")],
            return_paths=["out"],
        )
        assert result.files[0].content == b"123"


async def test_a_command_that_takes_too_long_is_interrupted_and_the_shell_stays(client: ExecutorClient) -> None:
    async with client.session(language="bash", image="one") as session:
        await said(session, "x=kept")
        result = await session.run("sleep 60; echo no", limits=Limits(wall_time_s=1))
        assert (result.outcome, result.stdout.text) == (Outcome.TIME_LIMIT, "")
        assert await said(session, "echo $x") == "kept\n"


async def test_an_image_without_bash_has_its_sh(client: ExecutorClient) -> None:
    async with client.session(language="bash", image="plain") as session:
        assert await said(session, "x='it'\"'\"'s'; echo ${BASH_VERSION-none}") == "none\n"
        wrong = await session.run("if (")
        assert (wrong.outcome, wrong.exit_code) == (Outcome.NONZERO_EXIT, 2)
        assert (await session.run("sleep 60", limits=Limits(wall_time_s=1))).outcome is Outcome.TIME_LIMIT
        assert await said(session, "echo $x; cat") == "it's\n"
        assert (await session.run("exit 3")).message.startswith("The shell exited with code 3.")
        assert await said(session, "echo ${x-gone}") == "gone\n"


async def test_images_without_a_shell_are_refused(client: ExecutorClient) -> None:
    for image, problem in (("shell-less", "No such file"), ("odd", "File exists")):
        with pytest.raises(InvalidRequest, match=f"is '{image}', in which no shell can be started: .*{problem}"):
            await client.create_session(language="bash", image=image)
    with pytest.raises(NotFound, match="no image 'three'"):
        await client.create_session(language="bash", image="three")
    with pytest.raises(InvalidRequest, match="language is 'python', must be bash: sessions in images have no other"):
        await client.create_session(image="one")
    with pytest.raises(InvalidRequest, match="image is set, must not be with a workspace_id"):
        await client.create_session(language="bash", image="one", workspace_id="w")


async def test_root_of_an_image_stays_in_it(client: ExecutorClient) -> None:
    escapes = "mount -t tmpfs none /tmp; unshare --user /usr/bin/id; chroot /srv /usr/bin/id; ls /proc/1/root/"
    escapes += "; touch /proc/$PPID/exe; ls /proc/$PPID/root/home; ls /proc/$PPID/cwd/../home"
    async with client.session(language="bash", image="one") as session:
        for command in escapes.split("; "):
            assert (await session.run(command)).outcome is Outcome.NONZERO_EXIT, command
        assert "ELF" in await said(session, "cat /proc/$PPID/exe")  # what serves it is all that is the host's
        with pytest.raises(CannotBranch, match="it is a shell"):
            await session.branch()


async def test_many_shells_at_once_leave_nothing(client: ExecutorClient, setting: Setting) -> None:
    async def work(number: int) -> None:
        name = ("one", "two")[number % 2]
        async with client.session(language="bash", image=name) as session:
            await said(session, f"cd /tmp; n={number}; sleep 60 & true")
            for _ in range(5):
                assert await said(session, "cat /srv/name; echo $n; pwd") == f"{name}{number}\n/tmp\n"

    await asyncio.gather(*map(work, range(12)))
    wait_for(lambda: setting.server.status().images.in_use == 0)
