"""Images are read from what people have, unpacked once, shared, and removed only when nobody needs them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from executor_service.images import layer_process
from executor_service.images.archive import open_archive
from executor_service.images.errors import ImageError, ImageInUse, ImageStoreFull, UnknownImage
from executor_service.images.store import ImageStore
from tests.executor.images.archives import (
    PACK,
    Entry,
    digest,
    folder,
    hard_link,
    layer,
    layout_files,
    saved_files,
    symlink,
    write_folder,
    write_tar,
)
from tests.executor.servers import ROOT

BASE = layer(
    folder("usr"),
    folder("usr/bin", 0o751),
    symlink("bin", "usr/bin"),
    Entry("usr/bin/tool", b"#!/bin/sh\n", mode=0o755),
    hard_link("usr/bin/same", "usr/bin/tool"),
    Entry("etc/conf", b"old\n"),
    Entry("etc/gone", b"x"),
)


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store", timeout_s=120)


def added(store: ImageStore, tmp_path: Path, *layers: bytes, name: str = "image:1", **more: Any) -> list[Path]:
    """Folders of an image's layers, the lowest first."""
    made = tmp_path / f"archive-{time.monotonic_ns()}"
    image, _ = store.add(open_archive(write_folder(made, layout_files(layers, name=name, **more))))
    return [store.folder(each) for each in image.layers]


@pytest.mark.parametrize("pack", PACK)
def test_an_image_is_what_its_archive_says(store: ImageStore, tmp_path: Path, pack: str) -> None:
    if pack == "+zstd" and shutil.which("zstd") is None:
        pytest.skip("zstd is not installed")
    [base] = added(store, tmp_path, BASE, pack=pack, Env=["PATH=/x", "A=b=c"], WorkingDir="/srv")
    facts = (base / "usr/bin/tool").stat()
    assert (base / "bin/tool").read_bytes() == b"#!/bin/sh\n"
    assert (stat.S_IMODE(facts.st_mode), facts.st_mtime, facts.st_nlink) == (0o755, 1_700_000_000, 2)
    assert stat.S_IMODE((base / "usr/bin").stat().st_mode) == 0o751
    config = store.find("image:1").config
    assert (config.env, config.working_dir) == ((("PATH", "/x"), ("A", "b=c")), "/srv")


def test_the_usual_kinds_of_archive_are_read(store: ImageStore, tmp_path: Path) -> None:
    layout = write_tar(tmp_path / "layout.tar", layout_files([BASE], name="a"))
    saved = write_tar(tmp_path / "saved.tar", saved_files([BASE], "b:1", "b:2"))
    assert store.add(open_archive(layout))[0].names == ("a",)
    assert store.add(open_archive(saved, "b:2"))[0].names == ("a", "b:1", "b:2")  # it is the same image
    assert store.find("b:1") == store.find(digest_of_config(saved))


def digest_of_config(saved: Path) -> str:
    return open_archive(saved, "b:1").config.image_id


def test_images_share_layers(store: ImageStore, tmp_path: Path) -> None:
    first = write_folder(tmp_path / "first", layout_files([BASE, layer(Entry("a", b"1"))], name="first"))
    second = write_folder(tmp_path / "second", layout_files([BASE, layer(Entry("a", b"2"))], name="second"))
    assert store.add(open_archive(first))[1] == 2
    before = store.bytes()
    assert store.add(open_archive(second))[1] == 1
    assert store.bytes() - before <= 8192
    freed = store.remove("first")
    assert freed.bytes == store.find("second").layers[1].bytes  # the base is still needed
    assert store.find("second").bytes == store.bytes()


def test_what_a_layer_hides_is_hidden(store: ImageStore, tmp_path: Path) -> None:
    top = layer(Entry("etc/.wh.gone"), folder("usr/bin"), Entry("usr/bin/.wh..wh..opq"), Entry("usr/bin/new", b""))
    _, layer_of_it = added(store, tmp_path, BASE, top)
    gone = (layer_of_it / "etc/gone").lstat()
    assert stat.S_ISCHR(gone.st_mode)
    assert gone.st_rdev == 0
    assert os.getxattr(layer_of_it / "usr/bin", "user.overlay.opaque") == b"y"


