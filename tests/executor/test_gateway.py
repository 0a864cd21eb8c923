"""SandboxFusion's interface over real HTTP: statuses, replies, files, limits, tokens, overload, lost clients."""

from __future__ import annotations

import base64
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pytest
import requests

from executor_service.v1 import executor_pb2 as pb
from tests.executor.gateways import GatewayServer, gateway
from tests.executor.servers import ROOT, each_refused, processes_with, wait_for


@pytest.fixture
def server(gateway_server: GatewayServer) -> GatewayServer:
    return gateway_server


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def count(server: GatewayServer, outcome: pb.Outcome.ValueType) -> int:
    return server.server.status().outcomes[pb.Outcome.Name(outcome).removeprefix("OUTCOME_")]


def test_ping_answers_pong(server: GatewayServer) -> None:
    response = server.get("/v1/ping")
    assert (response.status_code, response.json()) == (200, "pong")
    assert response.headers["Content-Type"].startswith("application/json")


def test_the_root_is_a_page_and_the_interface_is_described(server: GatewayServer) -> None:
    assert server.get("/").headers["Content-Type"].startswith("text/html")
    description = server.get("/openapi.json").json()
    assert {"/run_code", "/submit", "/v1/ping"} <= set(description["paths"])
    assert "python" in description["components"]["schemas"]["RunCodeRequest"]["properties"]["language"]["enum"]


def test_a_program_that_prints_is_a_success(server: GatewayServer) -> None:
    reply = server.run("sum(range(2_000_000)); print(123)", run_timeout=30)
    run = reply["run_result"]
    assert (reply["status"], reply["message"], reply["compile_result"], reply["files"]) == ("Success", "", None, {})
    assert (run["status"], run["return_code"], run["stdout"], run["stderr"]) == ("Finished", 0, "123\n", "")
    assert 0 < run["execution_time"] < 30
    assert run["cpu_time"] > 0
    assert reply["executor_pod_name"] == server.server.status().served_by


@pytest.mark.parametrize(
    ("language", "code", "fields", "status", "stdout"),
    [
        ("python", "print(int(input()))", {"stdin": "65535"}, "Success", "65535\n"),
        ("python", "print(repr(input()))", {"stdin": None}, "Failed", ""),
        ("python", "import sys; print(repr(sys.stdin.read()))", {"stdin": ""}, "Success", "''\n"),
        ("python", "", {}, "Success", ""),
        ("python", "print(open('a/b/c').read())", {"files": {"a/b/c": b64("flag")}}, "Success", "flag\n"),
        ("bash", 'echo "Hello World"', {}, "Success", "Hello World\n"),
        ("bash", "read input\necho $input", {"stdin": "65535"}, "Success", "65535\n"),
        ("bash", "cat a/b/c", {"files": {"a/b/c": b64("flag")}}, "Success", "flag"),
        ("bash", "test 1 -eq 2", {}, "Failed", ""),
    ],
)
def test_programs_read_what_they_are_given(
    server: GatewayServer, language: str, code: str, fields: dict[str, Any], status: str, stdout: str
) -> None:
    reply = server.run(code, language=language, run_timeout=30, **fields)
    assert (reply["status"], reply["run_result"]["status"]) == (status, "Finished")
    assert reply["run_result"]["stdout"] == stdout


@pytest.mark.parametrize(
    ("code", "return_code", "stderr"),
    [
        ("assert 1 == 2", 1, "AssertionError"),
        ("int a = 1", 1, "SyntaxError: invalid syntax"),
        ("raise SystemExit(3)", 3, ""),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import os; os.kill(os.getpid(), 15)", -15, ""),
        ("import os; os.abort()", -6, ""),
        ("x = bytearray(900 << 20)", 137, "memory"),
    ],
)
def test_a_failure_of_the_program_is_a_200(server: GatewayServer, code: str, return_code: int, stderr: str) -> None:
    reply = server.run(code, run_timeout=30, memory_limit_MB=128)
    run = reply["run_result"]
    assert (reply["status"], run["status"], run["return_code"]) == ("Failed", "Finished", return_code)
    assert stderr in run["stderr"]
    assert isinstance(run["stdout"], str)


