"""How git writes names of files in patches: as they are, or between quotes with escapes of C."""

from __future__ import annotations

import re

__all__ = ["quote", "unquote"]

_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_LETTERS = {code: letter for letter, code in _ESCAPES.items()}
_QUOTED = re.compile(r'"((?:[^"\\]|\\[abtnvfr"\\]|\\[0-3][0-7]{2})*)"')
_ESCAPE = re.compile(rb'\\([abtnvfr"\\]|[0-3][0-7]{2})')


def quote(name: str) -> str:
    """The name as it stands in a patch: between quotes where it has controls, quotes, backslashes or is not ASCII."""
    octets = name.encode("utf-8", "surrogateescape")
    if all(32 <= octet < 127 and octet not in (34, 92) for octet in octets):
        return name
    return '"' + "".join(map(_escaped, octets)) + '"'


def unquote(text: str) -> tuple[str, str] | None:
    """The name between quotes at the beginning of `text`, and what follows it; None where there is none."""
    found = _QUOTED.match(text)
    if found is None:
        return None
    octets = _ESCAPE.sub(_octet, found[1].encode("utf-8", "surrogateescape"))
    return octets.decode("utf-8", "surrogateescape"), text[found.end() :]


def _escaped(octet: int) -> str:
    if octet in _LETTERS:
        return "\\" + _LETTERS[octet]
    return chr(octet) if 32 <= octet < 127 else f"\\{octet:03o}"


def _octet(found: re.Match[bytes]) -> bytes:
    escape = found[1].decode("ascii")
    return bytes([_ESCAPES[escape] if escape in _ESCAPES else int(escape, 8)])
