"""Random numbers of numpy's own generator, which a fork does not seed anew; Python's own does so by itself."""

from __future__ import annotations

import ctypes
import os
import sys

_KEY_BYTES = 624 * 4
"""State of a Mersenne Twister, without its place in it."""
_where = 0
"""Address at which numpy has the state in memory; 0: not known."""


def learn() -> None:
    """In a zygote: finds out where the state is, and looks whether it is there."""
    global _where
    _where = 0
    random = sys.modules.get("numpy.random")
    if random is None:
        return
    reseed()
    address = random.get_bit_generator().ctypes.state_address
    if ctypes.string_at(address, _KEY_BYTES) == random.get_state()[1].tobytes():
        _where = address


def fresh() -> None:
    """In a worker, where nothing was drawn since `learn()`. As `reseed()`, with 40 pages less to be copied."""
    if _where:
        ctypes.memmove(_where, os.urandom(_KEY_BYTES), _KEY_BYTES)
    else:
        reseed()


def reseed() -> None:
    """Whatever was drawn before. The state is like those that numpy's `seed()` makes, for three times as many pages."""
    random = sys.modules.get("numpy.random")
    if random is None:
        return
    numpy = sys.modules["numpy"]
    try:
        key = numpy.frombuffer(os.urandom(_KEY_BYTES), numpy.uint32)
        random.set_state(("MT19937", key, len(key)))
    except (TypeError, ValueError):  # the code of a session has taken another generator
        random.set_bit_generator(type(random.get_bit_generator())())
