"""The decision whether a call may be made, and the tables and files that it rests on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairbox.errors import ConfigError
from fairbox.security import ClientSecurity, Identity, Role, TenantRefused, client_security
from fairbox.security.server import AccessRules, Denial, Refusal, decide
from fairbox.security.tls import FileSet
from fairbox.security.tokens import Keyring, TokenTable, first_token, parse_tokens
from fairbox.testing import ManualClock
from limiter.server.access import ADMIN_ACCESS, SERVICE_ACCESS

CLIENT, EXECUTOR, ADMIN, TEAM = "c" * 16, "e" * 20, "a" * 32, "t" * 16
RULES = AccessRules({**SERVICE_ACCESS, **ADMIN_ACCESS})
SESSION, ACQUIRE = "/limiter.v1.LimiterService/Session", "/limiter.v1.LimiterService/AcquireToken"
CONFIGURE = "/limiter.v1.LimiterAdminService/ConfigureBucket"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def table() -> TokenTable:
    clients = parse_tokens(f"# ours\n{CLIENT}\n\nteam a:{TEAM}\n".encode(), "client_token_file")
    executors = parse_tokens(EXECUTOR.encode(), "executor_token_file")
    return TokenTable(
        {Role.CLIENT: clients, Role.EXECUTOR: executors, Role.ADMIN: parse_tokens(ADMIN.encode(), "admin_token_file")}
    )


def ask(method: str, *authorizations: str) -> Identity | Refusal:
    metadata = [("user-agent", "grpc"), *(("authorization", each) for each in authorizations)]
    return decide(method, metadata, table(), RULES)


@pytest.mark.parametrize(
    ("method", "may"),
    [
        (SESSION, {CLIENT, EXECUTOR, TEAM}),
        (ACQUIRE, {CLIENT, TEAM}),
        (CONFIGURE, {ADMIN}),
        (REFLECTION, {CLIENT, EXECUTOR, ADMIN, TEAM}),
        ("/nobody.Knows/This", {CLIENT, EXECUTOR, ADMIN, TEAM}),
    ],
)
def test_each_role_may_call_what_is_its_own(method: str, may: set[str]) -> None:
    for token in (CLIENT, EXECUTOR, ADMIN, TEAM):
        verdict = ask(method, f"Bearer {token}")
        assert isinstance(verdict, Identity) is (token in may), token
        if isinstance(verdict, Refusal):
            assert verdict.denial is Denial.PERMISSION_DENIED
            assert "needs a token of the role" in verdict.message


@pytest.mark.parametrize(
    "given",
    [
        (),
        ("",),
        ("Bearer",),
        (CLIENT,),
        (f"Basic {CLIENT}",),
        (f"Bearer {CLIENT[:-1]}",),
        (f"Bearer {CLIENT}x",),
        (f"Bearer team a:{TEAM}",),
        (f"Bearer {CLIENT}", f"Bearer {CLIENT}"),
        ("Bearer \udcff",),
    ],
)
def test_what_is_no_token_is_refused_and_never_repeated(given: tuple[str, ...]) -> None:
    verdict = ask(ACQUIRE, *given)
    assert isinstance(verdict, Refusal)
    assert verdict.denial is Denial.UNAUTHENTICATED
    assert "role client" in verdict.message
    assert not any(CLIENT[:10] in text or TEAM[:10] in text for text in (verdict.message, repr(verdict)))


def test_a_tenants_token_names_its_tenant() -> None:
    verdict = ask(ACQUIRE, f"bearer {TEAM}")
    assert isinstance(verdict, Identity)
    assert verdict.for_tenant("") == verdict.for_tenant("team a") == "team a"
    with pytest.raises(TenantRefused, match="tenant is 'team b', must be empty or 'team a'"):
        verdict.for_tenant("team b")
    anyones = ask(ACQUIRE, f"Bearer {CLIENT}")
    assert isinstance(anyones, Identity)
    assert (anyones.for_tenant(""), anyones.for_tenant("x")) == ("", "x")


def test_a_token_in_two_files_has_both_roles() -> None:
    lines = parse_tokens(CLIENT.encode(), "file")
    found = TokenTable({Role.CLIENT: lines, Role.EXECUTOR: lines}).find(CLIENT)
    assert found == Identity(frozenset({Role.CLIENT, Role.EXECUTOR}))
    with pytest.raises(ConfigError, match="of a tenant can't be in the file of another role"):
        TokenTable({Role.CLIENT: parse_tokens(f"t:{CLIENT}".encode(), "file"), Role.ADMIN: lines})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "must hold at least one token"),
        (b"# nothing\n\n", "must hold at least one token"),
        (b"\xff\xfe", "must hold UTF-8 text"),
        (b"short", "line 1: a token must have from 16"),
        (b"ok-ok-ok-ok-ok-ok-ok\nnot a token at all here", "line 2: a token must have"),
        (f":{CLIENT}".encode(), "line 1: a tenant must have from 1 to 128"),
        (f"{'t' * 129}:{CLIENT}".encode(), "line 1: a tenant must have from 1 to 128"),
        (f"a:{CLIENT}\nb:{CLIENT}".encode(), "line 2: this token is there already, for another tenant"),
    ],
)
def test_a_bad_file_is_refused_without_a_word_of_it(content: bytes, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as error:
        parse_tokens(content, "client_token_file is 'x'")
    assert CLIENT[:8] not in str(error.value)


def test_only_clients_have_tenants() -> None:
    with pytest.raises(ConfigError, match="names a tenant, which only tokens of clients"):
        parse_tokens(f"a:{ADMIN}".encode(), "admin_token_file", tenants=False)


def test_a_client_sends_the_first_token_of_its_file() -> None:
    assert first_token(f"# of team a\nteam a:{TEAM}\n{CLIENT}\n".encode(), "token_file") == TEAM


def test_tokens_follow_their_file_and_bad_ones_change_nothing(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "tokens"
    path.write_text(CLIENT)
    keyring = Keyring({Role.CLIENT: str(path), Role.ADMIN: ""}, clock=clock)
    assert keyring.roles == {Role.CLIENT}

    def good(*tokens: str) -> bool:
        return all(keyring.table().find(token) for token in tokens)

    path.write_text(f"{CLIENT}\n{TEAM}\n")  # both, while clients change over
    assert good(CLIENT)
    assert not good(TEAM)  # too early to look again
    clock.advance(1.0)
    assert good(CLIENT, TEAM)
    for spoil in (lambda: path.write_text(CLIENT[:8]), path.unlink, lambda: path.write_text("")):
        spoil()
        clock.advance(1.0)
        assert good(CLIENT, TEAM)
        assert "client_token_file" in keyring.problem
        assert CLIENT[:8] not in keyring.problem
    path.write_text(TEAM)
    clock.advance(1.0)
    assert good(TEAM)
    assert not good(CLIENT)
    assert keyring.problem == ""


def test_a_file_that_comes_back_as_it_was_is_no_problem_any_more(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "tokens"
    path.write_text(CLIENT)
    keyring = Keyring({Role.CLIENT: str(path)}, clock=clock)
    path.rename(tmp_path / "away")
    clock.advance(1.0)
    assert keyring.table().find(CLIENT)
    assert "can't be read: No such file" in keyring.problem
    (tmp_path / "away").rename(path)
    clock.advance(1.0)
    assert keyring.table().find(CLIENT)
    assert keyring.problem == ""


def test_a_mounted_secret_is_swapped_by_a_link(tmp_path: Path) -> None:
    """As the kubelet does it: the file is a link into a folder that is a link."""
    clock = ManualClock()
    for name, token in (("..1", CLIENT), ("..2", TEAM)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokens").write_text(token)
        os.utime(tmp_path / name / "tokens", (1, 1))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "tokens").symlink_to("..data/tokens")
    files = FileSet([("client_token_file", str(tmp_path / "tokens"))], max_bytes=100, clock=clock)
    assert files.look() == (CLIENT.encode(),)
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert files.look() is None
    clock.advance(1.0)
    assert files.look() == (TEAM.encode(),)
    clock.advance(1.0)
    assert files.look() is None


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(b"x" * 101)
    with pytest.raises(ConfigError, match="more than 100 bytes"):
        FileSet([("token_file", str(path))], max_bytes=100).look()


@pytest.mark.parametrize(
    ("target", "local"),
    [
        ("127.0.0.1:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("dns:///localhost:1", True),
        ("ipv4:127.0.0.1:1", True),
        ("unix:/tmp/socket", True),
        ("10.0.0.1:1", False),
        ("executor:1", False),
        ("dns:///executor.example:1", False),
        ("localhost.example.org:1", False),
    ],
)
def test_a_token_crosses_no_network_in_the_clear(target: str, local: bool) -> None:
    plain = ClientSecurity(token_file="x")
    if local:
        plain.check_target(target)
    else:
        with pytest.raises(ConfigError, match="in the clear"):
            plain.check_target(target)
    ClientSecurity(token_file="x", tls_ca="y").check_target(target)
    ClientSecurity(token_file="x", plaintext_token=True).check_target(target)


def test_the_environment_says_how_services_are_reached() -> None:
    env = {"FAIRBOX_TLS_CA": "ca", "FAIRBOX_TOKEN_FILE": "t", "FAIRBOX_ADMIN_TOKEN_FILE": "a"}
    assert client_security({}) == ClientSecurity()
    assert client_security(env) == ClientSecurity(tls_ca="ca", token_file="t")
    assert client_security(env, admin=True).token_file == "a"
    for wrong, problem in (
        ({"FAIRBOX_TLS_CERT": "c"}, "FAIRBOX_TLS_CERT and FAIRBOX_TLS_KEY go together"),
        ({"FAIRBOX_TLS_CERT": "c", "FAIRBOX_TLS_KEY": "k"}, "needs FAIRBOX_TLS_CA"),
        ({"FAIRBOX_PLAINTEXT_TOKEN": "perhaps"}, "must be true or false"),
    ):
        with pytest.raises(ConfigError, match=problem):
            client_security(wrong)
