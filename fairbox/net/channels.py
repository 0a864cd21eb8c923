"""Opens the gRPC channels of fairbox's clients, and tunes its servers to match.

Keepalive is bounded by `grpc.http2.ping_timeout_ms`: grpcio reads `grpc.keepalive_timeout_ms` too, but without the
former a hung peer is noticed only after the keepalive time plus 60 s. A server must allow pings at least as often as
its clients send them, or it closes their connections with `too_many_pings`.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import grpc.aio

from fairbox.security.client import PLAINTEXT, ClientSecurity, SecuredChannel, is_local

MAX_MESSAGE_BYTES = 192 << 20
"""Largest message: the 64 MiB of input files and the outputs of one run, with room to spare."""

_HANDSHAKE_WITHIN_MS = 10_000
"""From the first byte to the end of the TLS handshake and HTTP/2's own: a peer that is slower is cut off."""
_IDLE_MS = 60_000
"""A connection without a call is closed after so long: it holds a descriptor. A client connects anew when it calls."""
_MAX_STREAMS = 16_384
"""Calls at once on one connection; more wait in their client. Above what one client may have queued at the limiter: the
release that they wait for must not wait behind them."""
_MAX_PENDING = 16_384
"""Calls that have come and wait for the event loop to take them; gRPC answers more with CANCELLED. Its own bound of
1,000 does so to a burst of honest calls; this one takes 250 MB and a few seconds to work off when it is full."""
Options = Sequence[tuple[str, int]]
_BOTH = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.http2.ping_timeout_ms", 4_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)
"""Options of channels and servers."""


def client_options() -> list[tuple[str, int]]:
    """Options of a client's channel: quick reconnection, keepalive that notices a hung peer within 14 s."""
    return [
        *_BOTH,
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 5_000),  # how long an attempt may take; gRPC waits by the other two
        ("grpc.max_reconnect_backoff_ms", 500),
        ("grpc.dns_min_time_between_resolutions_ms", 5_000),
        ("grpc.use_local_subchannel_pool", 1),
        # Only for calls that the server has not begun, as it says itself when it closes a connection that came of age
        # or was idle: without, one in a thousand of those ends as UNAVAILABLE. No retry policy is set, so that nothing
        # else is ever sent twice.
        ("grpc.enable_retries", 1),
    ]


def server_options(max_connections: int = 4096) -> list[tuple[str, int]]:
    """Options of a server. `so_reuseport` is off: a second server on the same port must fail, not share it."""
    return [
        *_BOTH,
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 4_000),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_WITHIN_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        ("grpc.max_concurrent_streams", _MAX_STREAMS),
        ("grpc.server.max_pending_requests", _MAX_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING),
        ("grpc.max_allowed_incoming_connections", max_connections),
    ]


def open_channel(target: str, options: Options = (), security: ClientSecurity = PLAINTEXT) -> grpc.aio.Channel:
    """A channel to `target`. Call it inside the running loop of the process that uses it, never before a fork.

    ConfigError for files of `security` that can't be used, and for a token that would cross a network in the clear."""
    options = [*client_options(), *options]
    if is_local(target):  # what is for this machine stays there, a token above all, whatever http_proxy says
        options.append(("grpc.enable_http_proxy", 0))
    if security.plain:
        return grpc.aio.insecure_channel(target, options=options)
    return SecuredChannel(target, security, options)
