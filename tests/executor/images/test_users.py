"""Users of images: who programs, shells and commands beside them are, and what that keeps them from."""

from __future__ import annotations

import asyncio

import pytest

from executor_service import ExecutionResult, Executor, ExecutorClient, InputFile, InvalidRequest, Outcome, Session
from rollout.cli import main
from tests.executor.images.conftest import Setting

WHO = "id -u; id -g; echo $HOME $USER"
ANN = "1234\n55\n/home/ann ann\n"
CAPABILITIES = 'while read -r name value; do case $name in Cap*) echo -n "$value ";; esac; done < /proc/self/status'
NONE = "0000000000000000 " * 5


async def ran(client: ExecutorClient, code: str, user: str = "", image: str = "peopled") -> ExecutionResult:
    return await client.execute(code, language="bash", image=image, user=user)


async def said(session: Session, command: str, user: str | None = None) -> str:
    """Output of a command that succeeds; with a user, empty or not, one beside the shell."""
    result = await session.run(command, beside=user is not None, user=user or "")
    assert result.outcome is Outcome.FINISHED, (result, result.stderr.text)
    return result.stdout.text


USERS = {
    "": "1234\n77\n/home/ann ann\n",  # the image's own
    "root": "0\n0\n/root root\n",
    "0": "0\n0\n/root root\n",
    "ann": ANN,
    "1234": ANN,
    "ann:staff": "1234\n77\n/home/ann ann\n",
    "root:9": "0\n9\n/root root\n",
    "4294967294:3": "4294967294\n3\n/\n",
}


async def test_programs_run_as_the_user_that_is_asked_for(client: ExecutorClient) -> None:
    assert {user: (await ran(client, WHO, user)).stdout.text for user in USERS} == USERS


UNKNOWN = ["bob", "ann:bobs", "huge", "99999999999", "odd line", "ann:", ":staff", "a" * 129]


async def test_unknown_users_are_refused(client: ExecutorClient) -> None:
    async with client.session(language="bash", image="peopled") as session:
        for user in UNKNOWN:
            for call in (
                ran(client, "id", user),
                client.create_session(language="bash", image="peopled", user=user),
            ):
                with pytest.raises(InvalidRequest) as caught:
                    await call
                assert [field.field for field in caught.value.fields] == ["user"], user
            with pytest.raises(InvalidRequest, match="user is "):
                await session.run("id", beside=True, user=user)
        assert await said(session, "id -u") == "1234\n"


async def test_an_image_whose_own_user_is_unknown_is_refused(client: ExecutorClient) -> None:
    with pytest.raises(InvalidRequest, match=r"user is '', which can't be had in image 'stray': .*'nobody-here'"):
        await ran(client, "id", image="stray")
    assert (await ran(client, WHO, "root", image="stray")).stdout.text == "0\n0\n/root root\n"


async def test_users_are_of_images_alone(client: ExecutorClient) -> None:
    with pytest.raises(InvalidRequest, match="user is set, must be empty without an image"):
        await client.execute("1", user="ann")
    with pytest.raises(InvalidRequest, match="user is set, must be empty without an image"):
        await client.create_session(language="bash", user="ann")
    async with client.session(language="bash", image="peopled") as session:
        with pytest.raises(InvalidRequest, match="user is set, must be empty without beside"):
            await session.run("id", user="ann")
    async with client.session(language="bash") as session:
        with pytest.raises(InvalidRequest, match="user is set, must be empty: the session has no image"):
            await session.run("id", beside=True, user="ann")


async def test_another_user_than_root_has_no_capability(client: ExecutorClient) -> None:
    assert (await ran(client, CAPABILITIES, "ann")).stdout.text == NONE
    assert (await ran(client, CAPABILITIES, "root")).stdout.text != NONE
    async with client.session(language="bash", image="peopled", user="ann") as session:
        assert await said(session, CAPABILITIES) == NONE
        assert await said(session, CAPABILITIES, user="ann") == NONE
        for command in ("mount -t tmpfs none /tmp", "unshare --user id", "chroot / id", "ls /proc/1/root/"):
            for beside in (False, True):
                assert (await session.run(command, beside=beside)).outcome is Outcome.NONZERO_EXIT, command


async def test_users_are_no_wall_within_an_image(client: ExecutorClient) -> None:
    """All files of an image belong to one uid of the host, which is whoever the program is."""
    async with client.session(language="bash", image="peopled", user="root") as session:
        await said(session, "echo secret > /root-only; chmod 600 /root-only; sleep 4646.5 & echo $! > /tmp/pid")
        assert await said(session, "cat /root-only; stat -c %u /root-only; echo changed > /root-only", user="ann") == (
            "secret\n1234\n"
        )
        assert await said(session, "cat /root-only; stat -c %u /root-only") == "changed\n0\n"
        assert (await session.run("kill $(cat /tmp/pid)", beside=True, user="ann")).outcome is Outcome.FINISHED


async def test_a_session_has_one_user_and_commands_beside_have_others(client: ExecutorClient) -> None:
    async with client.session(language="bash", image="peopled", user="ann") as session:
        assert await said(session, WHO) == ANN
        assert await said(session, WHO, user="") == ANN
        assert await said(session, WHO, user="root") == "0\n0\n/root root\n"
        await said(session, "echo bob:x:77:78::/home/bob: >> /etc/passwd")
        assert await said(session, WHO, user="bob") == "77\n78\n/home/bob bob\n"
        result = await session.run(
            "cat /sandbox/in > /sandbox/out",
            beside=True,
            user="bob",
            files=[InputFile("in", b"1")],
            return_paths=["out"],
        )
        assert result.files[0].content == b"1"
    async with client.session(language="bash", image="peopled") as session:
        snapshot = await session.snapshot()
        assert await said(session, "id -u; id -g") == "1234\n77\n"
        assert (await ran(client, WHO, image=snapshot.image)).stdout.text == "1234\n77\n/home/ann ann\n"


async def test_odd_files_of_users_are_as_none(client: ExecutorClient) -> None:
    async with client.session(language="bash", image="peopled", user="root") as session:
        for make in ("mkfifo", "mkdir", "ln -s /dev/zero", "ln -s /proc/1/mem", "truncate -s 60M"):
            await said(session, f"rm -rf /etc/passwd; {make} /etc/passwd")
            with pytest.raises(InvalidRequest, match="no user 'ann' in the image's /etc/passwd"):
                await session.run("id", beside=True, user="ann")
        await said(session, "rm -rf /etc/passwd")
        assert await said(session, "id -u", user="7") == "7\n"


async def test_many_users_at_once(client: ExecutorClient) -> None:
    async with client.session(language="bash", image="peopled") as session:
        uids = range(100, 112)
        outputs = await asyncio.gather(*(said(session, "id -u", user=str(uid)) for uid in uids))
        assert outputs == [f"{uid}\n" for uid in uids]


def test_users_are_named_on_the_command_line_and_without_an_event_loop(
    setting: Setting, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    target = setting.server.target
    words = ["exec", "--executor", target, "--image", "peopled", "--user", "root", "--language", "bash", "-c", "id -u"]
    assert main(words) == 0
    assert capfd.readouterr().out == "0\n"
    with Executor(target) as executor:
        assert executor.run("id -u", language="bash", image="peopled", user="ann").stdout.text == "1234\n"
        with executor.session(language="bash", image="peopled") as session:
            assert session.run("id -u", beside=True, user="root").stdout.text == "0\n"
