"""Images that callers have fetched from registries: those that the operator allows, each once.

Invariants: calls for one name share the work, and servers with one store too; it goes on when its callers have left, so
that who comes back finds it done; few are fetched at once, the others wait in the order in which they came; when the
block is left, nothing is fetched any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import grpc

from executor_service.cleanup import leave, to_the_end
from executor_service.errors import ExecutorUnavailable
from executor_service.images.errors import ImageError
from executor_service.images.table import Images
from executor_service.images.transports import REGISTRY, fetch, in_full, name_of
from executor_service.runs.flights import Flight
from fairbox.errors import FieldError, FieldErrors, shown

if TYPE_CHECKING:
    from executor_service.images.facts import StoredImage
    from executor_service.images.store import ImageStore

T = TypeVar("T")
_AT_ONCE = 2
"""Each keeps a processor and the disk busy."""
_TURN_S = 3600.0
"""Longest wait behind others."""
_LOOK_S = 0.2
"""Between two looks whether another server has fetched it."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """An image that is there."""

    name: str
    image: StoredImage
    cached: bool
    """It was there before."""


class FetchFailed(ExecutorUnavailable):
    """The image can't be had: the registry, the disk or this server is at fault; the text says why."""

    code = grpc.StatusCode.INTERNAL


class ImageFetches:
    """`async with ImageFetches(images, remotes) as fetches: await fetches.prepare("docker://python:3.12")`. `remotes`:
    beginnings of the references, in full, that may be fetched."""

    def __init__(self, images: Images, remotes: Sequence[str]) -> None:
        self._images = images
        self._remotes = [remote for remote in remotes if remote.startswith(REGISTRY)]
        self._flights: dict[str, Flight[Fetched]] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> ImageFetches:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for flight in self._flights.values():
            flight.cancel()
        await leave(self._tasks, error)

    async def prepare(self, reference: str) -> Fetched:
        """Raises FieldErrors, FetchFailed, ImageStoreFull and LayerTimeout."""
        store = self._images.usable("reference")
        name = self._allowed(reference)
        known = await asyncio.to_thread(_known, store, name)
        if known is not None:
            return Fetched(name, known, cached=True)
        if (flight := self._flights.get(name)) is None:
            flight = self._flights[name] = Flight(lambda _: self._flights.pop(name), goes_on=True)
            flight.begin(self._tasks, lambda: self._fetched(store, name), _ended, f"image {name}")
        return await flight.wait()

    def _allowed(self, reference: str) -> str:
        """The image's name here."""
        whole = in_full(reference)
        if not whole:
            problem = f"is {shown(reference)}, must be the name of an image like docker://registry.example/path:tag"
        elif not self._remotes:
            problem = "is set, but this server fetches no images: its remotes name none (docker://...)"
        elif not whole.startswith(tuple(self._remotes)):
            problem = f"is {shown(whole)}, must begin with {' or '.join(self._remotes)}"
        else:
            return name_of(reference)
        raise FieldErrors([FieldError("reference", problem)])

    async def _fetched(self, store: ImageStore, name: str) -> Fetched:
        try:
            async with asyncio.timeout(_TURN_S):
                await self._turns.acquire()
        except TimeoutError:
            raise FetchFailed(f"{name}: others were fetched for {_TURN_S:g} s") from None
        try:
            async with asyncio.timeout(_TURN_S) as waiting, _alone(store, name):
                waiting.reschedule(None)
                known = await asyncio.to_thread(_known, store, name)
                if known is not None:  # by another server
                    return Fetched(name, known, cached=False)
                return Fetched(name, await _fetch(store, name), cached=False)
        except TimeoutError:
            raise FetchFailed(f"{name}: another server was fetching it for {_TURN_S:g} s") from None
        except (ImageError, OSError) as error:
            raise FetchFailed(f"{name}: {error}") from None
        finally:
            self._turns.release()


@asynccontextmanager
async def _alone(store: ImageStore, name: str) -> AsyncIterator[None]:
    """For a block, no other server with the store fetches the name."""
    lock = f"fetch-{hashlib.sha256(name.encode()).hexdigest()}"
    stack = ExitStack()
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.to_thread(stack.enter_context, store.alone(lock))
            break
        await asyncio.sleep(_LOOK_S)
    try:
        yield
    finally:
        await to_the_end(asyncio.to_thread(stack.close))


async def _fetch(store: ImageStore, name: str) -> StoredImage:
    from executor_service.images.archive import open_archive  # here: a server without images does without it

    async with _in_thread(store.new_folder()) as folder:
        layout = await fetch(REGISTRY + name, folder)
        image, _ = await to_the_end(asyncio.to_thread(lambda: store.add(open_archive(layout), name=name)))
        return image


@asynccontextmanager
async def _in_thread(context: AbstractContextManager[T]) -> AsyncIterator[T]:
    """A block of a context whose ends may take long."""
    stack = ExitStack()
    value = await asyncio.to_thread(stack.enter_context, context)
    try:
        yield value
    finally:
        await to_the_end(asyncio.to_thread(stack.close))


def _known(store: ImageStore, name: str) -> StoredImage | None:
    return next((image for image in store.images() if name in image.names), None)


def _ended() -> Exception:
    return FetchFailed("the server ends")
