"""The folder that images are kept in, shared by servers and commands of one machine, or of one volume.

    images/ID.json        one image; appears by one rename when all of its layers are there
    layers/HEX/           root (the files) and facts.json; appears by one rename
    making/RANDOM/        layers that are being written, or removed; RANDOM.lock is held meanwhile
    locks/                layer-HEX: held by who writes it, and shared until an image names it; image-HEX: shared by
                          users of an image; store: held by who removes

Invariants: a name in `layers` never changes its files; an image's layers are there as long as it is; nothing in use is
removed, whoever uses it; a layer is never written twice at once; what SIGKILL leaves is removed by whoever opens the
folder next; bytes of all layers stay below the bound, each counted once. Everything here blocks: call it from a thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from executor_service.images.archive import ImageArchive, LayerBlob
from executor_service.images.errors import ImageError, ImageInUse, ImageStoreFull, UnknownImage
from executor_service.images.facts import SHA, ImageFacts, StoredImage, StoredLayer, StoreFacts
from executor_service.images.layer_process import answer_of
from executor_service.images.locks import FileLocks, held
from fairbox.errors import ConfigError, shown

if TYPE_CHECKING:
    from executor_service.images.layers.unpack import UnpackAnswer, UnpackTask

MOST_BYTES = 100 << 30
"""Bytes of all layers, unless said otherwise: an archive that expands without end stops there."""
MOST_ENTRIES = 2_000_000
"""Files and folders of a layer: the largest images of data sets have some hundred thousand."""
_LEAST_ID = 8
"""Hexadecimal digits of an id that stand for all of it, if there is one such image."""
_MOST_SNAPSHOTS = 1000
"""Snapshots of sessions that are kept: all are looked at for each new one."""
_OWNERS = (199_999, 29_999)
"""Uids below those of boxes (`sandbox/host.py`): the first that is mapped here."""
_ID = re.compile("sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Room:
    """Room for images that are added."""

    most_bytes: int
    """Bound of all layers; of snapshots, of the layers that snapshots alone have."""
    owner: str | None = None
    """Tenant whose snapshots they are, which displace nothing but snapshots; None: images for all."""


@dataclass(frozen=True, slots=True)
class Removed:
    """Images that went, and the bytes that this gave back."""

    images: tuple[str, ...] = ()
    bytes: int = 0


def open_store(path: str) -> ImageStore:
    """The store at a path that a setting names, to read from it. ConfigError when it can't be used."""
    try:
        return ImageStore(Path(path))
    except OSError as error:
        raise ConfigError(f"image_dir is {path!r}, which can't be used: {error}") from None


