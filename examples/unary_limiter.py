"""One token by unary calls, for programs that can't keep a stream open: `python -m examples.unary_limiter HOST:PORT`.

The lease has a hold time, so it ends by itself when this program dies; a release by (client_id, request_id) also
withdraws a request whose grant is still on its way, and may be repeated.
"""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Iterator

import grpc

from fairbox.v1.common_pb2 import Lease
from limiter.v1 import limiter_pb2 as pb
from limiter.v1 import limiter_pb2_grpc


@contextlib.contextmanager
def lease(target: str, bucket: str = "code", *, queue_timeout_s: float = 60.0, hold_s: float = 0.0) -> Iterator[Lease]:
    """A token of `bucket` for as long as the block lasts. grpc.RpcError: RESOURCE_EXHAUSTED where the queue is full,
    DEADLINE_EXCEEDED where the turn did not come. `hold_s` needs a bucket with `max_hold_s`."""
    client_id, request_id = uuid.uuid4().hex, "1"
    with grpc.insecure_channel(target) as channel:
        stub = limiter_pb2_grpc.LimiterServiceStub(channel)
        request = pb.AcquireTokenRequest(
            bucket=bucket, client_id=client_id, request_id=request_id, queue_timeout_s=queue_timeout_s, hold_s=hold_s
        )
        try:
            yield stub.AcquireToken(request, timeout=queue_timeout_s + 10).lease
        finally:
            stub.ReleaseToken(pb.ReleaseTokenRequest(client_id=client_id, request_id=request_id), timeout=5)


if __name__ == "__main__":
    with lease(sys.argv[1]) as granted:
        print("granted", granted.bucket, granted.seq)
