"""Parts of a request, each checked: what is missing, too long or of a wrong type is Refused by a sentence.

Invariant: a body is bounded before it is read, and its JSON while it is.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from functools import partial
from typing import Any

from aiohttp import BodyPartReader, web

from fairbox import bounded_json
from fairbox.apart import read_apart
from fairbox_e2b.sandbox import Refused

MOST_BODY = 8 << 20
"""Bytes of a body."""
_MOST_VALUES, _MOST_DEPTH = 10_000, 16
_BODY_S = 60.0
_FILE_NAME = re.compile(r'filename="((?:[^"\\]|\\.)*)"')


async def read_body(request: web.Request, *, enveloped: bool = False) -> dict[str, Any]:
    """A body of JSON; `enveloped`, as the first message of a stream."""
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise Refused(501, "bodies must not be compressed")
    async with asyncio.timeout(_BODY_S):
        data = await request.read()
    if enveloped:
        if len(data) < 5 or data[0] or len(data) - 5 != int.from_bytes(data[1:5], "big"):
            raise Refused(400, "the body is not one message that is not compressed")
        data = data[5:]

    parsed = partial(bounded_json.loads, data or b"{}", depth=_MOST_DEPTH, left=[_MOST_VALUES])
    found = await read_apart(len(data), parsed)
    if not isinstance(found, dict):
        raise Refused(400, "the body must be an object of JSON")
    return found


def text_of(body: dict[str, Any], name: str) -> str:
    """A text; empty if there is none."""
    value = body.get(name) or ""
    if not isinstance(value, str) or "\0" in value:
        raise Refused(400, f"{name} must be a text")
    return value


def texts_of(body: dict[str, Any], name: str, most: int = MOST_BODY) -> dict[str, str]:
    """Texts by name, of `most` characters together."""
    value = body.get(name) or {}
    if not isinstance(value, dict) or not all(isinstance(each, str) and "\0" not in each for each in value.values()):
        raise Refused(400, f"{name} must be an object of texts")
    if sum(len(each) + len(text) for each, text in value.items()) > most:
        raise Refused(413, f"{name} may have up to {most} characters")
    return value


def number_of(body: dict[str, Any], name: str, default: int) -> int:
    """A whole number."""
    value = body.get(name, default)
    if not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise Refused(400, f"{name} must be a whole number")
    return value


def user_of(request: web.Request) -> str:
    """User that a request is for; empty: the sandbox's own."""
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return request.query.get("username", "")
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[0]
    except (binascii.Error, UnicodeDecodeError):
        raise Refused(400, "the header Authorization is not of the form Basic") from None


def deadline_of(request: web.Request) -> float:
    """Seconds that a command may take; 0: it does not say."""
    text = request.headers.get("Connect-Timeout-Ms", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 11):
        raise Refused(400, "Connect-Timeout-Ms must be a number")
    return int(text) / 1000


def file_name_of(part: BodyPartReader) -> str:
    """Path of a file of a form. aiohttp's own takes the slash from its beginning."""
    found = _FILE_NAME.search(part.headers.get("Content-Disposition", ""))
    if found is None:
        raise Refused(400, "a file has no name")
    return re.sub(r"\\(.)", r"\1", found[1]).replace("%22", '"')
