"""Bearer tokens: read from a file, compared in constant time."""

from __future__ import annotations

import hmac
from pathlib import Path

from fairbox.errors import ConfigError

_SHORTEST = 16


def read_token(path: str, setting: str) -> str:
    """The token in a file, or "" for an empty path. `setting` is what errors call the path.

    A token goes into headers and paths of URLs: letters, digits and `-._~`. ConfigError for one that can't be read or
    guards nothing.
    """
    if not path:
        return ""
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigError(f"{setting} is {path!r}, which can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{setting} is {path!r}, which must hold ASCII text") from None
    if len(token) < _SHORTEST:
        raise ConfigError(f"{setting} is {path!r}, whose token has less than {_SHORTEST} characters")
    if not all(character.isalnum() or character in "-._~" for character in token):
        raise ConfigError(f"{setting} is {path!r}, whose token must be letters, digits and '-._~' only")
    return token


def matches(token: str, given: str) -> bool:
    """Says whether a client gave the right token; the time this takes does not reveal how much of it was right."""
    return hmac.compare_digest(token.encode(), given.encode("utf-8", "replace"))
