"""Quantities, as `250m`, `4Gi` and `1e3`: read, and written the one way in which an API server writes them."""

from __future__ import annotations

import re
from decimal import Decimal

__all__ = ["canonical", "parse", "text"]

_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))((?:[eE][+-]?\d+)|[numkMGTPE]|[KMGTPE]i)?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse(value: str | float) -> Decimal:
    """The number that it stands for. ValueError, in the words of an API server."""
    found = _FORM.fullmatch(str(value))
    if found is None:
        raise ValueError(f"quantities must match the regular expression '{_FORM.pattern}'")
    number, suffix = Decimal(found[1]), found[2] or ""
    if suffix in _BINARY:
        return number * Decimal(1 << _BINARY[suffix])
    if suffix in _DECIMAL:
        return number.scaleb(_DECIMAL[suffix])
    return number.scaleb(int(suffix[1:]))


def text(number: Decimal, *, binary: bool) -> str:
    """The shortest whole number with the largest suffix that loses nothing."""
    if number == 0:
        return "0"
    if binary and number == number.to_integral_value():
        whole = int(number)
        for suffix, bits in reversed(_BINARY.items()):
            if whole % 2**bits == 0:
                return f"{whole >> bits}{suffix}"
        return str(whole)
    for suffix, exponent in reversed(_DECIMAL.items()):
        scaled = number.scaleb(-exponent)
        if scaled == scaled.to_integral_value():
            return f"{int(scaled)}{suffix}"
    return f"{int(number.scaleb(9).to_integral_value(rounding='ROUND_UP'))}n"


def canonical(value: str | float) -> str:
    """As an API server stores it: `1000m` becomes `1`, `0.5Gi` becomes `512Mi`, `1024Mi` becomes `1Gi`."""
    written = str(value)
    number = parse(written)
    if "e" in written.removesuffix("Ei") or re.search(r"\dE\d", written):
        return _exponent(number)
    return text(number, binary=written.endswith("i"))


def _exponent(number: Decimal) -> str:
    for exponent in (18, 15, 12, 9, 6, 3):
        scaled = number.scaleb(-exponent)
        if number and scaled == scaled.to_integral_value():
            return f"{int(scaled)}e{exponent}"
    return text(number, binary=False)
