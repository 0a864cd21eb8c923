"""Queue, prefixes and sampling of the transformers engine, without a model."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollout.engines import SamplingParams
from rollout.engines.base import derived_seed
from rollout.engines.local.decoder import PrefixStore
from rollout.engines.local.schedule import BatchSchedule
from rollout.engines.local.worker import new_generator, sample


def test_waiting_request_expires_and_running_one_does_not() -> None:
    schedule = BatchSchedule(max_running=1, max_queued=4)
    for name, expires in (("a", 1.0), ("b", 2.0), ("c", 1.0)):
        schedule.submit(name, expires=expires)
    schedule.admit()
    assert schedule.expire(1.0) == ["c"]
    assert schedule.running == ("a",)
    assert schedule.queued == 1


@given(st.lists(st.sampled_from(["submit", "admit", "remove-running", "remove-waiting"]), max_size=60))
def test_rows_follow_the_moves_that_are_asked_for(steps: list[str]) -> None:
    schedule = BatchSchedule(max_running=3, max_queued=5)
    rows: dict[int, str] = {}
    waiting: list[str] = []
    for number, step in enumerate(steps):
        name = f"r{number}"
        if step == "submit" and len(waiting) < 5:
            schedule.submit(name, expires=math.inf)
            waiting.append(name)
        elif step == "admit" and (admitted := schedule.admit()) is not None:
            assert admitted[0] == waiting.pop(0)
            assert admitted[1] not in rows
            rows[admitted[1]] = admitted[0]
        elif step == "remove-running" and rows:
            moved = schedule.remove(rows[min(rows)])
            assert moved is not None
            rows[moved.target] = rows[moved.source]
            del rows[moved.source]
        elif step == "remove-waiting" and waiting:
            assert schedule.remove(waiting.pop()) is None
        assert schedule.running == tuple(rows[row] for row in sorted(rows))
        assert schedule.queued == len(waiting)
        assert len(rows) <= 3


def saved(text: str, size: int = 10) -> torch.Tensor:
    return torch.tensor([*text.ljust(size).encode()], dtype=torch.uint8)


def found(store: PrefixStore, ids: tuple[int, ...]) -> tuple[int, str] | None:
    entry = store.find(ids)
    return entry and (entry[0], bytes(entry[1].tolist()).decode().strip())


def test_longest_shared_prefix_is_found_but_never_the_whole_context() -> None:
    store = PrefixStore(max_bytes=100)
    store.add((1, 2, 3), saved("short"))
    store.add((1, 2, 9, 9), saved("other"))
    assert found(store, (1, 2, 3, 4, 5)) == (3, "short")
    assert found(store, (1, 2, 3)) in ((2, "other"), (2, "short"))
    assert store.find((7, 8)) is None


def test_extension_replaces_its_prefix_and_a_prefix_adds_nothing() -> None:
    store = PrefixStore(max_bytes=100)
    store.add((1, 2), saved("a"))
    store.add((1, 2, 3), saved("b"))
    store.add((1, 2), saved("c"))
    assert (len(store.kept), store.kept.currsize) == (1, 10)
    assert found(store, (1, 2, 3, 4)) == (3, "b")


def test_store_forgets_what_was_unused_for_longest() -> None:
    store = PrefixStore(max_bytes=20)
    store.add((1, 1), saved("a"))
    store.add((2, 2), saved("b"))
    assert found(store, (1, 1, 1)) == (2, "a")
    store.add((3, 3), saved("c"))
    assert store.find((2, 2, 2)) is None
    assert found(store, (1, 1, 1)) == (2, "a")
    store.add((4, 4), saved("too large", 21))
    assert store.kept.currsize == 20


LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0, -3.0])


def draw(params: SamplingParams, times: int) -> list[tuple[int, float]]:
    generator = new_generator(params, torch.device("cpu"))
    return [sample(LOGITS, params, generator) for _ in range(times)]


def test_logprob_is_of_the_scaled_distribution_before_cuts() -> None:
    expected = torch.log_softmax(LOGITS / 0.5, dim=-1)
    for token, logprob in draw(SamplingParams(temperature=0.5, top_k=2, seed=1), 50):
        assert token in (0, 1)
        assert logprob == pytest.approx(float(expected[token]))


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    probabilities = torch.softmax(LOGITS, dim=-1)
    just_two = float(probabilities[:2].sum()) - 1e-4
    assert {token for token, _ in draw(SamplingParams(top_p=just_two, seed=1), 200)} == {0, 1}
    assert {token for token, _ in draw(SamplingParams(top_p=1e-6, seed=1), 20)} == {0}


def test_samples_follow_the_distribution() -> None:
    counts = torch.zeros(5)
    for token, _ in draw(SamplingParams(seed=3), 4000):
        counts[token] += 1
    assert (counts / 4000 - torch.softmax(LOGITS, dim=-1)).abs().max() < 0.03


def test_parts_of_a_seed_have_seeds_that_are_unrelated() -> None:
    assert derived_seed(None, "turn", 3) is None
    seeds = [derived_seed(seed, what, n) for seed in (0, 2**63 - 1) for what in ("turn", "id") for n in range(100)]
    assert all(seed is not None and 0 <= seed < 2**63 for seed in seeds)
    distances = {b - a for a, b in pairwise(seeds) if a is not None and b is not None}
    assert len(set(seeds)) == 400
    assert len(distances) == 399
