"""The limiter as a named Ray actor, for clusters that already run Ray. Needs the extra `ray`."""

from __future__ import annotations

from limiter.ray.limiter import LimiterMismatch, RayLimiter
from limiter.ray.settings import RaySettings
from limiter.ray.transport import RayTransport

__all__ = ["LimiterMismatch", "RayLimiter", "RaySettings", "RayTransport"]