@pytest.mark.parametrize("language", ["python", "bash"])
def test_a_timeout_keeps_what_was_printed(server: GatewayServer, language: str) -> None:
    code = {"python": "import time; print('part', flush=True); time.sleep(60)", "bash": "echo part; sleep 60"}[language]
    reply = server.run(code, language=language, run_timeout=2)
    run = reply["run_result"]
    assert (reply["status"], run["status"], run["return_code"]) == ("Failed", "TimeLimitExceeded", None)
    assert run["stdout"] == "part\n"


@pytest.mark.parametrize("seconds", [0, -1, "-0.5"])
def test_no_time_at_all_is_a_timeout_at_once(server: GatewayServer, seconds: Any) -> None:
    run = server.run("print(1)", run_timeout=seconds)["run_result"]
    assert (run["status"], run["return_code"], run["stdout"]) == ("TimeLimitExceeded", None, "")


def test_a_limit_of_a_gibibyte_lets_threads_start_and_large_addresses_be_reserved(server: GatewayServer) -> None:
    code = """import mmap, threading
mmap.mmap(-1, 2 << 30).close()
threads = [threading.Thread(target=print, args=("x",)) for _ in range(8)]
[thread.start() for thread in threads]"""
    assert server.run(code, memory_limit_MB=1024, run_timeout=30)["run_result"]["stdout"] == "x\n" * 8


def test_a_large_output_is_drained_cut_and_said_to_be_cut(server: GatewayServer) -> None:
    reply = server.run("print('x' * 3_000_000)", run_timeout=60)
    run = reply["run_result"]
    assert (reply["status"], run["return_code"], run["stdout_truncated"]) == ("Success", 0, True)
    assert len(run["stdout"]) == 1 << 20


def test_binary_output_is_replaced_and_not_lost(server: GatewayServer) -> None:
    code = "import sys; sys.stdout.buffer.write(b'a\\xff\\xfeb')"
    assert server.run(code)["run_result"]["stdout"] == "a\ufffd\ufffdb"


def test_files_are_fetched_from_the_work_folder_alone(server: GatewayServer) -> None:
    code = """import os
open("a.txt", "w").write("secret")
os.symlink("/etc/passwd", "link"); os.mkfifo("pipe"); os.mkdir("folder")
with open("giant", "wb") as f: f.truncate(1 << 26)"""
    asked = ["a.txt", "./a.txt", "link", "pipe", "folder", "missing", "giant", "/etc/passwd", "../../etc/passwd"]
    asked.append("/sandbox/a.txt")
    reply = server.run(code, fetch_files=asked, run_timeout=30)
    assert reply["status"] == "Success"
    assert reply["files"] == dict.fromkeys(("a.txt", "./a.txt", "/sandbox/a.txt"), b64("secret"))
    assert set(reply["files_left_out"]) == set(asked) - reply["files"].keys()
    assert [reply["files_left_out"][name] for name in ("giant", "../../etc/passwd")] == [
        "TOO_LARGE",
        "not in the work folder",
    ]