def test_links_of_lower_layers_lead_where_they_do_in_the_image(store: ImageStore, tmp_path: Path) -> None:
    top = layer(Entry("bin/more", b"m"), Entry("bin/.wh.tool"))
    _, upper = added(store, tmp_path, BASE, top)
    assert not (upper / "bin").exists()
    assert (upper / "usr/bin/more").read_bytes() == b"m"
    assert stat.S_ISCHR((upper / "usr/bin/tool").lstat().st_mode)
    assert stat.S_IMODE((upper / "usr/bin").stat().st_mode) == 0o751  # of the layer below, which nobody has changed


def test_a_folder_that_is_hidden_and_made_again_has_nothing_of_the_one_below(store: ImageStore, tmp_path: Path) -> None:
    for entry in (folder("etc"), Entry("etc/new", b"")):  # named, or only by what is in it
        _, upper = added(store, tmp_path, BASE, layer(Entry(".wh.etc"), entry))
        assert os.getxattr(upper / "etc", "user.overlay.opaque") == b"y"


def test_a_folder_may_be_replaced(store: ImageStore, tmp_path: Path) -> None:
    again = layer(folder("a"), folder("a/b", 0o700), symlink("a", "c"), folder("c"), folder("ab", 0o711))
    [only] = added(store, tmp_path, again)
    assert (only / "a").is_symlink()
    assert stat.S_IMODE((only / "ab").stat().st_mode) == 0o711


def test_an_image_that_cannot_run_here_is_refused(tmp_path: Path) -> None:
    large = [f"A{n}={'x' * 60_000}" for n in range(3)]
    with pytest.raises(ImageError, match="environment has more than"):
        open_archive(write_folder(tmp_path / "env", layout_files([BASE], Env=large)))
    files = saved_files([BASE], "x")
    [name] = [name for name in files if "/" not in name and name != "manifest.json"]
    other = files | {name: json.dumps(json.loads(files[name]) | {"architecture": "m68k"}).encode()}
    with pytest.raises(ImageError, match="is for 'm68k', and this machine is"):
        open_archive(write_folder(tmp_path / "other", other))


def test_what_gives_rights_is_left_out_and_counted(store: ImageStore, tmp_path: Path) -> None:
    attributes = (("user.kept", "a"), ("security.capability", "b"), ("user.overlay.redirect", "/etc"))
    entries = (Entry("dev/null", kind=b"3"), Entry("file", b"", attributes=attributes))
    [only] = added(store, tmp_path, layer(*entries))
    [stored] = store.find("image:1").layers
    assert stored.left_out == {"devices": 1, "attributes": 2}
    assert not (only / "dev/null").exists()
    there = os.listxattr(only / "file")
    assert [name for name in there if not name.startswith("system.")] == ["user.kept"]  # NFS has some of its own


def test_long_names_and_late_entries_are_kept(store: ImageStore, tmp_path: Path) -> None:
    long = "/".join(["n" * 200] * 10)
    entries = (
        Entry(long, b"1"),
        Entry("twice", b"1"),
        Entry("twice", b"2"),
        folder("closed", 0o555),
        Entry("closed/x"),
    )
    [only] = added(store, tmp_path, layer(*entries))
    assert (only / long).read_bytes() == b"1"
    assert (only / "twice").read_bytes() == b"2"
    assert stat.S_IMODE((only / "closed").stat().st_mode) == 0o555
    store.remove("image:1")
    assert not list(store.layers.iterdir())


