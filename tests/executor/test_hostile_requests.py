"""Requests that mean harm: each is refused by the name of a field, and costs the server's loop next to nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from executor_service.v1 import executor_pb2 as pb
from executor_service.v1 import executor_pb2_grpc
from tests.executor.servers import Server, wait_for

MANY = 500_000
NESTED = '["l", [' * 900 + "]]" * 900


@pytest.fixture
def stub(server: Server) -> Iterator[executor_pb2_grpc.ExecutorServiceStub]:
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.target, options) as channel:
        yield executor_pb2_grpc.ExecutorServiceStub(channel)


def program(**fields: Any) -> pb.ExecuteCodeRequest:
    return pb.ExecuteCodeRequest(code="print(1)", **fields)


def printed(code: str, expected: bytes, stdin: bytes = b"") -> pb.VerifyCodeRequest:
    return pb.VerifyCodeRequest(
        code=code,
        style=pb.VERIFY_STYLE_STDIO,
        comparison=pb.COMPARISON_FLOAT,
        cases=[pb.VerifyCase(stdio=pb.StdioCase(stdin=stdin, expected_stdout=expected))],
        limits=pb.Limits(output_bytes=8 << 20),
    )


def calls(*cases: pb.FunctionCase, code: str = "def f(): return 1") -> pb.VerifyCodeRequest:
    return pb.VerifyCodeRequest(
        code=code,
        style=pb.VERIFY_STYLE_FUNCTION,
        entry_point="f",
        cases=[pb.VerifyCase(function=case) for case in cases],
    )


def files() -> list[pb.InputFile]:
    return [pb.InputFile(path=f"f{i}") for i in range(MANY)]


REQUESTS: dict[str, Any] = {
    "files": lambda: program(files=files()),
    "return_paths": lambda: program(return_paths=map(str, range(MANY))),
    "env": lambda: program(env=dict.fromkeys(map(str, range(MANY)), "")),
    "args": lambda: program(args=["\0"] * MANY),
    "args[0]": lambda: program(args=["\0"] * 256),
    "language": lambda: program(language="x" * (10 << 20)),
    "profile": lambda: program(profile="x" * (10 << 20)),
    "files[0].path": lambda: program(files=[pb.InputFile(path="a/" * (1 << 20))]),
    "cases": lambda: calls(*[pb.FunctionCase(expected="1")] * MANY),
    "cases[0].function.keywords": lambda: calls(pb.FunctionCase(keywords=dict.fromkeys(map(str, range(50_000)), "1"))),
    "cases[0].function.arguments": lambda: calls(pb.FunctionCase(arguments=["1"] * 50_000)),
    "cases[0].function.expected": lambda: calls(pb.FunctionCase(expected=NESTED)),
    "cases[0].function.arguments[0]": lambda: calls(pb.FunctionCase(arguments=[NESTED], expected="1")),
    "test_files": lambda: pb.VerifyCodeRequest(code="x", style=pb.VERIFY_STYLE_PYTEST, test_files=files()[:50_000]),
    "owners": lambda: pb.BranchSessionRequest(session_id="x", owners=["x"] * MANY),
    "page_token": lambda: pb.ListSessionsRequest(page_token="x" * (10 << 20)),
}
"""By the field that is refused."""


def loop_s(server: Server) -> float:
    """Processor time of the server's main thread so far, which its event loop runs in."""
    fields = Path(f"/proc/{server.pid}/task/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("field", REQUESTS)
def test_a_hostile_request_is_refused_at_next_to_no_cost(
    server: Server, stub: executor_pb2_grpc.ExecutorServiceStub, field: str
) -> None:
    request = REQUESTS[field]()
    name = type(request).__name__.removesuffix("Request")
    costs: list[float] = []
    while min(costs, default=1) >= 0.08:  # what the server does meanwhile beside it counts too, more on a busy machine
        assert len(costs) < 5, costs
        began = loop_s(server)
        with pytest.raises(grpc.RpcError) as caught:
            getattr(stub, name)(request, timeout=100)
        costs.append(loop_s(server) - began)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, caught.value
        assert str(caught.value.details()).startswith(f"{field} "), caught.value


NUMBERS = 1 << 20
SETS = '["e", [' + ", ".join(f'["z", [{i}]]' for i in range(9000)) + "]]"
LARGE: dict[str, tuple[pb.VerifyCodeRequest, str]] = {
    "numbers that are close": (printed(f"print('1.0 ' * {NUMBERS})", b"1 " * NUMBERS), "PASSED"),
    "numbers that are not": (printed(f"print('1.0 ' * {NUMBERS - 1}, 2)", b"1 " * NUMBERS), "WRONG_ANSWER"),
    "sets in another order": (
        calls(pb.FunctionCase(expected=SETS), code="def f(): return {frozenset({i}) for i in range(8999, -1, -1)}"),
        "PASSED",
    ),
    "a value that is only large": (
        calls(pb.FunctionCase(expected="1"), code="def f(): return [[[]] for i in range(300_000)]"),
        "WRONG_ANSWER",
    ),
}
"""Answers to compare, and the verdict on each."""


def server_s(server: Server) -> float:
    """Processor time of the server's threads so far."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("name", LARGE)
def test_a_large_answer_is_compared_outside_of_the_server(
    server: Server, stub: executor_pb2_grpc.ExecutorServiceStub, name: str
) -> None:
    request, verdict = LARGE[name]
    wanted = (f"VERDICT_{verdict}", "CAUSE_POLICY")
    costs: list[float] = []
    while min(costs, default=1) >= 0.4:  # as above
        assert len(costs) < 5, costs
        began = server_s(server)
        [found] = stub.VerifyCode(request, timeout=100).cases
        costs.append(server_s(server) - began)
        assert (pb.Verdict.Name(found.verdict), pb.Cause.Name(found.cause)) == wanted, found


def test_the_largest_result_is_not_copied_again_and_again(
    server: Server, stub: executor_pb2_grpc.ExecutorServiceStub
) -> None:
    code = "open('a', 'wb').write(bytes(40 << 20)); open('b', 'wb').write(b'b' * 9)"
    limits = pb.Limits(return_bytes=60 << 20)
    request = pb.ExecuteCodeRequest(code=code, return_paths=["a", "none", "b"], limits=limits)
    costs: list[float] = []
    while min(costs, default=1) >= 0.2:  # as above
        assert len(costs) < 5, costs
        began = loop_s(server)
        files = stub.ExecuteCode(request, timeout=100).result.files
        costs.append(loop_s(server) - began)
        assert [file.content for file in files] == [bytes(40 << 20), b"", b"b" * 9]


def test_what_was_sent_goes_with_its_run(server: Server, stub: executor_pb2_grpc.ExecutorServiceStub) -> None:
    """Ten requests would hold a quarter of a gigabyte if each stayed until garbage collection, which a quiet server
    hardly ever runs."""
    large = b"x" * (30 << 20)
    requests: list[Callable[[], object]] = [
        lambda: stub.ExecuteCode(program(stdin=large), timeout=100),
        lambda: list(stub.StreamExecution(pb.StreamExecutionRequest(execution=program(stdin=large)), timeout=100)),
        lambda: stub.VerifyCode(printed("print()", b"1", stdin=large), timeout=100),
    ]

    def resident_mib() -> int:
        return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * 4096 >> 20

    for request in requests:
        request()
    before = resident_mib()
    for _ in range(3):
        for request in requests:
            request()
    wait_for(lambda: resident_mib() < before + 75)


def test_values_of_all_cases_are_bounded_together(stub: executor_pb2_grpc.ExecutorServiceStub) -> None:
    large = pb.FunctionCase(expected=f'"{"x" * (7 << 20)}"')
    with pytest.raises(grpc.RpcError, match="cases has 36700170 characters of values, must have at most 33554432"):
        stub.VerifyCode(calls(*[large] * 5), timeout=100)
    many = pb.FunctionCase(expected='["l", [' + "1," * 1_000_000 + "1]]")
    with pytest.raises(grpc.RpcError, match="have values of more than 4194304 parts together"):
        stub.VerifyCode(calls(*[many] * 5), timeout=100)
