"""Limiter and executor as processes, each with TLS and tokens, and everything that speaks to them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from executor_service import ExecutorClient, InvalidRequest, NotAllowed, SessionNotFound
from executor_service.errors import ExecutorUnavailable
from executor_service.v1 import executor_pb2 as pb
from fairbox.errors import ConfigError
from fairbox.security import PLAINTEXT, ClientSecurity, Role
from limiter import LimiterClient
from rollout.stack import LocalStack, StackPorts
from tests.e2e.conftest import fairbox
from tests.executor.servers import command, each_refused, running
from tests.security.authority import Authority
from tests.security.services import TENANT_TOKEN, TOKENS, Secrets

GRPCURL = shutil.which("grpcurl") or shutil.which("grpcurl", path=str(Path(sys.executable).parent))
needs_grpcurl = pytest.mark.skipif(GRPCURL is None, reason="grpcurl is not installed (pip install -e '.[dev]')")
EXECUTE = "executor_service.v1.ExecutorService/ExecuteCode"


@dataclass(frozen=True)
class Guarded:
    """A pair that runs, and what it takes to reach it."""

    ports: StackPorts
    secrets: Secrets

    def client(self, who: str = "client") -> ExecutorClient:
        return ExecutorClient(self.ports.executor, security=self.secrets.security(who))

    def environment(self, who: str = "client") -> dict[str, str]:
        """As whoever runs `fairbox` has it."""
        security = self.secrets.security(who)
        named = {name: getattr(security, name) for name in ("tls_ca", "tls_cert", "tls_key", "token_file")}
        found = {f"FAIRBOX_{name.upper()}": value for name, value in named.items()}
        return os.environ | found | {"FAIRBOX_ADMIN_TOKEN_FILE": str(self.secrets.folder / "admin.token")}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    secrets = Secrets.make(tmp_path_factory.mktemp("secrets"))
    ports = StackPorts.free()
    settings = secrets.server_settings()
    limiter = [f"listen={ports.limiter}", f"admin_listen={ports.limiter_admin}", "metrics_listen=", "fresh=true"]
    limiter += [f"health_listen={ports.limiter_health}", *(f"{name}={value}" for name, value in settings.items())]
    del settings["executor_token_file"]
    for_limiter = secrets.security("executor")
    executor = [f"limiter={ports.limiter}", *(f"{name}={value}" for name, value in settings.items())]
    names = ("tls_ca", "tls_cert", "tls_key", "token_file")
    env = {f"FAIRBOX_{name.upper()}": getattr(for_limiter, name) for name in names}
    process = subprocess.Popen([sys.executable, "-m", "limiter", *limiter])
    try:
        with running(*executor, env=env) as server:
            yield Guarded(replace(ports, executor=server.target, executor_health=server.health), secrets)
    finally:
        process.terminate()
        process.wait(timeout=30)


def grpcurl(guarded: Guarded, *words: str, token: str = "", data: object = None) -> subprocess.CompletedProcess[str]:
    """A call of the executor through TLS, as a person makes it."""
    assert GRPCURL is not None
    client, ca = guarded.secrets.client, guarded.secrets.authority.ca
    options = ["-cacert", str(ca), "-cert", str(client.cert), "-key", str(client.key)]
    options += ["-H", f"authorization: Bearer {token}"] if token else []
    options += ["-d", json.dumps(data)] if data is not None else []
    line = [GRPCURL, *options, guarded.ports.executor, *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=60)


@needs_grpcurl
def test_grpcurl_through_tls_with_a_token_works(guarded: Guarded) -> None:
    done = grpcurl(guarded, EXECUTE, token=TOKENS[Role.CLIENT], data={"code": "print(6 * 7)"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"]["stdout"]["data"] == "NDIK"  # base64 of "42\n"
    listed = grpcurl(guarded, "list", token=TOKENS[Role.CLIENT])
    assert "executor_service.v1.ExecutorService" in listed.stdout.splitlines()


@needs_grpcurl
@pytest.mark.parametrize(
    ("token", "code"),
    [("", "Unauthenticated"), ("w" * 24, "Unauthenticated"), (TOKENS[Role.ADMIN], "PermissionDenied")],
)
def test_grpcurl_without_the_right_token_is_refused(guarded: Guarded, token: str, code: str) -> None:
    assert GRPCURL is not None
    proto = ["-import-path", "proto", "-proto", "executor_service/v1/executor.proto"]
    client, ca = guarded.secrets.client, guarded.secrets.authority.ca
    line = [GRPCURL, "-cacert", str(ca), "-cert", str(client.cert), "-key", str(client.key), *proto]
    line += ["-H", f"authorization: Bearer {token}"] if token else []
    line += ["-d", '{"code": "1"}', guarded.ports.executor, EXECUTE]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert f"Code: {code}" in done.stderr
    assert "w" * 24 not in done.stderr
    if code == "Unauthenticated":  # nor does reflection tell a stranger what there is
        assert "Unauthenticated" in grpcurl(guarded, "list", token=token).stderr


@needs_grpcurl
def test_grpcurl_without_tls_is_refused(guarded: Guarded) -> None:
    assert GRPCURL is not None
    line = [GRPCURL, "-plaintext", "-max-time", "5", guarded.ports.executor, "list"]
    assert subprocess.run(line, capture_output=True, text=True, timeout=60).returncode != 0
    unproved = [GRPCURL, "-cacert", str(guarded.secrets.authority.ca), "-max-time", "5", guarded.ports.executor, "list"]
    assert subprocess.run(unproved, capture_output=True, text=True, timeout=60).returncode != 0


async def test_a_lease_goes_through_both(guarded: Guarded) -> None:
    async with (
        LimiterClient(guarded.ports.limiter, security=guarded.secrets.security()) as limiter,
        guarded.client() as executor,
        limiter.lease() as lease,
    ):
        result = await executor.execute("print('leased')", lease=lease)
        assert result.stdout.data == b"leased\n"
        outputs = [item async for item in executor.stream("print('streamed')")]
        assert outputs[-1].stdout.data == b"streamed\n"  # type: ignore[union-attr]
        first, second = await executor.execute_all(["print(1)", "print(2)"])
        assert [first.stdout.data, second.stdout.data] == [b"1\n", b"2\n"]  # type: ignore[union-attr]


async def test_who_may_not_is_told_why(guarded: Guarded) -> None:
    async with guarded.client("") as nobody, guarded.client("admin") as operator:
        with pytest.raises(NotAllowed, match="needs a token of the role client, in the metadata"):
            await nobody.execute("print(1)")
        with pytest.raises(NotAllowed, match="the one that was given has the role admin"):
            await operator.execute("print(1)")
        with pytest.raises(NotAllowed, match="the one that was given has the role admin"):
            _ = [item async for item in operator.stream("print(1)")]
        with pytest.raises(NotAllowed):
            await operator.create_session()
        assert await operator.list_sessions() == []
    async with ExecutorClient(guarded.ports.executor, security=PLAINTEXT) as plain:
        with pytest.raises(ExecutorUnavailable):
            await plain.execute("print(1)", call_timeout=5)


async def test_a_tenants_requests_are_its_own(guarded: Guarded) -> None:
    wrong = "tenant is 'other', must be empty or 'team'"
    async with guarded.client("team") as team, guarded.client() as anybody, guarded.client("admin") as operator:
        with pytest.raises(NotAllowed, match=wrong):
            await team.execute("print(1)", tenant="other")
        with pytest.raises(NotAllowed, match=wrong):
            await team.create_session(tenant="other")
        with pytest.raises(NotAllowed, match=wrong):
            await team.list_sessions(tenant="other")
        with pytest.raises(NotAllowed, match=wrong):
            await team.prepare_workspace(local_path="/x", commit="y", tenant="other")
        assert (await team.execute("print(1)", request_id="same", tenant="team")).stdout.data == b"1\n"
        assert (await team.execute("print(1)", request_id="same")).stdout.data == b"1\n"  # filled in: the same request
        ours, theirs = await team.create_session(), await anybody.create_session(tenant="other")
        assert ours.tenant == "team"
        assert [each.session_id for each in await team.list_sessions()] == [ours.session_id]
        assert {each.tenant for each in await operator.list_sessions()} == {"team", "other"}
        for hidden in (theirs.session_id,):
            with pytest.raises(SessionNotFound, match="is not known here: it never was"):
                await team.execute("print(1)", session_id=hidden)
            with pytest.raises(SessionNotFound, match="is not known here: it never was"):
                await team.branch_session(hidden)
            assert not await team.delete_session(hidden)
        assert (await anybody.execute("print(2)", session_id=theirs.session_id, tenant="other")).stdout.data == b"2\n"
        assert await team.delete_session(ours.session_id)
        assert await operator.delete_session(theirs.session_id)  # an operator may end what runs


@pytest.mark.xfail(
    reason="the table of request ids has one space of names: docs/how-to/authentication.md", raises=InvalidRequest
)
async def test_a_request_id_tells_nothing(guarded: Guarded) -> None:
    async with guarded.client("team") as team, guarded.client() as anybody:
        await anybody.execute("print(1)", request_id="of another", tenant="other")
        assert (await team.execute("print(1)", request_id="of another")).stdout.data == b"1\n"


def test_the_command_line_takes_it_from_the_environment(guarded: Guarded) -> None:
    done = fairbox(
        "exec", "--executor", guarded.ports.executor, "-c", "print(6 * 7)", input="", env=guarded.environment()
    )
    assert (done.stdout, done.returncode) == ("42\n", 0), done.stderr
    done = fairbox("exec", "--executor", guarded.ports.executor, "-c", "1", input="", env=guarded.environment("admin"))
    assert done.returncode == 1
    assert "role client" in done.stderr
    shown = fairbox(
        "status",
        f"limiter={guarded.ports.limiter_admin}",
        f"executor={guarded.ports.executor}",
        env=guarded.environment(),
    )
    assert shown.returncode == 0, shown.stderr + shown.stdout
    words = " ".join(shown.stdout.split())
    assert words.count("mutual_tls true") == 2
    assert "tokens role client count 2, role executor count 1, role admin count 1" in words
    for token in (*TOKENS.values(), TENANT_TOKEN):
        assert token not in shown.stdout


async def test_a_pair_of_its_own_needs_nothing_of_that(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--up` beside an environment that is for other services: its own are plain, on loopback."""
    for name, value in guarded.environment().items():
        if name.startswith("FAIRBOX_"):
            monkeypatch.setenv(name, value)
    async with LocalStack() as stack, ExecutorClient(stack.ports.executor, security=PLAINTEXT) as client:
        assert (await client.execute("print(1)")).stdout.data == b"1\n"
    done = fairbox("rollout", "--up", env=guarded.environment())
    assert done.returncode == 2
    assert "up starts services of its own, without TLS and tokens, but FAIRBOX_TLS_CA is set" in done.stderr