def test_no_file_is_written_outside_the_work_folder(server: GatewayServer, tmp_path: Path) -> None:
    target = tmp_path / "written"
    for path in (str(target), "../" * 12 + str(target)[1:]):
        assert server.post("/run_code", {"code": "1", "files": {path: b64("x")}}).status_code == 422
    assert not target.exists()


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({}, ["body", "code"]),
        ({"code": "1", "language": "js"}, ["body", "language"]),
        ({"code": "1", "run_timeout": None}, ["body", "run_timeout"]),
        ({"code": "1", "run_timeout": 601}, ["body", "run_timeout"]),
        ({"code": "1", "memory_limit_MB": 1 << 70}, ["body", "memory_limit_MB"]),
        ({"code": "x" * (1 << 20) + "x"}, ["body", "code"]),
        ({"code": "1", "fetch_files": [str(i) for i in range(300)]}, ["body", "fetch_files"]),
        ({"code": "1", "files": {"main.py": ""}}, ["body", "files"]),
        ([], ["body"]),
    ],
)
def test_a_bad_field_is_a_422_that_names_it(server: GatewayServer, body: Any, loc: list[str]) -> None:
    response = server.post("/run_code", body)
    assert response.status_code == 422
    detail = response.json()["detail"][0]
    assert detail["loc"] == loc
    assert set(detail) >= {"type", "loc", "msg", "input"}


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b'{"code": "1"', b"\xff", b"[" * 100_000, b'{"code": "print(\\ud800)"}', b'{"code": 1e999999}'],
)
def test_what_is_not_a_request_is_a_422(server: GatewayServer, data: bytes) -> None:
    response = server.post("/run_code", data=data, headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    assert "Traceback" not in response.text


@pytest.mark.parametrize(
    ("method", "path", "status", "detail"),
    [
        ("GET", "/run_code", 405, "Method Not Allowed"),
        ("POST", "/v1/ping", 405, "Method Not Allowed"),
        ("GET", "/nope", 404, "Not Found"),
        ("POST", "/k/some-token-of-mine/run_code", 404, "Not Found"),
        ("GET", "/k/some-token-of-mine/v1/ping", 404, "Not Found"),
    ],
)
def test_other_paths_and_methods_are_refused(
    server: GatewayServer, method: str, path: str, status: int, detail: str
) -> None:
    response = requests.request(method, server.url + path, json={"code": "1"}, timeout=30)
    assert (response.status_code, response.json()) == (status, {"detail": detail})


def test_a_body_that_is_too_large_is_refused_by_its_size(server: GatewayServer) -> None:
    assert server.post("/run_code", {"code": "1", "stdin": "x" * 34_000_000}).status_code == 413
    chunks = (b"x" * 1_000_000 for _ in range(34))
    assert server.post("/run_code", data=chunks).status_code == 413
    assert server.run("print(1)")["status"] == "Success"


def test_a_client_that_goes_away_takes_its_run_with_it(server: GatewayServer) -> None:
    before = count(server, pb.OUTCOME_CANCELLED)
    code = "import subprocess; subprocess.run(['sleep', '29' + '8.7531'])"
    program = f"""import requests, sys
requests.post(sys.argv[1] + "/run_code", json={{"code": {code!r}, "run_timeout": 300}})"""
    client = subprocess.Popen([sys.executable, "-c", program, server.url])
    wait_for(lambda: processes_with("298.7531", server.server.pid))
    client.kill()
    client.wait()
    wait_for(lambda: not processes_with("298.7531", server.server.pid))
    wait_for(lambda: server.server.status().running == 0)
    assert count(server, pb.OUTCOME_CANCELLED) == before + 1


def test_an_overload_is_a_504_that_says_when_to_ask_again_and_ping_still_answers() -> None:
    with (
        gateway("max_concurrent=1", "max_queued=1", "gateway_queue_timeout_s=3", "drain_grace_s=1") as busy,
        ThreadPoolExecutor(2) as pool,
    ):
        body = {"code": "import time; time.sleep(300)", "run_timeout": 300}
        running = pool.submit(busy.post, "/run_code", body)
        wait_for(lambda: busy.server.status().running == 1)
        waiting = pool.submit(busy.post, "/run_code", {"code": "1"})
        wait_for(lambda: busy.server.status().queued == 1 or waiting.done())
        refused = busy.post("/run_code", {"code": "1"})
        assert busy.get("/v1/ping").json() == "pong"
        for response in (refused, waiting.result()):
            assert response.status_code == 504
            assert response.json()["detail"].startswith("overloaded: ")
            assert int(response.headers["Retry-After"]) >= 1
        wait_for(lambda: busy.server.status().queued == 0)
        busy.server.process.terminate()
        assert running.result().status_code == 504


def test_the_same_program_sent_twice_runs_twice(server: GatewayServer) -> None:
    code = "import os; print(os.urandom(16).hex())"
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: server.run(code, run_timeout=60), range(8)))
    assert len({reply["run_result"]["stdout"] for reply in replies}) == 8


