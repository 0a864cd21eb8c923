"""Archives of images for tests: layers of entries that a test names, as an OCI layout or as `docker save` writes."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@functools.lru_cache(maxsize=8)
def _gzipped(data: bytes) -> bytes:
    """Quickly, and once for all images that have the layer."""
    return gzip.compress(data, 1)


OCI = "application/vnd.oci.image."
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    "+gzip": _gzipped,
    "+zstd": lambda data: subprocess.run(["zstd", "-q"], input=data, capture_output=True, check=True).stdout,
}
"""Ending of a layer's media type -> what compresses it."""


_LEFT_OUT = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "ensurepip",
    "lib2to3",
    "tkinter",
    "turtledemo",
}
"""Parts of the standard library that no program of a test would import."""


@dataclass(frozen=True)
class Entry:
    """One entry of a layer."""

    name: str
    data: bytes = b""
    kind: bytes = tarfile.REGTYPE
    link: str = ""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: float = 1_700_000_000
    attributes: tuple[tuple[str, str], ...] = ()


def folder(name: str, mode: int = 0o755, **more: Any) -> Entry:
    return Entry(name, kind=tarfile.DIRTYPE, mode=mode, **more)


def symlink(name: str, to: str) -> Entry:
    return Entry(name, kind=tarfile.SYMTYPE, link=to)


def hard_link(name: str, to: str) -> Entry:
    return Entry(name, kind=tarfile.LNKTYPE, link=to)


def layer(*entries: Entry, form: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for entry in entries:
            member = tarfile.TarInfo(entry.name)
            member.type, member.linkname, member.mode = entry.kind, entry.link, entry.mode
            member.uid, member.gid, member.mtime, member.size = entry.uid, entry.gid, entry.mtime, len(entry.data)
            member.pax_headers = {f"SCHILY.xattr.{name}": value for name, value in entry.attributes}
            archive.addfile(member, io.BytesIO(entry.data))
    return out.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def host_layer(*programs: str) -> bytes:
    """A small root file system of this machine: programs by name, with the libraries that they need."""
    files: dict[str, bytes] = {}
    for program in programs:
        path = shutil.which(program, path="/usr/bin:/bin:/usr/sbin:/sbin")
        if path is None:
            pytest.skip(f"there is no {program} on this machine")
        files[f"usr/bin/{program}"] = Path(path).read_bytes()
        linked = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+) \(0x", linked):
            files[f"usr/{library.lstrip('/').removeprefix('usr/')}"] = Path(library).read_bytes()
    return layer(
        *(folder(name) for name in ("usr", "usr/bin", "usr/lib", "usr/lib64", "usr/sbin", "etc")),
        *(symlink(name, f"usr/{name}") for name in ("bin", "lib", "lib64", "sbin")),
        folder("tmp", 0o1777),
        folder("root", 0o700),
        Entry("etc/passwd", b"root:x:0:0:root:/root:/bin/bash\n"),
        *(Entry(name, data, mode=0o755) for name, data in files.items()),
    )


def python_layer() -> bytes:
    """The interpreter that the tests have, with the standard library alone, in /usr/local."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    program = Path(os.path.realpath(sys.executable))
    library = Path(sysconfig.get_paths()["stdlib"])
    files = {"usr/local/bin/python3": program}
    for path in library.rglob("*"):
        place = path.relative_to(library)
        if not _LEFT_OUT & set(place.parts) and path.is_file():
            files[f"usr/local/lib/{version}/{place}"] = path
    needed = [str(path) for path in (program, *library.glob("lib-dynload/*.so"))]
    linked = subprocess.run(["ldd", *needed], capture_output=True, text=True, check=False).stdout
    for each in re.findall(r"(/\S+) \(0x", linked):
        ours = each.startswith(("/usr/", "/lib"))
        files[f"usr/{each.removeprefix('/usr').lstrip('/')}" if ours else f"usr/lib/{Path(each).name}"] = Path(each)
    return layer(
        *(
            Entry(name, path.read_bytes(), mode=0o755, mtime=int(path.stat().st_mtime))
            for name, path in sorted(files.items())
        )
    )


def config_of(layers: Sequence[bytes], **run: Any) -> bytes:
    """An image's configuration; `run` is its part `config`."""
    diff_ids = [digest(each) for each in layers]
    document = {
        "os": "linux",
        "config": run,
        "rootfs": {"type": "layers"} | {"diff_ids": diff_ids},
    }
    return json.dumps(document).encode()


def layout_files(layers: Sequence[bytes], *, pack: str = "+gzip", name: str = "", **run: Any) -> dict[str, bytes]:
    """Files of an OCI layout with one image."""
    files: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}

    def blob(data: bytes, kind: str) -> dict[str, Any]:
        files[f"blobs/sha256/{digest(data)[7:]}"] = data
        return {"mediaType": OCI + kind, "digest": digest(data), "size": len(data)}

    config = blob(config_of(layers, **run), "config.v1+json")
    blobs = [blob(PACK[pack](each), f"layer.v1.tar{pack}") for each in layers]
    manifest = blob(json.dumps({"schemaVersion": 2, "config": config, "layers": blobs}).encode(), "manifest.v1+json")
    if name:
        manifest["annotations"] = {"org.opencontainers.image.ref.name": name}
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode()
    return files


def saved_files(layers: Sequence[bytes], *names: str, **run: Any) -> dict[str, bytes]:
    """Files of what `docker save` writes."""
    config = config_of(layers, **run)
    files = {f"{digest(config)[7:]}.json": config}
    paths = []
    for each in layers:
        paths.append(f"{digest(each)[7:]}/layer.tar")
        files[paths[-1]] = each
    saved = {"Config": f"{digest(config)[7:]}.json", "RepoTags": list(names), "Layers": paths}
    files["manifest.json"] = json.dumps([saved]).encode()
    return files


def write_folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    path.write_bytes(layer(*(Entry(name, data) for name, data in files.items())))
    return path
