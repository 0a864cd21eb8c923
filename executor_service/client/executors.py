"""The executors behind one target, a channel each: `dns:///name:port` for all addresses of a name, `a:1,b:2`, or one.

A thin shell around `Balance`: it resolves the name now and then, asks servers that have said nothing how busy they are,
opens channels, and says who takes a call. Whoever has
state for a caller (a session, a workspace) is asked again by its address.

Invariants: a resolution that fails or finds nobody changes nothing; a channel is closed when its server is listed no
more and nothing is under way there; certificates and tokens that can't be read any more keep new channels from being
opened, and nothing else; every wait is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio

from executor_service.client.balance import LOAD_KEY, Balance, Load, ServerInfo
from executor_service.errors import ExecutorUnavailable
from executor_service.v1 import executor_pb2 as pb
from executor_service.v1 import executor_pb2_grpc
from fairbox.errors import ConfigError

if TYPE_CHECKING:
    from executor_service.v1.executor_pb2_grpc import ExecutorServiceAsyncStub

OpenChannel = Callable[[str, list[tuple[str, Any]]], grpc.aio.Channel]
"""Opens a channel to an address, with options beyond the usual ones."""
_DNS = "dns:///"
RESOLVE_EVERY_S = 5.0
"""A new pod takes calls after this time; it is also how long names of a cluster are kept."""
_CONNECT_WITHIN_S = 2.0
"""Within a cluster a server that does not answer by then is gone, or cut off."""
_NO_WAY = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)
_SETTLES_WITHIN_S = 0.25
"""A channel needs microseconds; on a busy machine its thread may wait for a processor."""
_STATUS_WITHIN_S = 1.0
_RESOLVE_WITHIN_S = 5.0
_MAX_SERVERS = 256


REFUSALS = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED)
"""The server can't be reached, or takes nothing now: others are asked first for a while."""


class Member:
    """One server, during one call. Say with `answered` or `refused` what became of it."""

    def __init__(self, address: str, channel: grpc.aio.Channel, stub: ExecutorServiceAsyncStub, alone: bool) -> None:
        self.address, self.stub = address, stub
        self.alone = alone
        """No other server is known."""
        self.load: Load | None = None
        self.failed: bool | None = None
        """True if it could not be reached, or takes nothing; None: it has not been heard from."""
        self._channel = channel

    async def connected(self, deadline: float) -> bool:
        """Says whether a call can be sent before `deadline` (the loop's time). If not, none was sent, and another
        server may be asked, whatever the call does.

        True if there is no other: gRPC then says what is wrong."""
        if self.alone:
            return True
        loop = asyncio.get_running_loop()
        deadline = min(deadline, loop.time() + _CONNECT_WITHIN_S)
        state = self._channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            if state in _NO_WAY or loop.time() >= deadline:
                self.failed = True
                return False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._channel.wait_for_state_change(state), deadline - loop.time())
            state = self._channel.get_state(try_to_connect=True)
        return True

    async def settled(self, deadline: float) -> None:
        """Awaited before a call is repeated here; returns before `deadline` (the loop's time).

        gRPC ends the calls of a broken connection before it takes the connection from the channel: a call made in
        between ends as the first one did.

        ExecutorUnavailable: the channel was closed."""
        if self._channel.get_state() is grpc.ChannelConnectivity.READY:
            left = min(_SETTLES_WITHIN_S, deadline - asyncio.get_running_loop().time())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(
                    self._channel.wait_for_state_change(grpc.ChannelConnectivity.READY), max(0.0, left)
                )
        if self._channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN:
            raise _left(self.address)

    def answered(self, trailing: Iterable[tuple[str, str | bytes]] | None) -> None:
        """The call has a result, and this metadata behind it."""
        self.failed = False
        text = next((value for key, value in trailing or () if key == LOAD_KEY), "")
        self.load = Load.parse(text) if isinstance(text, str) else None

    def refused(self, error: grpc.aio.AioRpcError) -> None:
        """The call failed."""
        self.failed = error.code() in REFUSALS


