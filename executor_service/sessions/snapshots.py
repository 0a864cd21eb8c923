"""Snapshots of the files of sessions in images.

Invariants: no cell of the session runs while its files are read, and none begins; a session that is busy is refused;
few snapshots are taken at once, the others wait in the order in which they came. Programs that the session has left
running go on meanwhile, and a file that one of them writes may be torn.
"""

from __future__ import annotations

import asyncio
import os

import grpc

from executor_service.errors import CannotSnapshot, ExecutorUnavailable, SessionNotFound
from executor_service.images.errors import ImageError
from executor_service.images.table import Images
from executor_service.model import Snapshot
from executor_service.runs.queue import QueueTimeout
from executor_service.sessions.table import LiveSession
from fairbox.errors import FieldError, FieldErrors

_AT_ONCE = 2
"""Each keeps a processor and the disk busy."""
_TURN_S = 120.0
"""Longest wait behind others."""
_ANSWER_WITHIN_S = 30.0
"""The init answers within a millisecond; beyond, the machine is overloaded."""


class SnapshotFailed(ExecutorUnavailable):
    """The snapshot could not be written; the text says why."""

    code = grpc.StatusCode.INTERNAL


class Snapshots:
    """Takes them into the store of `images`. `name` is that of this server."""

    def __init__(self, images: Images, name: str) -> None:
        self._images = images
        self.name = name
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def take(self, session: LiveSession) -> Snapshot:
        """Raises SessionBusy, SessionNotFound, CannotSnapshot, SnapshotFailed, QueueTimeout, LayerTimeout and
        ImageStoreFull, and FieldErrors if this server takes none."""
        named = f"session {session.info.session_id!r}"
        if not session.tree.image_id:
            raise CannotSnapshot(f"{named} has no image, whose files a snapshot could be of")
        if not self._images.most_snapshot_bytes:
            # Nothing that the session has done: whoever scores it must not take it for that.
            lacking = "is set, but this server takes no snapshots: its max_snapshot_bytes is 0"
            raise FieldErrors([FieldError("session_id", lacking)])
        session.enter_at_once()
        try:
            try:
                async with asyncio.timeout(_TURN_S):
                    await self._turns.acquire()
            except TimeoutError:
                raise QueueTimeout from None
            try:
                return await self._taken(session, named)
            finally:
                self._turns.release()
        finally:
            session.leave()

    async def _taken(self, session: LiveSession, named: str) -> Snapshot:
        layer = await session.tree.questions.writable(session.member, _ANSWER_WITHIN_S)
        if layer is None:
            if session.member.gone.done():
                why = session.member.gone.result().why
                raise SessionNotFound(f"{named} {why.reason}", why.cause)
            raise SnapshotFailed(f"{named} did not hand its files out within {_ANSWER_WITHIN_S:g} s")
        try:
            image = await self._images.snapshot(session.tree.image_id, layer, session.info.tenant)
        except ImageError as error:
            raise CannotSnapshot(f"{named}: {error}") from None
        except OSError as error:
            raise SnapshotFailed(f"{named}: the snapshot could not be written: {error}") from None
        finally:
            os.close(layer)
        return Snapshot(image.image_id, image.layers[-1].bytes, self.name)
