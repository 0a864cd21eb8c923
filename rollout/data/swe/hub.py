"""Gets a data set of the Hugging Face hub, as the parquet files that the hub makes of each.

The library `huggingface_hub` fetches and caches; its own variables (HF_ENDPOINT, HF_TOKEN, HF_HOME) apply.
"""

from __future__ import annotations

import re
from pathlib import Path

from fairbox.errors import FairboxError
from fairbox.extras import require

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_REVISION = "refs/convert/parquet"


class HubError(FairboxError):
    """The hub doesn't have the data set, or can't be reached."""


def is_dataset(name: str) -> bool:
    """Says whether this may be the name of a data set: OWNER/NAME."""
    return _NAME.fullmatch(name) is not None and not name.endswith((".jsonl", ".json", ".parquet"))


def fetch(dataset: str, split: str, config: str = "default") -> list[Path]:
    """The parquet files of a split, in their order, in the cache of the hub's library. Raises HubError."""
    require(f"{dataset}: the hub", "engine", "huggingface_hub")
    from huggingface_hub import HfApi, hf_hub_download

    try:
        names = HfApi().list_repo_files(dataset, repo_type="dataset", revision=_REVISION)
        wanted = sorted(name for name in names if name.startswith(f"{config}/{split}/") and name.endswith(".parquet"))
        paths = [Path(hf_hub_download(dataset, name, repo_type="dataset", revision=_REVISION)) for name in wanted]
    except (OSError, ValueError) as error:  # the library's own errors are kinds of these
        raise HubError(f"{dataset}: {' '.join(str(error).split())}") from None
    if not paths:
        raise HubError(f"{dataset}: the hub has no parquet files of {config}/{split}")
    return paths