LIE = layout_files([BASE])
DAMAGED = {
    name: data[:-1] + b"x" if name.startswith("blobs") and data[:2] == b"\x1f\x8b" else data
    for name, data in LIE.items()
}
HOSTILE = {
    "leads out": layer(Entry("../../etc/evil", b"x")),
    "leads out by a link": layer(symlink("out", "/../../../tmp"), Entry("out/evil-fairbox", b"x")),
    "links out": layer(hard_link("shadow", "../../../etc/shadow")),
    "links to nothing": layer(hard_link("a", "b")),
    "hides a folder's folder": layer(Entry(".wh...")),
    "is no archive": b"nothing" * 1000,
    "has a long name": layer(Entry("z" * 300, b"")),
    "has a loop": layer(symlink("a", "b"), symlink("b", "a"), Entry("a/x", b"")),
    "is too deep": layer(Entry("d/" * 300 + "x", b"")),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_layers_are_refused_and_leave_nothing(store: ImageStore, tmp_path: Path, what: str) -> None:
    if what == "leads out by a link":
        [only] = added(store, tmp_path, HOSTILE[what])
        assert (only / "tmp/evil-fairbox").read_bytes() == b"x"  # as in the image: its root has nothing above
        assert not Path("/tmp/evil-fairbox").exists()
        return
    with pytest.raises(ImageError, match="layer sha256:"):
        added(store, tmp_path, HOSTILE[what])
    assert not list(store.layers.iterdir())
    assert not list((store.path / "making").iterdir())
    assert not store.images()


def test_a_layer_cannot_bring_modules_of_ours(store: ImageStore, tmp_path: Path) -> None:
    """The process that writes it has the layer as its root: an import from there would be the layer's code."""
    folder_of_it = Path(os.__file__).parent
    evil = [
        Entry(f"{folder_of_it}/{name}.py", b"raise SystemExit(77)")
        for name in ("bz2", "lzma", "copy", "encodings/idna")
    ]
    [only] = added(store, tmp_path, layer(*evil, Entry("file", b"")))
    assert (only / str(folder_of_it).lstrip("/") / "copy.py").exists()


def test_a_bomb_is_stopped_at_the_bound(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "store", most_bytes=1 << 20, timeout_s=120)
    for large in (layer(Entry("zeros", bytes(8 << 20))), layer(*(Entry(f"f{n}", b"x") for n in range(300)))):
        with pytest.raises(ImageError, match=r"more than \d+ bytes"):
            added(store, tmp_path, large)
    assert store.bytes() == 0


def test_damaged_archives_are_named(tmp_path: Path, store: ImageStore) -> None:
    with pytest.raises(ImageError, match="has 0 layers"):
        open_archive(write_folder(tmp_path / "empty", layout_files([])))
    with pytest.raises(ImageError, match=r"is damaged|ends early"):
        store.add(open_archive(write_folder(tmp_path / "damaged", DAMAGED)))
    wrong = saved_files([BASE], "x")
    lying = {name: data + bytes(512) if name.endswith("layer.tar") else data for name, data in wrong.items()}
    with pytest.raises(ImageError, match="its diff_id is"):
        store.add(open_archive(write_tar(tmp_path / "lying.tar", lying)))
    for text in ("", "[]", "{", '{"manifests": [{"digest": "sha256:../../x", "size": 1}]}', '{"manifests": []}'):
        broken = LIE | {"index.json": text.encode()}
        with pytest.raises(ImageError, match=str(tmp_path)):
            open_archive(write_folder(tmp_path / f"broken-{len(text)}", broken))


def test_several_images_have_to_be_told_apart(tmp_path: Path) -> None:
    one, two = layout_files([BASE], name="one"), layout_files([layer(Entry("x"))], name="two")
    index = [json.loads(each["index.json"])["manifests"][0] for each in (one, two)]
    both = write_folder(tmp_path / "both", one | two | {"index.json": json.dumps({"manifests": index}).encode()})
    with pytest.raises(ImageError, match="several images: say which of one, two"):
        open_archive(both)
    with pytest.raises(ImageError, match="has no image 'three', but one, two"):
        open_archive(both, "three")
    assert open_archive(both, "two").names == ("two",)


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "store", most_bytes=1 << 20, timeout_s=120)
    half = [layer(Entry(name, bytes([number]) * (400 << 10))) for number, name in enumerate("abc")]
    added(store, tmp_path, half[0], name="a")
    with store.hold("a"):
        added(store, tmp_path, half[1], name="b")
        added(store, tmp_path, half[2], name="c")  # the unused one goes for it
        assert [image.names for image in store.images()] == [("c",), ("a",)]
        with pytest.raises(ImageInUse), store.hold("c"):
            store.remove("a")
        with store.hold("c"), pytest.raises(ImageStoreFull):
            added(store, tmp_path, half[1], name="b")
    store.remove("a")
    with pytest.raises(UnknownImage, match="there is no image 'a'"), store.hold("a"):
        pass


