"""Bad requests are refused field by field, before any work; good ones come out with every limit set."""

from __future__ import annotations

import math
from typing import Any

import pytest

from executor_service import ExecutorClient, InputFile, InvalidRequest, Limits
from executor_service.config import ExecutorConfig
from executor_service.model import RunRequest
from executor_service.v1 import executor_pb2 as pb
from executor_service.wire.validation import validate
from fairbox.errors import FieldErrors
from fairbox.v1 import common_pb2
from tests.executor.servers import Server

POLICY = ExecutorConfig().policy()


def checked(**fields: Any) -> RunRequest:
    request = pb.ExecuteCodeRequest(**{"code": "1", **fields})
    return validate(request, installed={"python", "bash"}, policy=POLICY)


def limits(**values: Any) -> pb.Limits:
    return pb.Limits(**values)


def files(*paths: str) -> list[pb.InputFile]:
    return [pb.InputFile(path=path) for path in paths]


@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        ({"code": ""}, "code", "is empty"),
        ({"code": "x" * (1 << 20) + "y"}, "code", "has 1048577 bytes, must have at most 1048576"),
        ({"language": "cobol"}, "language", "is 'cobol', must be one of bash, python"),
        ({"args": ["a", "b\0c"]}, "args[1]", "has a NUL character"),
        ({"args": ["x"] * 257}, "args", "has 257 entries, must have at most 256"),
        ({"args": ["x" * 70_000]}, "args", "bytes, must have at most 65536"),
        ({"files": files("../x")}, "files[0].path", "is '../x', must not have"),
        ({"files": files("a/../../x")}, "files[0].path", "must not have"),
        ({"files": files("/etc/x")}, "files[0].path", "must be relative"),
        ({"files": files("")}, "files[0].path", "is empty"),
        ({"files": files("a//b")}, "files[0].path", "must not have an empty part"),
        ({"files": files("a\0b")}, "files[0].path", "has a NUL character"),
        ({"files": files("x" * 256)}, "files[0].path", "has a part of more than 255 bytes"),
        ({"files": files("/".join(["x" * 100] * 6))}, "files[0].path", "has 605 bytes, must have at most 512"),
        ({"files": files("a", "a")}, "files[1].path", "is 'a', which is another file already"),
        ({"files": files("main.py")}, "files[0].path", "is 'main.py', which is the program already"),
        ({"files": files("main.py/x")}, "files", "has files below 'main.py', which is the program"),
        ({"files": files("a/b", "a")}, "files[1].path", "is 'a', which is a folder of another file"),
        ({"files": [pb.InputFile(path="a", mode=0o4755)]}, "files[0].mode", "is 0o4755, must be from 0 to 0o777"),
        ({"files": files(*map(str, range(1025)))}, "files", "has 1025 entries, must have at most 1024"),
        ({"return_paths": ["../x"]}, "return_paths[0]", "must not have"),
        ({"return_paths": ["a", "a"]}, "return_paths[1]", "is 'a', which was asked for already"),
        ({"return_paths": list(map(str, range(257)))}, "return_paths", "has 257 entries, must have at most 256"),
        ({"env": {"A=B": "x"}}, "env['A=B']", "is no name"),
        ({"env": {"": "x"}}, "env['']", "is no name"),
        ({"env": {"A": "x\0"}}, "env['A']", "has a NUL character"),
        ({"request_id": "x" * 129}, "request_id", "has 129 characters, must have at most 128"),
        ({"tenant": "x" * 129}, "tenant", "has 129 characters, must have at most 128"),
        ({"workspace_id": "w" * 129}, "workspace_id", "has 129 characters, must have at most 128"),
        ({"profile": "python-science"}, "profile", "is 'python-science', must be empty or 'python-base'"),
        ({"lease": common_pb2.Lease(bucket="code", epoch=1)}, "lease.client_session_id", "is empty"),
        ({"lease": common_pb2.Lease(bucket="code", epoch=1)}, "lease.seq", "is 0"),
        ({"limits": limits(wall_time_s=-1)}, "limits.wall_time_s", "is -1.0, must be a number of seconds from 0"),
        ({"limits": limits(wall_time_s=math.nan)}, "limits.wall_time_s", "is nan"),
        ({"limits": limits(cpu_time_s=math.inf)}, "limits.cpu_time_s", "is inf"),
        ({"limits": limits(wall_time_s=601)}, "limits.wall_time_s", "is 601, must be at most 600"),
        ({"limits": limits(memory_bytes=1 << 50)}, "limits.memory_bytes", "must be at most"),
        ({"limits": limits(processes=5000)}, "limits.processes", "is 5000, must be at most 1024"),
        ({"limits": limits(disk_bytes=1)}, "limits.disk_bytes", "is 1, but code and files need 4096"),
    ],
)
def test_a_bad_field_is_named_with_its_value_and_what_is_allowed(
    fields: dict[str, Any], field: str, problem: str
) -> None:
    with pytest.raises(FieldErrors) as caught:
        checked(**fields)
    assert field in [error.field for error in caught.value.errors]
    assert problem in next(error.problem for error in caught.value.errors if error.field == field)


def test_every_bad_field_is_named_at_once() -> None:
    with pytest.raises(FieldErrors) as caught:
        checked(code="", language="cobol", tenant="x" * 200, limits=limits(wall_time_s=-1, processes=99999))
    fields = [error.field for error in caught.value.errors]
    assert sorted(fields) == ["code", "language", "limits.processes", "limits.wall_time_s", "tenant"]


def test_what_is_not_asked_for_is_the_servers_default() -> None:
    request = checked()
    assert request.limits == POLICY.defaults
    assert (request.language, request.lease, request.files) == ("python", None, ())


def test_what_is_asked_for_is_kept() -> None:
    request = checked(limits=limits(wall_time_s=5, memory_bytes=1 << 20, disk_bytes=1 << 20), files=files("a/b", "a/c"))
    assert (request.limits.wall_time_s, request.limits.memory_bytes) == (5, 1 << 20)
    assert request.limits.open_files == POLICY.defaults.open_files
    assert [(file.path, file.mode) for file in request.files] == [("a/b", 0o644), ("a/c", 0o644)]


@pytest.mark.parametrize(("wall", "cpu"), [(5.0, 60.0), (300.0, 300.0)])
def test_cpu_time_is_not_shorter_than_the_wall_time_asked_for(wall: float, cpu: float) -> None:
    assert checked(limits=limits(wall_time_s=wall)).limits.cpu_time_s == cpu


async def test_the_server_answers_with_every_field(executor: ExecutorClient, server: Server) -> None:
    ended = sum(server.status().outcomes.values())
    with pytest.raises(InvalidRequest, match="must be one of bash, python") as caught:
        await executor.execute("", language="cobol", files=[InputFile("../x", b"")], limits=Limits(wall_time_s=1e6))
    assert {field.field for field in caught.value.fields} == {"code", "language", "files[0].path", "limits.wall_time_s"}
    assert sum(server.status().outcomes.values()) == ended


async def test_text_that_is_not_unicode_is_an_invalid_request(executor: ExecutorClient) -> None:
    with pytest.raises(InvalidRequest, match="can't be sent"):
        await executor.execute("print('\ud800')")
