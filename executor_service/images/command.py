"""`fairbox image`: keeps images for the executors that have the same folder as their `image_dir`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from executor_service.images.archive import open_archive
from executor_service.images.facts import StoredImage
from executor_service.images.store import MOST_BYTES, ImageStore, Removed
from executor_service.images.transports import fetch, is_reference, name_of
from fairbox.byte_count import byte_count
from fairbox.errors import EXIT_FAILURE, ConfigError, FairboxError

_DIR = "EXECUTOR_IMAGE_DIR"
"""Variable that an executor takes the setting from."""


def main(argv: Sequence[str]) -> int:
    """Entry point; 0, or another code with a sentence on stderr."""
    options = _parser().parse_args(argv)
    try:
        if not options.dir:
            raise ConfigError(f"--dir is missing, must be the folder that executors have as image_dir; or set {_DIR}")
        lines = _do(options)
    except FairboxError as error:
        print(f"fairbox image: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"fairbox image: {options.dir}: {error}", file=sys.stderr)
        return EXIT_FAILURE
    print("\n".join(lines))
    return 0


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--dir", default=os.environ.get(_DIR, ""), help=f"the folder; default: {_DIR}")
    parser = argparse.ArgumentParser(prog="fairbox image", description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    add = verbs.add_parser(
        "add", parents=[common], help="take one in: an OCI layout, what `docker save` writes, or from a registry"
    )
    add.add_argument(
        "source", help="folder, or tar file that is not compressed; docker://NAME: from a registry, with skopeo"
    )
    add.add_argument("--from", dest="chosen", default="", help="its name in the archive, if that has several")
    add.add_argument("--name", default="", help="name for it here; default: those of the archive")
    add.add_argument(
        "--most-bytes", type=byte_count, default=MOST_BYTES, help="remove others until all have at most this; 100g"
    )
    verbs.add_parser("list", parents=[common], help="show all, the one that was used last first")
    remove = verbs.add_parser("rm", parents=[common], help="remove one, and the layers that no other has")
    remove.add_argument("image", help="name, or id")
    collect = verbs.add_parser("gc", parents=[common], help="remove what no image has, and images used longest ago")
    collect.add_argument("--most-bytes", type=byte_count, default=1 << 62, help="until all have at most this: 20g")
    return parser


def _do(options: argparse.Namespace) -> list[str]:
    store = ImageStore(Path(options.dir), most_bytes=getattr(options, "most_bytes", MOST_BYTES))

    def line(image: StoredImage) -> str:
        names = " ".join(image.names) or "-"
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(image.used_at))
        return f"{image.image_id[7:19]}  {image.bytes / 2**20:9.1f} MiB  {len(image.layers):3d} layers  {used}  {names}"

    def removed(what: Removed) -> list[str]:
        return [*(f"removed {image_id[7:19]}" for image_id in what.images), f"freed {what.bytes / 2**20:.1f} MiB"]

    match options.verb:
        case "add":
            image, written = _added(store, options)
            left = [f"{count} {kind}" for layer in image.layers for kind, count in layer.left_out.items()]
            said = [f"left out: {', '.join(left)}"] if left else []
            return [line(image), f"{written} of its layers were not here yet", *said]
        case "list":
            return [line(image) for image in store.images()] or [f"no image in {store.path}"]
        case "rm":
            return removed(store.remove(options.image))
        case _:
            return removed(store.collect(options.most_bytes))


def _added(store: ImageStore, options: argparse.Namespace) -> tuple[StoredImage, int]:
    if not is_reference(options.source):
        return store.add(open_archive(Path(options.source), options.chosen), name=options.name)
    with store.new_folder() as folder:
        archive = open_archive(asyncio.run(fetch(options.source, folder)))
        return store.add(archive, name=options.name or name_of(options.source))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
