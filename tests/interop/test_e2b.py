"""E2B's own SDKs, unmodified, against the service as people start it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("e2b_code_interpreter", reason="E2B's SDKs are not installed: make test-interop")

import e2b
from e2b_code_interpreter import AsyncSandbox, Sandbox

from executor_service import ExecutorClient
from fairbox.net.ports import free_port
from tests.executor.images.archives import Entry, folder, host_layer, layer
from tests.executor.servers import Server, running, wait_for
from tests.rollout.harbor.folders import PROGRAMS, add_image, python_layer

pytestmark = pytest.mark.e2b


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as started:
        yield started


@contextmanager
def serving(target: str, *settings: str) -> Iterator[str]:
    """A service; its address."""
    address = f"http://127.0.0.1:{free_port()}"
    words = [sys.executable, "-m", "fairbox_e2b", f"executor={target}", f"listen={address[7:]}", *settings]
    process = subprocess.Popen(words)
    try:
        wait_for(lambda: process.poll() is not None or status_of(address) == 501)
        yield address
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0


def status_of(address: str, path: str = "/", data: bytes | None = None, **headers: str) -> int | None:
    """Status of a request without the SDK; None: nothing listens."""
    request = urllib.request.Request(address + path, data, {k.replace("_", "-"): v for k, v in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return int(json.loads(error.read())["code"])
    except OSError:
        return None


@pytest.fixture(scope="module")
def service(server: Server) -> Iterator[str]:
    with serving(server.target, "max_timeout_s=600") as address:
        yield address


@pytest.fixture(autouse=True)
def environment(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"API_URL": service, "SANDBOX_URL": service, "API_KEY": "e2b_any"}.items():
        monkeypatch.setenv(f"E2B_{name}", value)


@pytest.fixture
def sandbox() -> Iterator[Any]:
    made = Sandbox.create(timeout=300, envs={"GREETING": "hello"}, metadata={"task": "7"})
    yield made
    made.kill()


def sessions(server: Server) -> int:
    async def count() -> int:
        async with ExecutorClient(server.target) as client:
            return len(await client.list_sessions(owner="e2b"))

    return asyncio.run(count())


def test_a_sandbox_lives_until_it_is_killed(sandbox: Any, server: Server) -> None:
    assert sandbox.is_running()
    assert sandbox.get_info().metadata == {"task": "7"}
    listed = Sandbox.list(query=e2b.SandboxQuery(metadata={"task": "7"})).next_items()
    assert [each.sandbox_id for each in listed] == [sandbox.sandbox_id]
    assert not Sandbox.list(query=e2b.SandboxQuery(metadata={"task": "8"})).next_items()
    sandbox.run_code("x = 1")
    again = Sandbox.connect(sandbox.sandbox_id)
    assert again.run_code("x").text == "1"
    before = sessions(server)
    assert (again.kill(), again.kill(), again.is_running(), sessions(server)) == (True, False, False, before - 1)
    with pytest.raises(e2b.exceptions.SandboxNotRunningException):
        again.commands.run("true")
    with pytest.raises(e2b.NotFoundException):
        again.set_timeout(10)


def test_a_sandbox_ends_with_its_timeout(sandbox: Any) -> None:
    sandbox.set_timeout(1)
    wait_for(lambda: not sandbox.is_running())


def test_code_keeps_its_state_and_shows_values_output_and_errors(sandbox: Any) -> None:
    heard: list[str] = []
    first = sandbox.run_code(
        "import sys, os\nx = 6\nprint('out', os.environ['GREETING'], os.environ['TWICE'])\n"
        "print('err', file=sys.stderr)\ndisplay('shown')\nx * 7",
        envs={"TWICE": "2"},
        on_stdout=lambda message: heard.append(message.line),
    )
    assert ("".join(first.logs.stdout), "".join(first.logs.stderr)) == ("out hello 2\n", "err\n")
    assert "".join(heard) == "out hello 2\n"
    assert [(each.text, each.is_main_result) for each in first.results] == [("'shown'", False), ("42", True)]
    assert (first.text, first.execution_count, first.error) == ("42", 1, None)
    second = sandbox.run_code("'TWICE' in os.environ, x")
    assert (second.text, second.execution_count) == ("(False, 6)", 2)
    error = sandbox.run_code("def f():\n    1 / 0\nf()").error
    assert (error.name, error.value) == ("ZeroDivisionError", "division by zero")
    assert 'File "<cell 3>", line 2, in f' in error.traceback
    assert "kernel.py" not in error.traceback
    assert sandbox.run_code("def").error.name == "SyntaxError"
    assert sandbox.run_code("exit(3)").error.name == "SystemExit"
    assert sandbox.run_code("await __import__('asyncio').sleep(0, 'later')").text == "'later'"


def test_values_have_the_forms_of_notebooks(sandbox: Any) -> None:
    result = sandbox.run_code(
        "class Page:\n    def _repr_html_(self): return '<b>x</b>'\n    def _repr_png_(self): return b'png'\n"
        "    def _repr_json_(self): return {'a': 1}\nPage()"
    ).results[0]
    assert (result.html, result.png, result.json) == ("<b>x</b>", "cG5n", {"a": 1})
    assert "Page object" in result.text


def test_a_cell_that_takes_too_long_is_interrupted_and_keeps_the_state(sandbox: Any) -> None:
    sandbox.run_code("x = 1")
    with pytest.raises(e2b.TimeoutException):
        sandbox.run_code("x = 2\nwhile True: pass", timeout=1)
    assert sandbox.run_code("x").text == "2"


def test_an_interpreter_that_ended_is_an_error_of_the_code_and_replaced(sandbox: Any) -> None:
    sandbox.run_code("x = 1")
    assert sandbox.run_code("import os; os._exit(0)").error.name == "InterpreterEnded"
    assert sandbox.run_code("'x' in globals()").text == "False"


@pytest.mark.parametrize(
    "spoil", ["mkdir -p .fairbox/default.socket", "ln -s /nowhere .fairbox", "ln -s / .fairbox", "echo x > .fairbox"]
)
def test_code_that_spoils_the_interpreters_folder_has_an_error_of_its_own(sandbox: Any, spoil: str) -> None:
    assert sandbox.commands.run(f"cd /sandbox && {spoil}").exit_code == 0
    assert sandbox.run_code("1").error is not None
    assert sandbox.commands.run("echo still here").stdout == "still here\n"


def test_contexts_have_variables_of_their_own(sandbox: Any) -> None:
    sandbox.run_code("x = 1")
    context = sandbox.create_code_context(cwd="/tmp")
    assert sandbox.run_code("import os; os.getcwd(), 'x' in globals()", context=context).text == "('/tmp', False)"
    assert {each.id for each in sandbox.list_code_contexts()} == {"default", context.id}
    sandbox.run_code("y = 1", context=context)
    sandbox.restart_code_context(context)
    assert sandbox.run_code("'y' in globals()", context=context).text == "False"
    sandbox.remove_code_context(context)
    with pytest.raises(e2b.NotFoundException):
        sandbox.run_code("1", context=context)
    with pytest.raises(e2b.SandboxException, match="runs python"):
        sandbox.run_code("1", language="js")


def test_commands_code_and_files_share_a_folder(sandbox: Any) -> None:
    sandbox.files.write("data/in.txt", "süß\n")
    assert sandbox.commands.run("cat data/in.txt").stdout == "süß\n"
    assert sandbox.run_code("open('data/in.txt').read()").text == r"'süß\n'"
    sandbox.run_code("_ = open('data/out.bin', 'wb').write(bytes(range(256)))")
    assert sandbox.files.read("data/out.bin", format="bytes") == bytes(range(256))


def test_a_command_has_its_exit_code_output_folder_and_environment(sandbox: Any) -> None:
    heard: list[str] = []
    done = sandbox.commands.run(
        "pwd; echo $A $GREETING; echo e >&2", cwd="/tmp", envs={"A": "1"}, on_stdout=heard.append
    )
    assert (done.stdout, done.stderr, done.exit_code) == ("/tmp\n1 hello\n", "e\n", 0)
    assert "".join(heard) == done.stdout
    with pytest.raises(e2b.CommandExitException) as caught:
        sandbox.commands.run("echo before; exit 3")
    assert (caught.value.exit_code, caught.value.stdout) == (3, "before\n")
    with pytest.raises(e2b.TimeoutException):
        sandbox.commands.run("sleep 60", timeout=1)
    with pytest.raises(e2b.SandboxException, match="user"):
        sandbox.commands.run("true", user="root")
    with pytest.raises(e2b.SandboxException, match="standard input"):
        sandbox.commands.run("cat", stdin=True)


def test_output_beyond_the_bound_is_said(sandbox: Any) -> None:
    done = sandbox.commands.run("head -c 5000000 /dev/zero | tr '\\0' x")
    assert len(done.stdout) == 2 << 20
    assert "stdout had 5000000 bytes" in done.error


def test_commands_run_in_the_background_beside_code(sandbox: Any) -> None:
    handle = sandbox.commands.run("echo up; while [ ! -e stop ]; do sleep 0.1; done; echo down", background=True)
    assert sandbox.run_code("40 + 2").text == "42"
    assert [(each.pid, each.args[-1][:7]) for each in sandbox.commands.list()] == [(handle.pid, "echo up")]
    late = sandbox.commands.connect(handle.pid)
    sandbox.files.write("stop", "")
    assert (handle.wait().stdout, late.wait().stdout) == ("up\ndown\n", "down\n")
    assert not sandbox.commands.list()
    endless = sandbox.commands.run("sleep 100", background=True)
    assert (endless.kill(), sandbox.commands.kill(999)) == (True, False)
    with pytest.raises(e2b.CommandExitException) as caught:
        endless.wait()
    assert caught.value.exit_code == 137


def test_a_command_goes_on_when_nobody_listens(sandbox: Any) -> None:
    handle = sandbox.commands.run("sleep 1; touch done", background=True)
    handle.disconnect()
    wait_for(lambda: sandbox.files.exists("done"))


def test_files_and_folders(sandbox: Any, tmp_path: Path) -> None:
    files = sandbox.files
    assert (files.make_dir("a/b"), files.make_dir("a/b")) == (True, False)
    written = files.write_files([{"path": "/tmp/x y", "data": b"1"}, {"path": 'a/it\'s "é"', "data": "2"}])
    assert [each.path for each in written] == ["/tmp/x y", '/sandbox/a/it\'s "é"']
    (tmp_path / "large").write_bytes(b"7" * 3_000_000)
    with (tmp_path / "large").open("rb") as source:
        files.write("a/large", source)
    files.write("empty", "")
    assert (files.read("empty"), files.read("/tmp/x y")) == ("", "1")
    assert b"".join(files.read("a/large", format="stream")) == b"7" * 3_000_000
    sandbox.commands.run("ln -s large a/link; chmod 640 a/large")
    found = {each.name: each for each in files.list("a")}
    assert set(found) == {"b", 'it\'s "é"', "large", "link"}
    assert [found[name].type.value for name in ("b", "large", "link")] == ["dir", "file", "symlink"]
    assert (found["large"].size, found["large"].mode, found["large"].permissions) == (3_000_000, 0o640, "-rw-r-----")
    assert abs(found["large"].modified_time.timestamp() - time.time()) < 600
    assert "/sandbox/a/large" in [each.path for each in files.list(".", depth=2)]
    assert files.rename("a/large", "c/moved").path == "/sandbox/c/moved"
    assert (files.exists("a/large"), files.get_info("c/moved").size) == (False, 3_000_000)
    files.remove("c")
    assert not files.exists("c")
    for call in (files.read, files.list, files.get_info):
        with pytest.raises(e2b.FileNotFoundException):
            call("nothing")
    with pytest.raises(e2b.InvalidArgumentException, match="directory"):
        files.read("a")
    with pytest.raises(e2b.SandboxException, match="permission denied"):
        files.write("/usr/no", "x")


def test_a_template_names_an_image(tmp_path: Path) -> None:
    tools = (*PROGRAMS, "dirname", "find", "head", "id", "mv", "pwd", "stat", "tail", "wc", "whoami")
    people = layer(Entry("etc/passwd", b"root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/app:/bin/sh\n"), folder("tmp"))
    add_image(tmp_path / "store", "plain", [host_layer(*tools), people, layer(Entry("app/README", b"r"))], user="agent")
    add_image(
        tmp_path / "store", "python", [host_layer(*tools, "python3"), python_layer(), people, layer(folder("app"))]
    )
    with running(f"image_dir={tmp_path}/store") as images, serving(images.target, "image=python") as address:
        given = {"api_url": address, "sandbox_url": address}
        with Sandbox.create(**given) as sandbox:
            sandbox.files.write("/srv/of/a", "1")
            code = "import os; os.getcwd(), open('/srv/of/a').read(), __import__('sys').executable"
            assert sandbox.run_code(code).text == "('/app', '1', '/usr/bin/python3')"
        with Sandbox.create("plain", **given) as sandbox:
            assert sandbox.commands.run("whoami; pwd").stdout == "agent\n/app\n"
            assert sandbox.commands.run("whoami", user="root").stdout == "root\n"
            assert [each.name for each in sandbox.files.list(".")] == ["README"]
            with pytest.raises(e2b.SandboxException, match="needs python3"):
                sandbox.run_code("1")
        with pytest.raises(e2b.SandboxException, match="nowhere"):
            Sandbox.create("nowhere", **given)


def test_what_is_not_supported_is_refused_by_a_sentence(sandbox: Any) -> None:
    for call in (sandbox.pause, sandbox.get_metrics, lambda: sandbox.files.watch_dir(".")):
        with pytest.raises(e2b.SandboxException, match="not supported by fairbox"):
            call()
    with pytest.raises(e2b.SandboxException, match="must be from 0 to 600"):
        sandbox.set_timeout(601)
    with pytest.raises(e2b.SandboxException, match="image"):
        Sandbox.create("no-such-image")


def test_a_sandbox_that_code_has_ended_is_not_running(server: Server) -> None:
    sandbox = Sandbox.create()
    error = sandbox.run_code("x = bytearray(8 << 30)\nfor i in range(0, len(x), 4096): x[i] = 1").error
    assert error is not None
    with suppress(e2b.SandboxException):  # the whole sandbox may have gone with it
        assert sandbox.run_code("1").text == "1"
    sandbox.kill()


def test_what_is_too_large_is_refused_by_its_bound(sandbox: Any) -> None:
    with pytest.raises(e2b.SandboxException, match="code may have up to 1048576 characters"):
        sandbox.run_code("#" * (1 << 20) + "1")
    with pytest.raises(e2b.SandboxException, match="metadata may have up to 16384 characters"):
        Sandbox.create(metadata={"task": "x" * 16384})
    assert sandbox.run_code("1").text == "1"


def test_only_who_has_the_token_reaches_a_sandbox(service: str, sandbox: Any) -> None:
    named = {"E2b_Sandbox_Id": sandbox.sandbox_id}
    assert status_of(service, "/health", **named) == 401
    assert status_of(service, "/health", **named, X_Access_Token="wrong") == 401
    assert status_of(service, "/v2/sandboxes") == 401
    assert status_of(service, "/v2/sandboxes", b"[" * 100_000, X_API_KEY="x") == 400
    assert status_of(service, "/v2/sandboxes", b"{" + b" " * (9 << 20) + b"}", X_API_KEY="x") in (413, None)
    assert sandbox.is_running()


def test_clients_that_stand_still_leave_others_served(service: str, sandbox: Any) -> None:
    sandbox.commands.run("head -c 30000000 /dev/zero > /sandbox/large")
    head = f"E2b-Sandbox-Id: {sandbox.sandbox_id}\r\nX-Access-Token: {sandbox._envd_access_token}\r\n"
    read = f"GET /files?path=/sandbox/large HTTP/1.1\r\nHost: x\r\n{head}\r\n"
    form = "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 1000\r\n"
    part = '--b\r\nContent-Disposition: form-data; name="file"; filename="/sandbox/x"\r\n\r\nbegun'
    write = f"POST /files HTTP/1.1\r\nHost: x\r\n{head}{form}\r\n{part}"
    host, _, port = service.removeprefix("http://").partition(":")
    with ExitStack() as stack:
        for said in (read, write) * 3:
            connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            connection.sendall(said.encode())
        time.sleep(2)
        sandbox.files.write("/sandbox/other", "text", request_timeout=55)
        assert sandbox.files.read("/sandbox/other", request_timeout=55) == "text"


def test_sandboxes_are_counted_keys_compared_and_all_end_with_the_service(server: Server, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("e2b_secret\n")
    before = sessions(server)
    with serving(server.target, "max_sandboxes=1", f"api_key_file={tmp_path / 'key'}") as address:
        given = {"api_url": address, "sandbox_url": address}
        with pytest.raises(e2b.AuthenticationException):
            Sandbox.create(**given)
        sandbox = Sandbox.create(api_key="e2b_secret", **given)
        assert sandbox.run_code("1").text == "1"
        with pytest.raises(e2b.RateLimitException, match="as many as may"):
            Sandbox.create(api_key="e2b_secret", **given)
        assert sessions(server) == before + 1
    assert sessions(server) == before


def test_an_executor_that_is_away_is_no_result() -> None:
    refused = pytest.raises(e2b.exceptions.ServiceBusyException, match=r"127\.0\.0\.1:9: Connection refused")
    with serving("127.0.0.1:9") as address, refused:
        Sandbox.create(api_url=address, sandbox_url=address, retries=0)


def test_an_executor_that_dies_is_no_result(server: Server) -> None:
    with running() as mortal, serving(mortal.target) as address:
        sandbox = Sandbox.create(api_url=address, sandbox_url=address)
        with ThreadPoolExecutor(2) as threads:
            code = threads.submit(sandbox.run_code, "print('begun', flush=True); import time; time.sleep(60)")
            command = threads.submit(sandbox.commands.run, "echo begun; sleep 60")
            time.sleep(3)
            mortal.process.kill()
            for each in (code, command):
                error = each.exception(timeout=60)
                assert isinstance(error, Exception)
                assert not isinstance(error, e2b.CommandExitException)


def test_a_sandbox_that_ends_ends_what_runs_there(sandbox: Any) -> None:
    handle = sandbox.commands.run("sleep 60", background=True)
    sandbox.kill()
    with pytest.raises(e2b.exceptions.SandboxNotRunningException):
        handle.wait()


def test_it_listens_on_loopback_unless_there_is_a_key() -> None:
    words = [sys.executable, "-m", "fairbox_e2b", "listen=0.0.0.0:3000"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))
    assert (ended.returncode, "not loopback" in ended.stderr) == (2, True)


async def test_the_async_client_does_the_same() -> None:
    async with await AsyncSandbox.create() as sandbox:
        assert await sandbox.is_running()
        await sandbox.files.write("a.txt", "1")
        cell, done = await asyncio.gather(sandbox.run_code("open('a.txt').read()"), sandbox.commands.run("cat a.txt"))
        assert (cell.text, done.stdout) == ("'1'", "1")
        handle = await sandbox.commands.run("sleep 100", background=True)
        assert await handle.kill()
        with pytest.raises(e2b.TimeoutException):
            await sandbox.run_code("import time; time.sleep(60)", timeout=1)
        assert (await sandbox.run_code("1 / 0")).error.name == "ZeroDivisionError"
    assert not await sandbox.is_running()