@contextlib.contextmanager
def told_when_closed(call: grpc.aio.Call, target: str) -> Iterator[None]:
    """Around what awaits a call: ExecutorUnavailable where its channel was closed. grpc.aio raises CancelledError then,
    as if somebody had cancelled the task."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not call.cancelled() or task is None or task.cancelling():
            raise
        raise _left(target) from None


def _left(target: str) -> ExecutorUnavailable:
    return ExecutorUnavailable(f"executor on {target}: this client was closed")


class Fleet:
    """`async with Fleet(target, open_channel) as fleet: with fleet.take() as member: await member.stub...`."""

    def __init__(self, target: str, open_channel: OpenChannel) -> None:
        self._target = target
        self._open_channel = open_channel
        self._channels: dict[str, tuple[grpc.aio.Channel, ExecutorServiceAsyncStub]] = {}
        self._balance = Balance(random.random)
        self._host, self._port = "", ""
        if target.startswith(_DNS) and "," not in target:
            self._host, _, self._port = target.removeprefix(_DNS).rpartition(":")
        self._task: asyncio.Task[None] | None = None
        self._again = asyncio.Event()
        self._lookup: asyncio.Future[Sequence[tuple[Any, ...]]] | None = None
        self._closed = False

    async def __aenter__(self) -> Fleet:
        try:
            await self._begin()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def _begin(self) -> None:
        if self._host and self._port.isdigit():
            await self._resolve()
        else:
            self._list([each.strip() for each in self._target.split(",")])
        if self._host or len(self.addresses) > 1:
            for address in self.addresses[:1]:
                self._channel(address)  # files that can't be used are named at once
            await self.ask()
            self._task = asyncio.create_task(self._follow(), name=f"executors on {self._target}")

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._lookup is not None:
            self._lookup.cancel()
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(channel.close() for channel, _ in channels.values()))

    @property
    def addresses(self) -> list[str]:
        """Addresses of the servers that are listed."""
        return self._balance.listed

    def statistics(self) -> list[ServerInfo]:
        """Every server with calls under way or listed."""
        return self._balance.statistics()

    @contextlib.contextmanager
    def take(self, *, among: Collection[str] | None = None, avoid: Sequence[str] = ()) -> Iterator[Member]:
        """The server for one call, by `Balance.pick`. One of `among` that is not listed is asked all the same: a server
        that is not ready still has its sessions. ExecutorUnavailable: nobody is known by that name, or the block was
        left."""
        self.check_open()
        loop = asyncio.get_running_loop()
        self._balance.remember(among or ())
        address, (channel, stub) = self._pick(loop.time(), among, avoid)
        member = Member(address, channel, stub, alone=len(self._balance) == 1)
        self._balance.began(address)
        try:
            yield member
        finally:
            self._balance.ended(address, loop.time(), load=member.load, failed=member.failed)
            if member.failed:
                self._again.set()

    def check_open(self) -> None:
        """Raises ExecutorUnavailable when the block was left."""
        if self._closed:
            raise _left(self._target)

    def _pick(
        self, now: float, among: Collection[str] | None, avoid: Sequence[str]
    ) -> tuple[str, tuple[grpc.aio.Channel, ExecutorServiceAsyncStub]]:
        """An address and its channel. Where a new one can't be opened, because of files that have turned bad, one that
        is open is taken."""
        address = self._balance.pick(now, among=among, avoid=avoid)
        if address is None:
            self._again.set()
            raise ExecutorUnavailable(f"executor on {self._target}: no address is known")
        try:
            return address, self._channel(address)
        except ConfigError as error:
            if not self._channels:
                raise  # they were never good
            opened = [each for each in self.addresses if each in self._channels] if among is None else []
            other = self._balance.pick(now, among=opened, avoid=avoid)
            if other is None:
                raise ExecutorUnavailable(f"executor on {self._target}: {error}") from error
            return other, self._channels[other]

    def _channel(self, address: str) -> tuple[grpc.aio.Channel, ExecutorServiceAsyncStub]:
        if address not in self._channels:
            # A certificate is for the name that was asked for, and not for the address behind it.
            options: list[tuple[str, Any]] = []
            if self._host:
                options.append(("grpc.default_authority", f"{self._host}:{self._port}"))
            channel = self._open_channel(address, options)
            # The generated stub has no asynchronous constructor; the object is the same.
            stub = cast("ExecutorServiceAsyncStub", executor_pb2_grpc.ExecutorServiceStub(channel))
            self._channels[address] = channel, stub
        return self._channels[address]

    def _list(self, addresses: Sequence[str]) -> list[grpc.aio.Channel]:
        """Takes these for all that there are; the channels to close. Of more than can be, those that are known stay:
        resolvers give a name's addresses in another order each time."""
        known = set(self.addresses)
        gone = self._balance.update(sorted(addresses, key=lambda each: each not in known)[:_MAX_SERVERS])
        return [self._channels.pop(address)[0] for address in gone if address in self._channels]

    async def _follow(self) -> None:
        """Asks for addresses and loads again and again, for addresses sooner when a call has failed."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._again.wait(), RESOLVE_EVERY_S)
            self._again.clear()
            if self._host:
                await self._resolve()
            await self.ask()
            await asyncio.sleep(1.0)  # however many calls fail: once a second is enough

    async def ask(self, *, everybody: bool = False) -> None:
        """Asks servers how busy they are: those that have not said so lately, or all."""
        loop = asyncio.get_running_loop()
        stale = self.addresses if everybody else self._balance.stale(loop.time())
        if len(self.addresses) < 2:
            return
        calls = {}
        for address in stale:
            with contextlib.suppress(ConfigError):  # a call says so
                calls[address] = self._channel(address)[1].GetStatus(pb.GetStatusRequest(), timeout=_STATUS_WITHIN_S)
        # Who does not answer is found out by a call.
        answers = await asyncio.gather(*calls.values(), return_exceptions=True)
        for address, status in zip(calls, answers, strict=True):
            if isinstance(status, pb.GetStatusResponse) and status.max_running:
                load = Load(status.running, status.queued, status.max_running)
                self._balance.told(address, load, loop.time())

    async def _resolve(self) -> None:
        # One look-up at a time: each holds a thread until the resolver answers, and programs have few of them.
        if self._lookup is None:
            look = partial(socket.getaddrinfo, self._host.strip("[]"), int(self._port), type=socket.SOCK_STREAM)
            self._lookup = asyncio.get_running_loop().run_in_executor(None, look)
        await asyncio.wait({self._lookup}, timeout=_RESOLVE_WITHIN_S)
        if not self._lookup.done():
            return  # whoever is known may still be there
        lookup, self._lookup = self._lookup, None
        try:
            found = lookup.result()
        except (OSError, UnicodeError):  # UnicodeError: no name can be like this
            return
        for channel in self._list(_addresses(found)):
            await channel.close()


def _addresses(found: Sequence[tuple[Any, ...]]) -> list[str]:
    """Addresses of one family: a server with an address of each would be listed twice."""
    version4 = [f"{where[0]}:{where[1]}" for family, _, _, _, where in found if family == socket.AF_INET]
    return list(dict.fromkeys(version4 or [f"[{where[0]}]:{where[1]}" for _, _, _, _, where in found]))
