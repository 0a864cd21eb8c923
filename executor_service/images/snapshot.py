"""Snapshots: the writable layer of a session as one more layer of its image, kept in the store as an image of its own.

Its id is that of image, layer and tenant together: two snapshots with the same files are one, but not of two tenants.
Invariants: those of the store; what is read of the layer is an archive like any other, and checked as one.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from executor_service.images.archive import ImageArchive, LayerBlob, Region, chain_id
from executor_service.images.errors import ImageError
from executor_service.images.facts import StoredImage
from executor_service.images.layer_process import answer_of
from executor_service.images.manifest import MOST_LAYERS, Compression, ImageConfig, digest_of
from executor_service.images.store import MOST_ENTRIES, ImageStore, Room

if TYPE_CHECKING:
    from executor_service.images.layers.pack import PackAnswer, PackTask

_NAME = "the session's layer"


def take_snapshot(store: ImageStore, base: StoredImage, layer: int, *, tenant: str, most_bytes: int) -> StoredImage:
    """Puts `base` with one more layer, whose folder is the descriptor `layer`, into the store. The caller holds `base`.

    `most_bytes` bounds all snapshots together. Raises ImageError if the layer holds what is not taken, ImageStoreFull,
    LayerTimeout, and OSError of the disk."""
    if len(base.layers) == MOST_LAYERS:
        raise ImageError(f"its image has {MOST_LAYERS} layers already, which is as many as there may be")
    with store.new_folder() as folder:
        archive = str(folder / "layer.tar")
        task: PackTask = {
            "folder": layer,
            "archive": archive,
            "most_bytes": most_bytes,
            "most_entries": MOST_ENTRIES,
            "cpu_s": int(store.timeout_s) + 1,
        }
        answer: PackAnswer = answer_of("pack", task, _NAME, store.timeout_s, (layer,))
        if "error" in answer:
            raise (OSError if answer["ours"] else ImageError)(f"{_NAME} {answer['error']}")
        blobs: list[LayerBlob] = []
        for diff_id in base.config.diff_ids:  # those are there, and not read again
            blobs.append(LayerBlob(Region("", 0, 0), Compression.NONE, "", diff_id, chain_id(blobs, diff_id)))
        diff_id = answer["diff_id"]
        region = Region(archive, 0, answer["size"])
        blobs.append(LayerBlob(region, Compression.NONE, "", diff_id, chain_id(blobs, diff_id)))
        config = _config(base.config, diff_id, tenant)
        image, _ = store.add(ImageArchive(config, tuple(blobs), ()), room=Room(most_bytes, tenant))
    return image


def _config(base: ImageConfig, diff_id: str, tenant: str) -> ImageConfig:
    identity = json.dumps(["snapshot", base.image_id, diff_id, tenant]).encode()
    return dataclasses.replace(base, image_id=digest_of(identity), diff_ids=(*base.diff_ids, diff_id))
