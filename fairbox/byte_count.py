"""Sizes as people write them on a command line. Pure."""

from __future__ import annotations

import argparse
import re

_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def byte_count(text: str) -> int:
    """Bytes of `512m`, `2g` or `2GiB`, as argparse's `type`: units are powers of 1024."""
    found = re.fullmatch(r"(\d+)([kmgt]?)i?b?", text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"is {text!r}, must be a number of bytes, or one with k, m, g or t behind it")
    return int(found[1]) << _UNITS[found[2]]
