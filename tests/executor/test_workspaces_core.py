"""Rules for which workspaces stay, which go and which requests are refused: no disk, no clock."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from executor_service.v1 import executor_pb2 as pb
from executor_service.workspaces.request import check_prepare
from executor_service.workspaces.store import Places, StoreFull, TooManyPreparations, WorkspaceTable
from fairbox.errors import FieldErrors

MOST = 100


class Table(RuleBasedStateMachine):
    """Against a plain list of what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.table = WorkspaceTable(most_bytes=MOST)
        self.now = 0.0
        self.there: dict[str, list[float]] = {}  # size, holders, time of last use, idle time; least recently used first
        self.made = 0
        self.evicted = self.expired = 0

    def used(self, name: str) -> None:
        facts = self.there.pop(name)
        facts[2] = self.now
        self.there[name] = facts

    @rule(size=st.integers(0, 60), ttl=st.floats(1, 50))
    def add(self, size: int, ttl: float) -> None:
        self.made += 1
        name = f"w{self.made}"
        before = dict(self.there)
        try:
            gone = self.table.add(name, size, ttl, self.now)
        except StoreFull:
            assert sum(facts[0] for facts in before.values() if facts[1]) + size > MOST
            assert all(other in self.table for other in before)
            return
        unused = [other for other, facts in before.items() if not facts[1]]
        assert gone == unused[: len(gone)], "not the least recently used first"
        for other in gone:
            del self.there[other]
        self.evicted += len(gone)
        if gone:
            kept_one_more = sum(facts[0] for facts in self.there.values()) + size + before[gone[-1]][0]
            assert kept_one_more > MOST, "more was removed than was needed"
        self.there[name] = [size, 0, self.now, ttl]

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.there)))
        self.table.hold(name, self.now)
        self.there[name][1] += 1
        self.used(name)

    @precondition(lambda self: any(facts[1] for facts in self.there.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([name for name, facts in self.there.items() if facts[1]]))
        self.table.release(name, self.now)
        self.there[name][1] -= 1
        self.used(name)

    @rule(seconds=st.floats(0, 30))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        due = {n for n, facts in self.there.items() if not facts[1] and self.now - facts[2] >= facts[3]}
        assert set(self.table.expire(self.now)) == due
        for name in due:
            del self.there[name]
        self.expired += len(due)

    @invariant()
    def counts(self) -> None:
        found = self.table.statistics()
        assert found.bytes == sum(facts[0] for facts in self.there.values()) <= MOST
        assert found.entries == len(self.there)
        assert (found.evicted_total, found.expired_total) == (self.evicted, self.expired)
        assert found.in_use == sum(1 for facts in self.there.values() if facts[1])
        assert all(name in self.table for name in self.there)


TestTable = Table.TestCase


def test_the_longer_idle_time_holds() -> None:
    table = WorkspaceTable(most_bytes=MOST)
    table.add("w", 1, 10, 0)
    table.asked_again("w", 30, 0)
    table.asked_again("w", 5, 0)
    assert table.expire(29) == []
    assert table.expire(30) == ["w"]


async def test_places_go_to_tenants_that_have_none() -> None:
    places, order, go_on = Places(most=4, shared=3), list[str](), asyncio.Event()

    async def prepare(tenant: str, name: str) -> None:
        async with places.take(tenant, 0):
            order.append(name)
            await go_on.wait()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(prepare("many", f"many {number}")) for number in range(4)]
        tasks += [group.create_task(prepare(tenant, tenant)) for tenant in ("second", "third", "fourth")]
        while len(order) < 4:
            await asyncio.sleep(0)
        assert order == ["many 0", "many 1", "second", "third"]
        tasks[2].cancel()  # waits
        tasks[0].cancel()  # has a place
        while len(order) < 5:
            await asyncio.sleep(0)
        assert order[4] == "fourth"
        go_on.set()
    assert order[5:] == ["many 3"]


async def test_what_waits_is_bounded_for_each_tenant() -> None:
    places, waiting = Places(most=1, shared=1), list[asyncio.Task[None]]()

    async def prepare(tenant: str, size: int) -> None:
        async with places.take(tenant, size):
            await asyncio.sleep(600)

    waiting += [asyncio.create_task(prepare("greedy", 64 << 20)) for _ in range(5)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyPreparations):
        await prepare("greedy", 1)
    waiting.append(asyncio.create_task(prepare("modest", 64 << 20)))
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()


