"""Images from the client's side: what servers fetch before something runs in it."""

from __future__ import annotations

from executor_service.client.calls import Calls
from executor_service.model import PreparedImage
from executor_service.v1 import executor_pb2 as pb
from executor_service.wire.programs import from_message
from fairbox.gathering import all_of

_FETCH_S = 7200.0
"""An image of tens of gigabytes, and those before it."""


class ImageCalls:
    """The part of ExecutorClient that is about images."""

    _calls: Calls

    async def prepare_image(self, reference: str, *, call_timeout: float = _FETCH_S) -> list[PreparedImage]:
        """Has every server fetch an image, like `docker://python:3.12`, unless it has one of that name: runs and
        sessions then name it without `docker://`. Only registries that the servers' `remotes` allow. `call_timeout`
        (seconds) bounds each server's call. Raises InvalidRequest, Overloaded (images in use leave no room) or
        ExecutorUnavailable (it could not be fetched; the text says why)."""
        request = pb.PrepareImageRequest(reference=reference)

        async def ask(address: str) -> PreparedImage:
            # Safe to repeat: what was fetched is there.
            response, _ = await self._calls.ask("PrepareImage", request, call_timeout, among=frozenset({address}))
            return from_message(PreparedImage, response)

        return await all_of(map(ask, self._calls.fleet.addresses))