def test_a_limiter_that_can_not_be_reached_so_ends_the_start_with_a_sentence(secrets: Secrets) -> None:
    words, _, _ = command("limiter=10.0.0.1:1", "languages=python")
    for env, problem in (
        ({"FAIRBOX_TOKEN_FILE": str(secrets.folder / "client.token")}, "the token would go to 10.0.0.1:1 in the clear"),
        ({"FAIRBOX_TLS_CERT": "x", "FAIRBOX_TLS_KEY": "y"}, "FAIRBOX_TLS_CERT is 'x', which needs FAIRBOX_TLS_CA"),
    ):
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=os.environ | env)
        assert done.returncode in (1, 2)
        assert problem in done.stderr
        assert "Traceback" not in done.stderr


def test_what_does_not_fit_ends_the_start_with_a_sentence(secrets: Secrets) -> None:
    certified = f"listen=0.0.0.0:0 tls_cert={secrets.server.cert} tls_key={secrets.server.key}"
    each_refused(
        {
            "client_token_file=/nowhere": "client_token_file is '/nowhere', which can't be read: No such file",
            certified: "is not loopback, and nothing would protect it",
            "max_connection_age_s=-1": "max_connection_age_s is -1.0, must be at least 0",
        }
    )


def test_a_token_without_tls_beyond_loopback_is_allowed_and_said(secrets: Secrets) -> None:
    settings = [f"client_token_file={secrets.tokens(Role.CLIENT)}", "listen=0.0.0.0:0", "languages=python"]
    words, _, _ = command(*settings)
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = ""
        for line in process.stderr:
            lines += line
            if "listening on" in line:
                break
        process.terminate()
    assert "tokens and everything else cross the network in the clear" in lines
    assert pb.GetStatusResponse().insecure is False


async def test_a_token_that_would_go_out_in_the_clear_is_not_sent(secrets: Secrets) -> None:
    with pytest.raises(ConfigError, match="in the clear"):
        ExecutorClient("executor.example:50051", security=secrets.security(tls=False))
    with pytest.raises(ConfigError, match="in the clear"):
        LimiterClient("127.0.0.1:1,limiter.example:50052", security=secrets.security(tls=False))


async def test_all_executors_of_a_name_are_reached_by_a_certificate_for_the_name(tmp_path: Path) -> None:
    """A client that spreads its calls connects to addresses, which no certificate of a cluster has."""
    authority = Authority(tmp_path)
    server = authority.sign("named", addresses=())
    with running("limiter=none", *server.settings()) as found:
        port = found.target.rpartition(":")[2]
        trusted = ClientSecurity(tls_ca=str(authority.ca))
        async with ExecutorClient(f"dns:///localhost:{port}", security=trusted) as client:
            assert (await client.execute("print(6 * 7)")).stdout.data == b"42\n"
        async with ExecutorClient(found.target, security=trusted) as client:
            with pytest.raises(ExecutorUnavailable):
                await client.execute("print(6 * 7)", call_timeout=5)