LOCAL = {"local_path": "/srv/repo", "commit": "main"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"commit": "main"}, "source is not set"),
        ({"local_path": "", "commit": "main"}, "local_path is empty"),
        ({"bundle": b"", "commit": "main"}, "bundle is empty"),
        ({"bundle": bytes((64 << 20) + 1), "commit": "main"}, "bundle has 67108865 bytes, must have at most 67108864"),
        ({"local_path": "relative", "commit": "main"}, "local_path is 'relative', must be an absolute path"),
        ({"local_path": "/x" * 3000, "commit": "main"}, "local_path has more than 4096 bytes"),
        ({"local_path": "/srv/repo"}, "commit is empty"),
        (LOCAL | {"commit": "--upload-pack=touch /tmp/x"}, "commit is '--upload-pack"),
        (LOCAL | {"commit": "main..other"}, "commit is 'main..other'"),
        (LOCAL | {"commit": "HEAD@{1}"}, "commit is 'HEAD@{1}'"),
        (LOCAL | {"commit": ":/text"}, "commit is ':/text'"),
        (LOCAL | {"commit": "main^{/x}"}, r"commit is 'main^{/x}'"),
        (LOCAL | {"mount_path": "testbed"}, "mount_path is 'testbed'"),
        (LOCAL | {"mount_path": "/"}, "mount_path is '/'"),
        (LOCAL | {"mount_path": "/usr"}, "mount_path is '/usr', which would cover or be covered by /usr"),
        (LOCAL | {"mount_path": "/usr/src/x"}, "covered by /usr"),
        (LOCAL | {"mount_path": "/opt"}, "covered by /opt/python"),
        (LOCAL | {"mount_path": "/tmp/x"}, "covered by /tmp"),
        (LOCAL | {"mount_path": "/proc/1"}, "covered by /proc"),
        (LOCAL | {"mount_path": "/sandbox"}, "covered by /sandbox"),
        (LOCAL | {"mount_path": "/a/../etc"}, "must not have a part '.' or '..'"),
        (LOCAL | {"mount_path": "/a,upperdir=/etc"}, "mount_path is '/a,upperdir=/etc'"),
        (LOCAL | {"mount_path": "/a:b"}, "mount_path is '/a:b'"),
        (LOCAL | {"idle_ttl_s": -1.0}, "idle_ttl_s is -1"),
        (LOCAL | {"idle_ttl_s": float("nan")}, "idle_ttl_s is nan"),
        (LOCAL | {"tenant": "t" * 129}, "tenant has 129 characters"),
        ({"remote_url": "https://evil.example/x", "commit": "main"}, "must begin with https://git.example/"),
        ({"remote_url": "ext::sh -c id", "commit": "main"}, "remote_url is 'ext::sh -c id', must be a URL"),
        ({"remote_url": "file:///etc", "commit": "main"}, "must be a URL that begins with https://"),
        ({"remote_url": "ssh://git.example/x", "commit": "main"}, "must be a URL that begins with https://"),
        ({"remote_url": "https://git.example/../x", "commit": "main"}, "must be a URL"),
    ],
)
def test_a_bad_field_is_named(fields: dict[str, object], named: str) -> None:
    request = pb.PrepareWorkspaceRequest(**fields)  # type: ignore[arg-type]
    with pytest.raises(FieldErrors) as caught:
        check_prepare(request, remotes=["https://git.example/"], visible=["/usr", "/opt/python"])
    assert named in str(caught.value)


def test_remotes_are_refused_where_none_are_allowed() -> None:
    request = pb.PrepareWorkspaceRequest(remote_url="https://git.example/x", commit="main")
    with pytest.raises(FieldErrors, match="this server takes no remotes"):
        check_prepare(request, remotes=[], visible=[])


@pytest.mark.parametrize("commit", ["main", "v1.0", "feature/x+y", "a" * 40, "abc1234", "refs/heads/main", "user@host"])
def test_ordinary_names_of_commits_are_accepted(commit: str) -> None:
    request = pb.PrepareWorkspaceRequest(local_path="/srv/repo", commit=commit)
    valid = check_prepare(request, remotes=[], visible=[])
    assert (valid.commit, valid.mount_path, valid.idle_ttl_s) == (commit, "/testbed", 3600.0)
