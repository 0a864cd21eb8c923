"""Names that the limiter's server gives by itself."""

from __future__ import annotations

__all__ = ["UNARY_PREFIX"]

UNARY_PREFIX = "unary:"
"""Sessions that the server makes for unary calls; streams may not use it."""
