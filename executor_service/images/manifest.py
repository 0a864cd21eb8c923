"""Documents of images in the formats of OCI and Docker, parsed into a declared shape. Pure.

Invariants: nothing is taken from a document but what is declared here; every list and text has a bound; a digest is of
SHA-256 and in lower case, so that it can be a file's name.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from executor_service.images.errors import ImageError

MOST_LAYERS = 127
"""As many as Docker builds; the names of twice as many would not fit into the options of one mount."""
MOST_DOCUMENT_BYTES = 4 << 20
"""As much as registries take."""
_MOST_MANIFESTS = 1000
_MOST_ENV = 128 << 10
"""Characters of an environment, which goes into the order of each run."""
_OCI = "application/vnd.oci.image."
_DOCKER = "application/vnd.docker."
_INDEXES = (f"{_OCI}index.v1+json", f"{_DOCKER}distribution.manifest.list.v2+json")

Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
_Text = Annotated[str, StringConstraints(max_length=64 << 10, pattern=r"^[^\x00]*$")]
_Texts = Annotated[list[_Text], Field(max_length=10_000)]
_Document = TypeVar("_Document")


class Compression(StrEnum):
    """Format around a layer's tar archive."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Platform(_Model):
    """Machine that an image is for."""

    architecture: _Text = ""
    os: _Text = ""


class Descriptor(_Model):
    """Reference to a blob by its digest."""

    media_type: _Text = Field("", alias="mediaType")
    digest: Digest
    size: int = Field(ge=0)
    platform: Platform | None = None
    annotations: dict[_Text, _Text] | None = Field(None, max_length=1000)

    @property
    def name(self) -> str:
        """Name that the archive gives the image; empty if none."""
        return (self.annotations or {}).get("org.opencontainers.image.ref.name", "")

    @property
    def is_index(self) -> bool:
        """Says whether the blob lists manifests, one for each platform."""
        return self.media_type in _INDEXES


class Index(_Model):
    """OCI's index.json, or an index of platforms."""

    manifests: list[Descriptor] = Field(max_length=_MOST_MANIFESTS)


class Manifest(_Model):
    """Blobs of one image: its configuration, and its layers from the lowest to the highest."""

    config: Descriptor
    layers: list[Descriptor] = Field(max_length=MOST_LAYERS)


class SavedImage(_Model):
    """One image in manifest.json of `docker save`."""

    config: _Text = Field(alias="Config")
    names: _Texts | None = Field(None, alias="RepoTags")
    layers: list[_Text] = Field(alias="Layers", max_length=MOST_LAYERS)


SavedImages = Annotated[list[SavedImage], Field(max_length=_MOST_MANIFESTS)]
"""manifest.json of `docker save`."""


class _Run(_Model):
    env: _Texts | None = Field(None, alias="Env")
    working_dir: _Text | None = Field(None, alias="WorkingDir")
    user: _Text | None = Field(None, alias="User")


class _RootFs(_Model):
    type: Literal["layers"] = "layers"
    diff_ids: list[Digest] = Field(max_length=MOST_LAYERS)


class _Config(_Model):
    architecture: _Text = ""
    os: _Text = ""
    config: _Run | None = None
    rootfs: _RootFs


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """Facts about an image that its programs depend on."""

    image_id: str
    """Digest of the configuration, which names the layers: two archives of one image have the same."""
    architecture: str
    """In Go's words: amd64, arm64; empty if unknown."""
    diff_ids: tuple[str, ...]
    """Digest of each layer's tar archive, the lowest first."""
    env: tuple[tuple[str, str], ...] = ()
    working_dir: str = "/"
    user: str = ""
    """User that its programs run as, `user[:group]`; empty: root."""


def parse_config(data: bytes, where: str) -> ImageConfig:
    """Reads an image's configuration. Raises ImageError."""
    found = parse_document(_Config, data, where)
    if found.os not in ("", "linux"):
        raise ImageError(f"{where}: the image is for {found.os!r}, must be for linux")
    run = found.config or _Run()  # type: ignore[call-arg]
    env = tuple((name, value) for name, _, value in (each.partition("=") for each in run.env or ()) if name)
    folder = run.working_dir or "/"
    if not folder.startswith("/"):
        folder = f"/{folder}"
    if sum(len(name) + len(value) for name, value in env) > _MOST_ENV:
        raise ImageError(f"{where}: its environment has more than {_MOST_ENV} characters")
    return ImageConfig(digest_of(data), found.architecture, tuple(found.rootfs.diff_ids), env, folder, run.user or "")


def parse_document(kind: type[_Document], data: bytes, where: str) -> _Document:
    """Reads JSON as `kind`. Raises ImageError with the field that does not fit."""
    try:
        return TypeAdapter(kind).validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise ImageError(f"{where}: {field or 'the document'}: {first['msg']}") from None


def compression_of(media_type: str, head: bytes) -> Compression:
    """Compression of a layer, by its first bytes: media types are wrong at times. `media_type` decides for none."""
    if head[:2] == b"\x1f\x8b":
        return Compression.GZIP
    if head[:4] == b"\x28\xb5\x2f\xfd" or media_type.endswith("+zstd"):
        return Compression.ZSTD
    return Compression.NONE


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
