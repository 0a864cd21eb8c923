"""Between `BucketConfig` messages and the limits of a bucket: defaults, checks, and the way back."""

from __future__ import annotations

from limiter.core import BucketLimits, BucketOrder
from limiter.server.fields import Fields
from limiter.v1 import limiter_pb2 as pb

__all__ = ["bucket_config_message", "bucket_limits"]

_ORDERS = {
    pb.BUCKET_ORDER_UNSPECIFIED: BucketOrder.FIFO,
    pb.BUCKET_ORDER_FIFO: BucketOrder.FIFO,
    pb.BUCKET_ORDER_FAIR_BY_TENANT: BucketOrder.FAIR_BY_TENANT,
}
_ORDER_VALUES = {
    BucketOrder.FIFO: pb.BUCKET_ORDER_FIFO,
    BucketOrder.FAIR_BY_TENANT: pb.BUCKET_ORDER_FAIR_BY_TENANT,
}
_DEFAULTS = BucketLimits("")


def bucket_limits(message: pb.BucketConfig, path: str) -> BucketLimits:
    """The limits with defaults filled in. FieldErrors with everything that is not acceptable, named below `path`."""
    fields = Fields()
    if message.order not in _ORDERS:
        fields.refuse(f"{path}.order", f"is {message.order}, must be a value of BucketOrder")
    limits = BucketLimits(
        message.name,
        message.max_in_flight,
        message.max_queued or _DEFAULTS.max_queued,
        message.max_queued_per_client or _DEFAULTS.max_queued_per_client,
        message.start_by_s or _DEFAULTS.start_by,
        rate_per_s=message.rate_per_s,
        burst=message.burst,
        order=_ORDERS.get(message.order, BucketOrder.FIFO),
        adaptive=message.adaptive,
        paused=message.paused,
        max_hold=message.max_hold_s,
    )
    for field, problem in limits.problems():
        fields.refuse(f"{path}.{field}", problem)
    fields.check()
    return limits


def bucket_config_message(limits: BucketLimits) -> pb.BucketConfig:
    """The configuration in force."""
    return pb.BucketConfig(
        name=limits.name,
        max_in_flight=limits.max_in_flight,
        rate_per_s=limits.rate_per_s,
        burst=limits.most_at_once if limits.rate_per_s else 0,
        max_queued=limits.max_queued,
        max_queued_per_client=limits.max_queued_per_client,
        start_by_s=limits.start_by,
        max_hold_s=limits.max_hold,
        order=_ORDER_VALUES[limits.order],
        adaptive=limits.adaptive,
        paused=limits.paused,
        version=limits.version,
    )
