"""Grades single cases in real interpreters, through everything but gRPC, the queue and the sandbox."""

from __future__ import annotations

import contextlib
import itertools
import json
from pathlib import Path
from typing import Any, cast

from executor_service.grading.apart import ComparedAnswer
from executor_service.grading.rules import Judgement
from executor_service.grading.validation import validate_verify
from executor_service.guest.serve.values import encode
from executor_service.model import ExecutionResult, Limits
from executor_service.runs.backends import Execution
from executor_service.runs.leases import NoLimiter
from executor_service.v1 import executor_pb2 as pb
from executor_service.verification.callers import Caller
from executor_service.verification.cases import CheckBackend, FunctionBackend
from executor_service.verification.grader import Grader
from executor_service.wire.validation import LimitPolicy
from fairbox.clock import MonotonicClock
from tests.executor.workers import Workers

LIMITS = Limits(20.0, 20.0, 1 << 30, 64, 256, 1 << 20, 64 << 20, 256 << 20, 16 << 20, 30.0)
POLICY = LimitPolicy(
    defaults=LIMITS, maxima=Limits(600.0, 600.0, 1 << 34, 999, 999, 1 << 24, 1 << 30, 1 << 32, 1 << 26, 300.0)
)
_NUMBERS = itertools.count(1)


class Bench:
    """`finding, execution = await bench.grade(request)` for a request of one case."""

    def __init__(self, folder: Path) -> None:
        self.workers = Workers(folder)
        take, programs = cast("Any", self.workers.take), cast("Any", None)
        self.grader = Grader(
            take, programs, MonotonicClock(), {}, lambda _: "python-base", lambda *_: contextlib.nullcontext()
        )
        self.tests: list[tuple[str, Judgement]] = []

    async def grade(self, message: pb.VerifyCodeRequest) -> tuple[Judgement, ExecutionResult]:
        request = validate_verify(message, installed={"python"}, policy=POLICY)
        work: Any
        if message.style == pb.VERIFY_STYLE_FUNCTION:
            work = FunctionBackend(self.grader, request, request.cases[0], Caller(self.grader, request))  # type: ignore[arg-type]
        else:
            work = CheckBackend(self.grader, request, request.cases[0])  # type: ignore[arg-type]
        async with NoLimiter().claim(None, run_id="1", tenant="") as claim:
            result = await work.perform(Execution(request.program, next(_NUMBERS), claim, 0.0))
        self.tests = getattr(work, "tests", [])
        answer: ComparedAnswer | None = getattr(work, "answer", None)
        finding = answer.judge() if answer else work.finding
        assert finding is not None
        assert not self.workers.alive()
        return finding, result


def function(code: str, entry_point: str, arguments_json: str, expected_json: str, **more: Any) -> pb.VerifyCodeRequest:
    """A call as a task writes it down in JSON: its lists may be tuples."""
    arguments = [encode(each).decode() for each in json.loads(arguments_json)]
    expected = encode(json.loads(expected_json)).decode()
    case = pb.VerifyCase(function=pb.FunctionCase(arguments=arguments, expected=expected, tuples_are_lists=True))
    return pb.VerifyCodeRequest(
        code=code, style=pb.VERIFY_STYLE_FUNCTION, entry_point=entry_point, cases=[case], **more
    )


def assertion(code: str, source: str, **more: Any) -> pb.VerifyCodeRequest:
    case = pb.VerifyCase(assertion=pb.AssertCase(source=source))
    return pb.VerifyCodeRequest(code=code, style=pb.VERIFY_STYLE_ASSERT, cases=[case], **more)


def pytests(code: str, test: str, node_id: str = "", **more: Any) -> pb.VerifyCodeRequest:
    case = pb.VerifyCase(pytest=pb.PytestCase(node_id=node_id))
    files = [pb.InputFile(path="test_it.py", content=test.encode())]
    return pb.VerifyCodeRequest(code=code, style=pb.VERIFY_STYLE_PYTEST, cases=[case], test_files=files, **more)
