"""PrepareImage: what may be fetched, that it is fetched once, and what becomes of it when something fails."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor_service import ExecutorClient, ExecutorUnavailable, InvalidRequest, Outcome
from executor_service.images.transports import in_full
from tests.executor.images.archives import host_layer, layout_files
from tests.executor.images.registry import Registry
from tests.executor.levels import LEVELS
from tests.executor.servers import Server, running

pytestmark = [
    pytest.mark.skipif(shutil.which("skopeo") is None, reason="there is no skopeo"),
    pytest.mark.skipif(all(level.landlock for level in LEVELS), reason="nothing is mounted at this level"),
]
BLOBS = 2
"""Blobs of the image: its configuration and its layer."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def registry(home: Path) -> Iterator[Registry]:
    with Registry(layout_files([host_layer("bash", "cat")], WorkingDir="/etc")) as made:
        made.trusted_in(home)
        yield made


@pytest.fixture(scope="module")
def other(home: Path) -> Iterator[Registry]:
    """Another one, which may be kept from answering."""
    with Registry(layout_files([host_layer("cat")])) as made:
        made.trusted_in(home)
        yield made


@contextlib.contextmanager
def fetching(home: Path, store: Path, *registries: Registry) -> Iterator[Server]:
    """A server that may fetch from them."""
    remotes = [f"docker://{each.address}/own/" for each in registries]
    with running(f"image_dir={store}", f"remotes={remotes}", env={"HOME": str(home)}) as started:
        yield started


@pytest.fixture(scope="module")
def server(home: Path, registry: Registry, other: Registry) -> Iterator[Server]:
    with fetching(home, home / "store", registry, other) as started:
        yield started


async def test_an_image_is_fetched_once_and_programs_run_in_it(server: Server, registry: Registry, home: Path) -> None:
    name = f"{registry.address}/own/image:1"
    async with ExecutorClient(server.target) as client:
        several = await asyncio.gather(*(client.prepare_image(f"docker://{name}") for _ in range(5)))
        assert registry.pulls == BLOBS
        for (image,) in several:
            assert (image.name, image.cached) == (name, False)
        (again,) = await client.prepare_image(f"docker://{name}")
        assert (again.image, again.cached) == (several[0][0].image, True)
        for called in (name, again.image):
            result = await client.execute("pwd; cat passwd", language="bash", image=called)
            assert result.outcome is Outcome.FINISHED
            assert result.stdout.text.startswith("/etc\nroot:")
        with fetching(home, home / "store", registry) as beside:  # with the same store
            async with ExecutorClient(beside.target) as neighbour:
                (image,) = await neighbour.prepare_image(f"docker://{name}")
                assert (image.image, image.cached) == (again.image, True)
    assert registry.pulls == BLOBS


async def test_what_is_not_allowed_is_refused_by_name(server: Server, registry: Registry) -> None:
    allowed, before = f"must begin with docker://{registry.address}/own/", registry.pulls
    wrong = {
        "docker://python:3.12": f"reference is 'docker://docker.io/library/python:3.12', {allowed}",
        f"docker://{registry.address}/others/image": allowed,
        f"docker://{registry.address}/own/../others/image": "must be the name of an image",
        f"{registry.address}/own/image": "must be the name of an image",
        "oci:/etc": "must be the name of an image",
        "docker://--help": "must be the name of an image",
        "docker://" + "x" * 600: "must be the name of an image",
        "": "must be the name of an image",
    }
    async with ExecutorClient(server.target) as client:
        for reference, problem in wrong.items():
            with pytest.raises(InvalidRequest) as caught:
                await client.prepare_image(reference)
            assert problem in str(caught.value), reference
    assert registry.pulls == before


async def test_what_the_registry_has_not_is_said(server: Server, other: Registry, home: Path) -> None:
    async with ExecutorClient(server.target) as client:
        with pytest.raises(ExecutorUnavailable, match=r"skopeo copy ended with 1: .*own/other"):
            await client.prepare_image(f"docker://{other.address}/own/other")
    assert not list((home / "store" / "making").iterdir())


async def test_who_leaves_finds_it_later(server: Server, other: Registry) -> None:
    reference, before = f"docker://{other.address}/own/image", other.pulls
    other.goes_on.clear()
    async with ExecutorClient(server.target) as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.prepare_image(reference), 0.5)
        other.goes_on.set()
        (image,) = await client.prepare_image(reference)
        assert image.size_bytes > 1_000_000
    assert other.pulls == before + BLOBS


def test_a_server_that_ends_fetches_no_more(other: Registry, home: Path, tmp_path: Path) -> None:
    before = other.pulls
    other.goes_on.clear()

    async def ask(target: str) -> None:
        async with ExecutorClient(target) as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.prepare_image(f"docker://{other.address}/own/image"), 1)

    with fetching(home, tmp_path, other) as server:
        asyncio.run(ask(server.target))
    assert other.pulls == before
    assert not list((tmp_path / "making").iterdir())
    assert not [path.name for path in (tmp_path / "locks").iterdir() if path.name.startswith("fetch-")]


def test_references_in_full() -> None:
    for short, whole in {
        "docker://python:3.12": "docker://docker.io/library/python:3.12",
        "docker://swebench/x.y:latest": "docker://docker.io/swebench/x.y:latest",
        "docker://localhost/a": "docker://localhost/a",
        "docker://host:5000/a/b@sha256:00": "docker://host:5000/a/b@sha256:00",
        "docker://": "",
        "docker:///a": "",
        "docker://a b": "",
        "docker-daemon:a": "",
    }.items():
        assert in_full(short) == whole
