"""Messages between a pool and its worker processes: a length of 8 bytes, then a pickle of at most so many bytes."""

from __future__ import annotations

import importlib.util
import pickle
from typing import Any

from limiter.pool.errors import FunctionFailed

__all__ = ["LENGTH_BYTES", "can_pickle_functions", "dumps", "loads", "pack"]

LENGTH_BYTES = 8


def can_pickle_functions() -> bool:
    """Whether the extra `pool` is installed."""
    return importlib.util.find_spec("cloudpickle") is not None


def dumps(value: Any) -> bytes:
    """Pickles anything that can be, functions and classes of the main program by value."""
    import cloudpickle

    data: bytes = cloudpickle.dumps(value)
    return data


def loads(data: bytes) -> Any:
    """Reads what the other end has pickled. The two trust each other: one has started the other."""
    return pickle.loads(data)  # noqa: S301


def pack(data: bytes, max_bytes: int) -> bytes:
    """A message. FunctionFailed when it is too large."""
    if len(data) > max_bytes:
        raise FunctionFailed(f"a message of {len(data)} bytes is too large, must be at most {max_bytes}")
    return len(data).to_bytes(LENGTH_BYTES, "big") + data
