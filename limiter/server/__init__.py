"""The limiter as a gRPC service: a thin shell around `limiter.core`."""

from __future__ import annotations

from limiter.server.app import LimiterServer, serve

__all__ = ["LimiterServer", "serve"]