def test_files_are_read_once_and_seen_when_others_change_them(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, reads, read = ImageStore(store.path), list[Path](), Path.read_bytes

    def counted(path: Path) -> bytes:
        reads.append(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    for number in range(3):
        added(store, tmp_path, BASE, layer(Entry(f"file-{number}", b"x")), name=f"image:{number}")
    assert other.images() == store.images()
    reads.clear()
    assert {image.names for image in store.images()} == {(f"image:{number}",) for number in range(3)}
    image = store.find("image:1")
    assert (store.find(image.image_id), store.bytes(), reads) == (image, other.bytes(), [])
    added(other, tmp_path, BASE, layer(Entry("file-1", b"x")), name="image:0")
    assert {names for image in store.images() for names in image.names} == {"image:0", "image:1", "image:2"}
    assert set(store.find("image:1").names) == {"image:0", "image:1"}
    other.remove("image:2")
    assert not any("image:2" in image.names for image in store.images())
    shutil.rmtree(store.layers / image.layers[0].chain_id.removeprefix("sha256:"))
    assert store.images() == other.images() == []


def test_names_move_to_the_image_that_came_last(store: ImageStore, tmp_path: Path) -> None:
    added(store, tmp_path, BASE, name="latest")
    before = store.find("latest").image_id
    added(store, tmp_path, layer(Entry("x", b"")), name="latest")
    assert store.find("latest").image_id != before
    assert store.find(before[7:19]).names == ()


ADD = """
import sys
from pathlib import Path
from executor_service.images import layer_process
from executor_service.images.archive import open_archive
from executor_service.images.store import ImageStore
print(ImageStore(Path(sys.argv[1]), timeout_s=120).add(open_archive(Path(sys.argv[2])))[1])
"""


def test_a_killed_process_leaves_nothing_that_matters(store: ImageStore, tmp_path: Path) -> None:
    """Killed at many moments; whoever comes next finds a store that is whole, and goes on where it was."""
    layers = [layer(*(Entry(f"{n}-{m}", os.urandom(2000)) for m in range(200))) for n in range(4)]
    made = write_folder(tmp_path / "archive", layout_files(layers, name="image:1"))
    command = [sys.executable, "-c", ADD, str(store.path), str(made)]
    for moment in range(8):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            time.sleep(0.2 + moment * 0.08)
            process.send_signal(signal.SIGKILL)
    again = ImageStore(store.path, timeout_s=120)
    image, _ = again.add(open_archive(made))
    assert [len(list(again.folder(each).iterdir())) for each in image.layers] == [200] * 4
    assert not list((store.path / "making").iterdir())


@pytest.mark.parametrize("verb", ["unpack", "pack"])
def test_a_process_whose_parent_was_killed_before_it_began_does_nothing(verb: str) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(layer_process._PROGRAM), verb, "1"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def test_one_layer_is_written_once_by_many(store: ImageStore, tmp_path: Path) -> None:
    layers = [layer(*(Entry(f"{n}-{m}", os.urandom(2000)) for m in range(200))) for n in range(3)]
    made = write_folder(tmp_path / "archive", layout_files(layers, name="image:1"))
    command = [sys.executable, "-c", ADD, str(store.path), str(made)]
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    written = [int(process.communicate(timeout=120)[0]) for process in processes]
    assert sum(written) == 3


def test_a_blob_is_checked_by_both_digests(tmp_path: Path, store: ImageStore) -> None:
    files = layout_files([BASE], pack="")
    name = f"blobs/sha256/{digest(BASE)[7:]}"
    swapped = files | {name: layer(Entry("evil", b"x" * 900)).ljust(len(files[name]), b"\0")[: len(files[name])]}
    with pytest.raises(ImageError, match="is damaged"):
        store.add(open_archive(write_folder(tmp_path / "swapped", swapped)))
