"""Whatever way it is seeded, numpy's generator goes on from a state that it did not have, and that nobody else has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from executor_service.guest.warm import seeds

numpy = pytest.importorskip("numpy", reason="numpy is not installed")


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    """The state of this process, as it was."""
    before = numpy.random.get_state()
    yield
    numpy.random.set_state(before)
    seeds._where = 0


@pytest.mark.parametrize("known", [True, False], ids=["where it lies", "by numpy"])
def test_states_differ_and_are_whole(known: bool) -> None:
    seeds.learn()
    assert seeds._where
    if not known:
        seeds._where = 0
    states = []
    for _ in range(3):
        seeds.fresh()
        _, key, place, *kept = numpy.random.get_state()
        assert (place, *kept) == (624, 0, 0.0)
        states.append(key.tobytes())
        assert 0.4 < numpy.random.rand(10_000).mean() < 0.6
        if known:
            seeds.learn()  # it is for where nothing was drawn since
    assert len(set(states)) == 3


def test_what_is_not_where_numpy_says_is_not_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor_service.guest.warm.seeds.ctypes.string_at", lambda *_: b"something else")
    seeds.learn()
    assert seeds._where == 0
