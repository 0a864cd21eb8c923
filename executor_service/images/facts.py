"""Images and layers of a store, as its files describe them.

Invariants: a file is read once for as long as it stays as it is: a store has thousands, and is looked through for each
new image; an image is there only while all of its layers are. Everything here blocks; threads may share it.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from executor_service.images.errors import ImageError
from executor_service.images.manifest import ImageConfig

SHA = "sha256:"
_OTHER_VERSION = "{}: was written by another version of fairbox: use another folder"


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """One layer on disk."""

    chain_id: str
    """Digest of it and all layers below it."""
    bytes: int
    entries: int
    left_out: dict[str, int]
    """Kind -> entries of the archive that are not here: devices, attributes, others."""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """One image, and when it was used last, in seconds since 1970."""

    config: ImageConfig
    names: tuple[str, ...]
    layers: tuple[StoredLayer, ...]
    used_at: float
    owner: str | None = None
    """Tenant whose snapshot of a session it is; None: an image for all, which somebody has added."""

    @property
    def image_id(self) -> str:
        return self.config.image_id

    @property
    def bytes(self) -> int:
        """Bytes of its layers, also of those that other images have too."""
        return sum(layer.bytes for layer in self.layers)


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """Content of an image's file."""

    config: ImageConfig
    names: tuple[str, ...]
    layers: tuple[str, ...]
    owner: str | None = None


_LAYER, _IMAGE_FACTS = TypeAdapter(StoredLayer), TypeAdapter(ImageFacts)
_Version = tuple[int, int, int]
"""State of a file: which it is, its size, and when it was written or its image was used last."""


def _names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


class StoreFacts:
    """`path` is the store's folder. ImageError for files of another version of fairbox."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._images, self._layers = path / "images", path / "layers"
        self._known_images: dict[str, tuple[_Version, StoredImage]] = {}
        """By the name of the file."""
        self._known_layers: dict[str, StoredLayer] = {}
        """By the name of the folder."""

    def images(self) -> list[StoredImage]:
        """All images, the one that was used last first."""
        names, there = _names(self._images), set(_names(self._layers))
        found = [each for name in names if name.endswith(".json") and (each := self._image(name, there)) is not None]
        known = self._known_images  # another thread may put another in its place
        if len(known) > len(names):
            self._known_images = {name: known[name] for name in names if name in known}
        return sorted(found, key=lambda image: image.used_at, reverse=True)

    def image(self, image_id: str) -> StoredImage | None:
        """The image of an id; None: it is not there."""
        return self._image(f"{image_id.removeprefix(SHA)}.json", None)

    def layers(self) -> list[StoredLayer]:
        """All layers."""
        names = _names(self._layers)
        found = [layer for name in names if (layer := self._layer(name)) is not None]
        known = self._known_layers  # as above
        if len(known) > len(names):
            self._known_layers = {name: known[name] for name in names if name in known}
        return found

    def layer(self, chain_id: str) -> StoredLayer | None:
        """The layer of an id; None: it is not there."""
        name = chain_id.removeprefix(SHA)
        return self._layer(name) if (self._layers / name).exists() else None

    def _image(self, name: str, there: Collection[str] | None) -> StoredImage | None:
        """`there`: names of the layers that are there; None: look for its own."""
        file = self._images / name
        try:
            status = file.stat()
            version = (status.st_ino, status.st_size, status.st_mtime_ns)
            known = self._known_images.get(name)
            image = known[1] if known is not None and known[0] == version else None
            if image is None:
                image = self._read(_IMAGE_FACTS.validate_json(file.read_bytes()), status.st_mtime)
        except FileNotFoundError:
            return None  # it was removed between two looks
        except ValidationError:
            raise ImageError(_OTHER_VERSION.format(self._path)) from None
        if image is None:
            return None
        self._known_images[name] = (version, image)
        names = (layer.chain_id.removeprefix(SHA) for layer in image.layers)
        whole = all(each in there if there is not None else (self._layers / each).exists() for each in names)
        return image if whole else None

    def _read(self, facts: ImageFacts, used_at: float) -> StoredImage | None:
        layers = [self._layer(each.removeprefix(SHA)) for each in facts.layers]
        there = tuple(layer for layer in layers if layer is not None)
        return None if len(there) < len(layers) else StoredImage(facts.config, facts.names, there, used_at, facts.owner)

    def _layer(self, name: str) -> StoredLayer | None:
        """A layer that was there a moment ago."""
        if (known := self._known_layers.get(name)) is not None:
            return known
        try:
            layer = _LAYER.validate_json((self._layers / name / "facts.json").read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            raise ImageError(_OTHER_VERSION.format(self._path)) from None
        self._known_layers[name] = layer
        return layer
