"""Images that this server uses: found in the store, kept there while a run needs them or boxes wait for one.

Invariants: an image that is held stays, whoever wants its room; files are looked at in threads, once for runs that
follow each other closely; nothing is held any more when the block is left.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from executor_service.cleanup import to_the_end
from executor_service.sandbox.report import ImageMount
from executor_service.v1 import executor_pb2 as pb
from fairbox.clock import Clock
from fairbox.errors import FieldError, FieldErrors

if TYPE_CHECKING:
    from executor_service.images.facts import StoredImage
    from executor_service.images.store import ImageStore

_FRESH_S = 2.0
"""So long a name stands for what it stood for."""
_TICK_S = 5.0
"""Between two looks at what is not needed any more."""


@dataclass(eq=False, slots=True)
class HeldImage:
    """An image that stays where it is."""

    image: StoredImage
    mount: ImageMount
    stack: ExitStack
    """Lets it go when it is closed."""
    users: int = 0


@dataclass(eq=False)
class Images:
    """`async with Images(...) as images, images.hold("python:3.12") as held:`."""

    store: ImageStore | None
    """None: this server has no images."""
    clock: Clock
    mounts: bool
    """False at an isolation level at which nothing can be mounted."""
    waited_for: Callable[[str], bool]
    """Says whether boxes wait for work in the image of an id."""
    most_snapshot_bytes: int = 0
    """Bound of all snapshots together."""
    snapshots: int = 0
    """Snapshots taken so far."""
    _held: dict[str, HeldImage] = field(default_factory=dict)
    _names: dict[tuple[str, str], tuple[str, float]] = field(default_factory=dict)
    """Name and tenant -> id, and until when."""
    _sweeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Images:
        self._sweeper = asyncio.create_task(self._sweep(), name="images")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._sweeper is not None
        self._sweeper.cancel()
        await asyncio.wait([self._sweeper])
        for held in self._held.values():
            held.stack.close()
        self._held.clear()

    @asynccontextmanager
    async def hold(self, name: str, tenant: str) -> AsyncIterator[HeldImage]:
        """Keeps an image for a block; snapshots of other tenants don't exist. Raises FieldErrors where images can't be
        used here, UnknownImage, and OSError."""
        held = await self._lookup(name, tenant)
        held.users += 1
        try:
            yield held
        finally:
            held.users -= 1

    async def snapshot(self, image_id: str, layer: int, tenant: str) -> StoredImage:
        """Puts an image with one more layer, whose folder has the descriptor `layer`, into the store. What `hold` and
        `take_snapshot` raise. Once it has begun, it ends before this is cancelled."""
        from executor_service.images.snapshot import take_snapshot  # here: a server without images does without it

        async def take() -> StoredImage:
            async with self.hold(image_id, tenant) as held:
                assert self.store is not None
                return await asyncio.to_thread(
                    take_snapshot, self.store, held.image, layer, tenant=tenant, most_bytes=self.most_snapshot_bytes
                )

        image = await to_the_end(take())
        self.snapshots += 1
        return image

    def usable(self, field: str) -> ImageStore:
        """The store. Raises FieldErrors about the field that needs it, where images can't be used."""
        if not self.mounts:
            lacking = "is set, but this server isolates at level landlock, where nothing can be mounted"
            raise FieldErrors([FieldError(field, lacking)])
        if self.store is None:
            raise FieldErrors([FieldError(field, "is set, but this server has none: its image_dir is empty")])
        return self.store

    def status(self, ready: int) -> pb.ImageStatus | None:
        """For GetStatus; None where there are no images. `ready`: boxes that wait for work in one."""
        if self.store is None or not self.mounts:
            return None
        in_use = sum(held.users > 0 for held in self._held.values())
        return pb.ImageStatus(held=len(self._held), in_use=in_use, ready=ready, snapshots=self.snapshots)

    async def _lookup(self, name: str, tenant: str) -> HeldImage:
        store = self.usable("image")
        image_id, until = self._names.get((name, tenant), ("", 0.0))
        if self.clock.now() < until and (there := self._held.get(image_id)) is not None:
            return there
        stack = ExitStack()
        image, mount = await asyncio.to_thread(_held_in, stack, store, name, tenant)
        self._names = {each: known for each, known in self._names.items() if known[1] > self.clock.now()}
        self._names[name, tenant] = (image.image_id, self.clock.now() + _FRESH_S)
        there = self._held.get(image.image_id)
        if there is not None:  # by another run, or by another name
            stack.close()
            return there
        self._held[image.image_id] = held = HeldImage(image, mount, stack)
        return held

    async def _sweep(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(_TICK_S)
                for image_id, held in list(self._held.items()):
                    if not held.users and not self.waited_for(image_id):
                        del self._held[image_id]
                        held.stack.close()


def _held_in(stack: ExitStack, store: ImageStore, name: str, tenant: str) -> tuple[StoredImage, ImageMount]:
    image = stack.enter_context(store.hold(name, tenant))
    folders = [store.folder(layer) for layer in reversed(image.layers)]
    paths = tuple(str(folder.relative_to(store.layers)) for folder in folders)
    return image, ImageMount(image.image_id, paths, str(store.layers), folders[0].stat().st_uid)
