"""Languages other than Python over `/run_code`, where their toolchains are installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.executor.gateways import GatewayServer, gateway

CPP = "#include <iostream>\nint main() { int x; std::cin >> x; std::cout << x + 1; }"
NODE = "process.stdin.on('data', d => console.log(+d + 1))"


@pytest.fixture(scope="module")
def server() -> Iterator[GatewayServer]:
    with gateway("max_concurrent=4", "languages=") as started:
        yield started


@pytest.mark.parametrize(
    ("language", "code", "fields", "status", "return_code", "stdout"),
    [
        ("cpp", CPP, {"stdin": "41"}, "Success", 0, "42"),
        ("cpp", "int main() { return 3; }", {}, "Failed", 3, ""),
        ("cpp", "int main() { return *(volatile int*)0; }", {}, "Failed", -11, ""),
        ("nodejs", NODE, {"stdin": "41"}, "Success", 0, "42\n"),
        ("nodejs", "require('assert')(false)", {}, "Failed", 1, ""),
        ("nodejs", "console.log(1)", {"memory_limit_MB": 1024}, "Success", 0, "1\n"),
        ("pytest", "def test_x(): pass", {}, "Success", 0, None),
        ("pytest", "def test_x(): assert 0", {}, "Failed", 1, None),
    ],
)
def test_other_languages_where_they_are_installed(
    server: GatewayServer,
    language: str,
    code: str,
    fields: dict[str, Any],
    status: str,
    return_code: int,
    stdout: str | None,
) -> None:
    offered(server, language)
    reply = server.run(code, language=language, run_timeout=60, compile_timeout=60, **fields)
    run = reply["run_result"]
    assert (reply["status"], run["status"], run["return_code"]) == (status, "Finished", return_code)
    assert stdout is None or run["stdout"] == stdout
    assert (reply["compile_result"] is None) is (language != "cpp")


@pytest.mark.parametrize(
    ("code", "fields", "status", "return_code"),
    [
        ("int main() { return x; }", {"compile_timeout": 60}, "Finished", 1),
        ("int main() {}", {"compile_timeout": 0.001}, "TimeLimitExceeded", None),
        ("int main() {}", {"compile_timeout": 0}, "TimeLimitExceeded", None),
    ],
)
def test_what_is_not_compiled_is_not_run(
    server: GatewayServer, code: str, fields: dict[str, Any], status: str, return_code: int | None
) -> None:
    offered(server, "cpp")
    reply = server.run(code, language="cpp", **fields)
    compiled = reply["compile_result"]
    assert (reply["status"], reply["run_result"]) == ("Failed", None)
    assert (compiled["status"], compiled["return_code"]) == (status, return_code)
    assert ("error" in compiled["stderr"]) is (return_code == 1)


def offered(server: GatewayServer, language: str) -> None:
    fields = server.get("/openapi.json").json()["components"]["schemas"]["RunCodeRequest"]["properties"]
    if language not in fields["language"]["enum"]:
        pytest.skip(f"{language} is not installed")