class ImageStore:
    """`most_bytes` bounds all layers together; `timeout_s` the writing of one."""

    def __init__(self, path: Path, *, most_bytes: int = MOST_BYTES, timeout_s: float = 600.0) -> None:
        self.path = path
        self.layers = path / "layers"
        """Folder that all layers are below."""
        self._room = Room(most_bytes)
        self.timeout_s = timeout_s
        self._images, self._making = path / "images", path / "making"
        self._locks = FileLocks(path / "locks", timeout_s)
        self._facts = StoreFacts(path)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self._images, self.layers, self._making, path / "locks"):
            folder.mkdir(mode=0o700, exist_ok=True)
        self._sweep()

    def add(self, archive: ImageArchive, *, name: str = "", room: Room | None = None) -> tuple[StoredImage, int]:
        """Takes an image in, under the names of its archive, or as `name` if that is not empty. Returns it, and how
        many of its layers were written for it. `room`: instead of the store's own.

        Raises ImageError, ImageStoreFull, LayerTimeout, and OSError of the disk."""
        names, room = (name,) if name else archive.names, room or self._room
        written = 0
        with contextlib.ExitStack() as stack:
            layers: list[StoredLayer] = []
            for blob in archive.layers:
                layer, new = stack.enter_context(self._layer(blob, layers, room))
                layers.append(layer)
                written += new
            stack.enter_context(self._locks.lock("store"))
            image = StoredImage(archive.config, names, tuple(layers), time.time(), room.owner)
            for other in self.images() if names else ():
                if other.image_id == image.image_id:
                    image = dataclasses.replace(image, names=tuple(dict.fromkeys((*other.names, *names))))
                elif set(other.names) & set(names):  # a name moves to the image that came last
                    left = tuple(each for each in other.names if each not in names)
                    self._write(dataclasses.replace(other, names=left))
            self._write(image)
        return image, written

    def images(self) -> list[StoredImage]:
        """All images, the one that was used last first."""
        return self._facts.images()

    def find(self, text: str, tenant: str | None = None) -> StoredImage:
        """The image of a name, of an id, or of the beginning of one. `tenant`: without the snapshots of others. Raises
        UnknownImage."""
        known = _ID.fullmatch(text) and self._facts.image(text)
        images = [known] if known else self.images()
        if tenant is not None:
            images = [image for image in images if image.owner in (None, tenant)]
        found = [image for image in images if text in image.names]
        if not found and len(start := text.removeprefix(SHA)) >= _LEAST_ID:
            found = [image for image in images if image.image_id.removeprefix(SHA).startswith(start)]
        if len(found) != 1:
            there = ", ".join(name for image in images for name in image.names)
            raise UnknownImage(
                f"there is no image {shown(text)} in {self.path}, but: {there or 'none that has a name'}"
            )
        return found[0]

    @contextlib.contextmanager
    def hold(self, text: str, tenant: str | None = None) -> Iterator[StoredImage]:
        """Keeps an image where it is, for a block. Arguments and errors as for `find`."""
        image = self.find(text, tenant)
        with self._locks.lock(_image_lock(image), shared=True):
            try:
                os.utime(self._file(image))
            except FileNotFoundError:
                raise UnknownImage(f"the image {shown(text)} was removed from {self.path} just now") from None
            yield image

    def folder(self, layer: StoredLayer) -> Path:
        """Files of a layer that is held."""
        return self.layers / layer.chain_id.removeprefix(SHA) / "root"

    def remove(self, text: str) -> Removed:
        """Removes an image, and the layers that no other has. Raises UnknownImage and ImageInUse."""
        with self._locks.lock("store"):
            image = self.find(text)
            if not self._forget(image):
                raise ImageInUse(f"the image {shown(text)} is in use")
            return Removed((image.image_id,), self._remove_unnamed(self.images()))

    def collect(self, most_bytes: int) -> Removed:
        """Removes what no image names, then the images that were used longest ago, until all layers together have at
        most `most_bytes`, as far as none of them is in use."""
        with self._locks.lock("store"):
            return self._collect(Room(most_bytes), 0)[0]

    def alone(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Holds a lock of the store by its name, for a block. TimeoutError if somebody else does."""
        return self._locks.lock(name, wait_s=0.0, last=True)

    def bytes(self) -> int:
        """Bytes of all layers."""
        return sum(layer.bytes for layer in self._facts.layers())

    def _collect(self, room: Room, more: int) -> tuple[Removed, int]:
        """Makes room for `more` bytes, as far as that is possible; what went, and the bytes that are left."""
        images, gone = self.images(), list[str]()
        freed = self._remove_unnamed(images)
        last = [image for image in images if room.owner is None or image.owner is not None]
        while (used := self._used(room, images)) + more > room.most_bytes or _too_many(room, last):
            if not last:
                break
            last.remove(image := _first_to_go(last, room))
            if self._forget(image):
                images.remove(image)
                gone.append(image.image_id)
                freed += self._remove_unnamed(images)
        return Removed(tuple(gone), freed), used

    def _used(self, room: Room, images: Sequence[StoredImage]) -> int:
        """Bytes that count against its bound."""
        if room.owner is None:
            return self.bytes()
        of_all = {layer.chain_id for image in images if image.owner is None for layer in image.layers}
        return sum(layer.bytes for layer in self._facts.layers() if layer.chain_id not in of_all)

    def _forget(self, image: StoredImage) -> bool:
        """Removes the image itself. False if it is in use."""
        try:
            with self._locks.lock(_image_lock(image), wait_s=0.0, last=True):
                self._file(image).unlink(missing_ok=True)
        except TimeoutError:
            return False
        return True

    def _remove_unnamed(self, images: Sequence[StoredImage]) -> int:
        """Removes layers that none of all images names and nobody is about to. Returns their bytes."""
        named = {layer.chain_id for image in images for layer in image.layers}
        freed = 0
        for layer in self._facts.layers():
            if layer.chain_id in named:
                continue
            with (
                contextlib.suppress(TimeoutError),
                self._locks.lock(_layer_lock(layer.chain_id), wait_s=0.0, last=True),
            ):
                with self.new_folder() as away:
                    (self.layers / layer.chain_id.removeprefix(SHA)).rename(away / "layer")
                freed += layer.bytes
        return freed

    @contextlib.contextmanager
    def _layer(self, blob: LayerBlob, below: Sequence[StoredLayer], room: Room) -> Iterator[tuple[StoredLayer, bool]]:
        """Holds a layer until an image names it, and writes it if it is not there; whether it did."""
        name, until, new = _layer_lock(blob.chain_id), time.monotonic() + self.timeout_s, False
        while True:
            with self._locks.lock(name, shared=True, wait_s=until - time.monotonic()):
                if (layer := self._facts.layer(blob.chain_id)) is not None:
                    yield layer, new
                    return
            with contextlib.suppress(TimeoutError), self._locks.lock(name, wait_s=0.0):
                if self._facts.layer(blob.chain_id) is None:
                    self._write_layer(blob, below, room)
                    new = True

    def _write_layer(self, blob: LayerBlob, below: Sequence[StoredLayer], room: Room) -> None:
        with self.new_folder() as folder:
            root = folder / "layer" / "root"
            root.mkdir(mode=0o755, parents=True)
            answer = self._unpack(blob, below, root, room.most_bytes)
            if "error" in answer:
                if answer["ours"]:
                    raise OSError(f"layer {blob.diff_id} {answer['error']}")
                raise ImageError(f"{blob.region.path}: layer {blob.diff_id} {answer['error']}")
            layer = StoredLayer(blob.chain_id, answer["bytes"], answer["entries"], answer["left_out"])
            facts = folder / "layer" / "facts.json"
            _write_through(facts, dataclasses.asdict(layer))
            with self._locks.lock("store"):
                _, there = self._collect(room, layer.bytes)
                if there + layer.bytes > room.most_bytes:
                    raise ImageStoreFull(
                        f"layer {blob.diff_id} needs {layer.bytes} bytes; those in use have {there} of"
                        f" {room.most_bytes}"
                    )
                (folder / "layer").rename(self.layers / blob.chain_id.removeprefix(SHA))

    def _unpack(self, blob: LayerBlob, below: Sequence[StoredLayer], root: Path, most_bytes: int) -> UnpackAnswer:
        task: UnpackTask = {
            "blob": blob.region.path,
            "offset": blob.region.offset,
            "size": blob.region.size,
            "compression": blob.compression,
            "digest": blob.digest,
            "diff_id": blob.diff_id,
            "folder": str(root),
            "below": [str(self.folder(layer)) for layer in reversed(below)],
            "most_bytes": most_bytes,
            "most_entries": MOST_ENTRIES,
            "cpu_s": int(self.timeout_s) + 1,
            "owner": _owner(),
        }
        name = f"layer {blob.diff_id}"
        answer: UnpackAnswer = answer_of("unpack", task, name, self.timeout_s)
        return answer

    @contextlib.contextmanager
    def new_folder(self) -> Iterator[Path]:
        """A folder that goes, with all that is left in it."""
        name = secrets.token_hex(8)
        with held(self._making / f"{name}.lock", last=True):
            folder = self._making / name
            folder.mkdir(mode=0o700)
            try:
                yield folder
            finally:
                remove_tree(folder)

    def _sweep(self) -> None:
        """Removes what others have left in `making`."""
        for path in self._making.iterdir():
            lock = path.with_suffix(".lock")
            with contextlib.suppress(TimeoutError), held(lock, last=True):
                remove_tree(path.with_suffix(""))

    def _file(self, image: StoredImage) -> Path:
        return self._images / f"{image.image_id.removeprefix(SHA)}.json"

    def _write(self, image: StoredImage) -> None:
        facts = ImageFacts(image.config, image.names, tuple(layer.chain_id for layer in image.layers), image.owner)
        with self.new_folder() as folder:
            _write_through(folder / "image", dataclasses.asdict(facts))
            (folder / "image").rename(self._file(image))


def _first_to_go(images: Sequence[StoredImage], room: Room) -> StoredImage:
    """The image that was used longest ago; of snapshots, that of the tenant whose take the most, so that nobody has to
    give way to who keeps more. `images`: the one that was used last first."""
    if room.owner is None:
        return images[-1]
    bytes_of = Counter[str | None]()
    for image in images:
        bytes_of[image.owner] += image.layers[-1].bytes
    most = max(bytes_of.values())
    return next(image for image in reversed(images) if bytes_of[image.owner] == most)


def _too_many(room: Room, images: Sequence[StoredImage]) -> bool:
    return room.owner is not None and sum(image.owner is not None for image in images) >= _MOST_SNAPSHOTS


def _owner() -> int:
    """Uid of images' files: our own, or, for root, one that nobody has, and that programs of images get."""
    if os.geteuid():
        return os.geteuid()
    ranges = []
    for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines():
        first, _, count = (int(word) for word in line.split())
        ranges.append(range(first, first + count))
    return next((uid for uid in _OWNERS if any(uid in mapped for mapped in ranges)), 0)


def _image_lock(image: StoredImage) -> str:
    return f"image-{image.image_id.removeprefix(SHA)}"


def _layer_lock(chain_id: str) -> str:
    return f"layer-{chain_id.removeprefix(SHA)}"


def _write_through(path: Path, document: object) -> None:
    """Writes JSON so that a rename afterwards survives a power failure."""
    with path.open("x", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())


def remove_tree(path: Path) -> None:
    """Removes a folder whose modes may forbid it."""

    def allow(function: Callable[[str], None], name: str, _: object) -> None:
        there = Path(name)
        there.parent.chmod(0o700)
        if not there.is_symlink():
            there.chmod(0o700)
        function(name)

    if path.is_dir():
        if sys.version_info >= (3, 12):
            shutil.rmtree(path, onexc=allow)
        else:
            shutil.rmtree(path, onerror=allow)
    else:
        path.unlink(missing_ok=True)