def test_a_request_is_its_tokens_tenants_and_has_its_share_alone(tmp_path: Path) -> None:
    tokens = {name: f"{name}-0123456789abcdef" for name in ("greedy", "calm")}
    path = tmp_path / "tokens"
    path.write_text("".join(f"{name}:{token}\n" for name, token in tokens.items()))
    words = ("max_concurrent=1", "max_queued=2", "gateway_queue_timeout_s=100", "drain_grace_s=1")
    with gateway(f"gateway_token_file={path}", *words) as shared, ThreadPoolExecutor(4) as pool:

        def run(name: str, code: str) -> Future[requests.Response]:
            body = {"code": code, "run_timeout": 300}
            return pool.submit(shared.post, f"/k/{tokens[name]}/run_code", body)

        runs = run("greedy", "import time; time.sleep(300)")
        wait_for(lambda: shared.server.status().running == 1)
        waits = [run("greedy", "1") for _ in range(2)]
        wait_for(lambda: shared.server.status().queued == 2)
        calm = run("calm", "print(1)")
        refused = next(as_completed(waits, 60)).result()
        assert refused.status_code == 504
        assert "2 of them this tenant's, whose share is 1: this one gave way to another tenant's" in refused.text
        shared.server.process.terminate()
        assert all(each.result(60).status_code == 504 for each in (runs, calm, *waits))


def test_a_bad_setting_ends_the_server_with_one_sentence() -> None:
    each_refused(
        {
            "gateway_listen=0.0.0.0:0": "is not loopback",
            "gateway_listen=nonsense": "must be HOST:PORT",
            "gateway_listen=127.0.0.1:0 gateway_token_file=/nowhere": "can't be read",
            "gateway_listen=127.0.0.1:0 gateway_token_file=/dev/null": "must hold at least one token",
            "gateway_queue_timeout_s=0": "must be positive",
        }
    )


def test_with_a_token_only_those_who_have_it_pass_and_it_is_not_in_the_log(tmp_path: Path) -> None:
    right, wrong = "a-token-of-32-characters-0123456", "a-token-of-32-characters-0123457"
    (tmp_path / "token").write_text(f"{right}\n")
    log, body = tmp_path / "log", {"code": "print(1)"}
    to_log = ["sh", "-c", 'exec "$@" 2>"$0"', str(log)]
    with gateway(f"gateway_token_file={tmp_path / 'token'}", prefix=to_log) as guarded:
        assert guarded.get("/v1/ping").json() == "pong"
        for path in ("/run_code", f"/k/{wrong}/run_code", "/k/%F0%9F%98%80/run_code"):
            response = guarded.post(path, body)
            assert (response.status_code, response.json()) == (401, {"detail": "Unauthorized"})
        assert guarded.post("/run_code", body, headers={"Authorization": f"Bearer {wrong}"}).status_code == 401
        assert guarded.post("/run_code", body, headers={"Authorization": f"Bearer {right}"}).status_code == 200
        assert guarded.post(f"/k/{right}/run_code", body).json()["status"] == "Success"
        assert guarded.post(f"/k/{right}/run_code", data=b"x").status_code == 422
        assert guarded.get(f"/k/{right}/v1/ping").json() == "pong"
    assert "gateway on " in log.read_text()
    assert right not in log.read_text()


def test_importing_the_client_loads_nothing_of_the_gateway() -> None:
    program = "import sys, executor_service, executor_service.config, executor_service.app as _"
    program += "; print([name for name in ('aiohttp', 'pydantic') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
