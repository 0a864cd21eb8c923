"""The token that clients of the gateway send as their api_key: read from a file, compared in constant time."""

from __future__ import annotations

import hmac
from pathlib import Path

from fairbox.errors import ConfigError

__all__ = ["matches", "read_token"]

_SHORTEST = 16


def read_token(path: str) -> str:
    """The token in a file, or none for an empty path. ConfigError for one that can't be read or guards nothing."""
    if not path:
        return ""
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigError(f"token_file is {path!r}, which can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"token_file is {path!r}, which must hold ASCII text") from None
    if len(token) < _SHORTEST or not token.isprintable() or " " in token:
        raise ConfigError(f"token_file is {path!r}, whose token must have {_SHORTEST} characters or more and no space")
    return token


def matches(token: str, authorization: str) -> bool:
    """Whether a header `Authorization: Bearer TOKEN` has the token; the time it takes does not tell how much of it."""
    scheme, _, given = authorization.partition(" ")
    given = given.strip() if scheme.lower() == "bearer" else ""
    return hmac.compare_digest(token.encode(), given.encode("utf-8", "replace"))
