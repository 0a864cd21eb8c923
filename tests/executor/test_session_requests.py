"""Bad requests about sessions: each field is named with its value and what is allowed, and nothing is done."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from executor_service import ExecutorClient, InputFile, InvalidRequest, Limits, Session, SessionInfo, SessionNotFound
from executor_service.v1 import executor_pb2 as pb
from executor_service.v1 import executor_pb2_grpc
from tests.executor.servers import Server

LONG = "x" * 129


@pytest.mark.parametrize(
    ("wanted", "field", "text"),
    [
        ({"language": "perl"}, "language", "'perl', must be python or bash"),
        ({"language": "cobol"}, "language", "'cobol'"),
        ({"profile": "none"}, "profile", "'none', must be empty or 'python-base'"),
        ({"idle_ttl_s": -1.0}, "idle_ttl_s", "-1, must be from 0 to 86400"),
        ({"idle_ttl_s": 86_401.0}, "idle_ttl_s", "86401"),
        ({"idle_ttl_s": float("nan")}, "idle_ttl_s", "nan"),
        ({"owner": LONG}, "owner", "129 characters, must have at most 128"),
        ({"tenant": LONG}, "tenant", "129"),
        ({"request_id": LONG}, "request_id", "129"),
        ({"limits": Limits(memory_bytes=1 << 50)}, "limits.memory_bytes", "must be at most"),
        ({"limits": Limits(disk_bytes=10), "files": [InputFile("a", b"xx")]}, "limits.disk_bytes", "files need 4096"),
        ({"files": [InputFile("../a", b"")]}, "files[0].path", "'..'"),
        ({"files": [InputFile("a", b"", mode=0o4755)]}, "files[0].mode", "0o4755"),
        ({"env": {"1A": "x"}}, "env['1A']", "no name"),
    ],
)
async def test_a_bad_field_of_a_new_session_is_named(
    executor: ExecutorClient, wanted: dict[str, Any], field: str, text: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await executor.create_session(**wanted)
    assert [problem.field for problem in caught.value.fields] == [field]
    assert text in str(caught.value)
    assert await executor.list_sessions() == []


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"session_id": ""}, "session_id"),
        ({"session_id": "x" * 513}, "session_id"),
        ({"session_id": "x", "count": 65}, "count"),
        ({"session_id": "x", "count": 2, "owners": ["a"]}, "owners"),
        ({"session_id": "x", "count": 1, "owners": [LONG]}, "owners[0]"),
    ],
)
async def test_a_bad_field_of_a_branch_is_named(executor: ExecutorClient, wanted: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await executor.branch_session(**wanted)
    assert [problem.field for problem in caught.value.fields] == [field]


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"args": ["a"]}, "args"),
        ({"env": {"A": "b"}}, "env"),
        ({"profile": "python-base"}, "profile"),
        ({"language": "perl"}, "language"),
        ({"limits": Limits(memory_bytes=1 << 20)}, "limits.memory_bytes"),
        ({"limits": Limits(processes=1)}, "limits.processes"),
        ({"limits": Limits(wall_time_s=1e9)}, "limits.wall_time_s"),
        ({"session_id": "x" * 513}, "session_id"),
    ],
)
async def test_a_bad_field_of_a_cell_is_named_before_the_session_is_looked_for(
    executor: ExecutorClient, wanted: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await executor.execute("1", **{"session_id": "x", **wanted})
    assert [problem.field for problem in caught.value.fields] == [field]


async def test_all_problems_are_named_at_once(executor: ExecutorClient) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await executor.create_session(language="perl", owner=LONG, idle_ttl_s=-1)
    assert [problem.field for problem in caught.value.fields] == ["language", "idle_ttl_s", "owner"]


async def test_display_is_for_python(executor: ExecutorClient) -> None:
    with pytest.raises(InvalidRequest, match="'bash' does not have"):
        await executor.execute("true", language="bash", display=True)


@pytest.mark.parametrize("token", ["x", "!!!!", "AAAA", "\u00e9"])
def test_a_page_token_of_ones_own_is_refused(server: Server, token: str) -> None:
    with grpc.insecure_channel(server.target) as channel:
        stub = executor_pb2_grpc.ExecutorServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ListSessions(pb.ListSessionsRequest(page_token=token), timeout=10)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError, match="page_size"):
            stub.ListSessions(pb.ListSessionsRequest(page_size=1001), timeout=10)
        with pytest.raises(grpc.RpcError, match="session_id"):
            stub.DeleteSession(pb.DeleteSessionRequest(), timeout=10)


async def test_sessions_of_nobody_and_of_another_server_are_not_found(executor: ExecutorClient) -> None:
    for session_id, text in (("nonsense", "is not known here"), ("else:1~abc", "belongs to server 'else:1'")):
        session = Session(executor, SessionInfo(session_id))
        for call in (session.run("1"), session.branch()):
            with pytest.raises(SessionNotFound, match=text):
                await call
        assert not await session.delete()
