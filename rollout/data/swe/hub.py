"""Gets a data set from a Hugging Face hub, as the parquet files that the hub makes of each.

HF_ENDPOINT names another hub, HF_TOKEN or HF_TOKEN_PATH what opens it. A file is whole or not there, and is not fetched
again.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from fairbox.errors import FairboxError
from rollout.data.whole import whole_file

__all__ = ["HubError", "fetch", "is_dataset"]

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_MOST_BYTES = 4 << 30
"""Of one file."""
_PIECE = 1 << 20
_STEP_S = 60.0
"""Longest time without a byte."""


class HubError(FairboxError):
    """The hub doesn't have the data set, or can't be reached."""


def is_dataset(name: str) -> bool:
    """Whether this may be the name of a data set: OWNER/NAME."""
    return _NAME.fullmatch(name) is not None and not name.endswith((".jsonl", ".json", ".parquet"))


def fetch(dataset: str, split: str, folder: Path, *, config: str = "default") -> list[Path]:
    """The parquet files of a split, in their order, in `folder`. Raises HubError."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    where = "/".join(urllib.parse.quote(word, safe="") for word in (config, split))
    try:
        urls = json.loads(_get(f"{endpoint}/api/datasets/{dataset}/parquet/{where}"))
    except ValueError as error:
        raise HubError(f"{dataset}: the hub's answer is not JSON: {error}") from None
    if not isinstance(urls, list) or not urls or not all(isinstance(url, str) for url in urls):
        raise HubError(f"{dataset}: the hub names no parquet files of {config}/{split}")
    paths = []
    for number, url in enumerate(urls):
        path = folder / f"{dataset.replace('/', '__')}-{config}-{split}-{number}.parquet"
        if not path.exists():
            _download(url, path)
        paths.append(path)
    return paths


def _get(url: str) -> bytes:
    with _open(url) as answer:
        content: bytes = answer.read(_PIECE)
        return content


def _download(url: str, path: Path) -> None:
    try:
        with whole_file(path) as unfinished, _open(url) as answer, unfinished.open("wb") as file:
            written = 0
            while piece := answer.read(_PIECE):
                written += file.write(piece)
                if written > _MOST_BYTES:
                    raise HubError(f"{url}: has more than {_MOST_BYTES >> 30} GiB")
            if (length := answer.headers.get("Content-Length")) is not None and written != int(length):
                raise HubError(f"{url}: ended after {written} of {length} bytes")
    except (OSError, http.client.HTTPException) as error:
        raise HubError(f"{url}: {error}") from None


def _open(url: str) -> Any:
    """Repeating is safe, these only read; but nothing is repeated here: who calls again finds what was finished."""
    if urllib.parse.urlsplit(url).scheme not in ("https", "http"):
        raise HubError(f"{url}: must begin with https:// or http://")
    request = urllib.request.Request(url)  # noqa: S310 - the scheme was checked
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if (token := _token()) and urllib.parse.urlsplit(url).netloc == urllib.parse.urlsplit(endpoint).netloc:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        return urllib.request.urlopen(request, timeout=_STEP_S)  # noqa: S310 - the scheme was checked
    except urllib.error.HTTPError as error:
        error.close()
        raise HubError(f"{url}: {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise HubError(f"{url}: can't be reached: {getattr(error, 'reason', error)}") from None


def _token() -> str:
    if token := os.environ.get("HF_TOKEN", ""):
        return token.strip()
    if path := os.environ.get("HF_TOKEN_PATH"):
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise HubError(f"HF_TOKEN_PATH is {path}: {error.strerror or error}") from None
    return ""
