"""Ends of calls that have no result: the gRPC status of an error.

Invariants: an error has its status where it is defined, those of other packages below; what nobody foresaw is logged
and is INTERNAL.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import grpc.aio

from executor_service.errors import ExecutorError, ExecutorUnavailable, NotAllowed, NotFound, Overloaded
from executor_service.images.errors import ImageStoreFull, LayerTimeout, UnknownImage
from fairbox.errors import FieldErrors
from fairbox.net.grpc_errors import abort_exhausted, abort_fields, abort_reason
from fairbox.security import TenantRefused

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]

_STORE_FULL_RETRY_S = 30.0
"""Advice to one whose image has no room while runs use all others."""
_log = logging.getLogger(__name__)


class TooLate(ExecutorUnavailable):
    """Something was not done in time."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class ReaderStalled(TooLate):
    """The caller of a stream took nothing for so long that it counts as gone."""


class ImagesFull(Overloaded):
    """The images in use leave no room for one more."""

    subject = "executor:image_dir"


OTHERS: Mapping[type[Exception], Callable[[str], ExecutorError]] = {
    ImageStoreFull: lambda said: ImagesFull(said, _STORE_FULL_RETRY_S),
    LayerTimeout: TooLate,
    TenantRefused: NotAllowed,
    UnknownImage: NotFound,
}
"""Errors of packages that know no status."""


async def abort(context: Context, error: Exception) -> NoReturn:
    """Ends the call with the status of `error`."""
    made = OTHERS.get(type(error))
    said = error if made is None else made(str(error))
    if isinstance(said, FieldErrors):
        await abort_fields(context, said)
    if isinstance(said, Overloaded):
        await abort_exhausted(context, str(said), retry_after_s=said.retry_after_s, subject=said.subject)
    if isinstance(said, ExecutorError) and said.reason:
        await abort_reason(context, said.code, str(said), said.reason, {"cause": said.cause.value})
    if isinstance(said, ExecutorError):
        await context.abort(said.code, str(said))
    _log.error("a run failed for a reason that nobody foresaw", exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__} in the executor; see its log")
    raise AssertionError("abort() does not return")
