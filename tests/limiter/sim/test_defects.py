"""The simulation finds every known mistake, and finds nothing where it was not made."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.limiter.sim.defects import DEFECTS, Defect
from tests.limiter.sim.extended_defects import EXTENDED_DEFECTS
from tests.limiter.sim.simulation import simulate


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Wrong code complains a lot."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def found_at(defect: Defect) -> int | None:
    """A seed that shows the mistake."""
    with defect.put_in():
        for seed in defect.tries():
            if {kind for kind, _ in simulate(defect.scenario(seed)).violations} & defect.finds:
                return seed
    return None


@pytest.mark.parametrize("defect", [*DEFECTS, *EXTENDED_DEFECTS], ids=lambda defect: defect.name.replace(" ", "-"))
def test_defect_is_found(defect: Defect) -> None:
    seed = found_at(defect)
    assert seed is not None, f"{defect.seeds} seeds did not show it"
    verdict = simulate(defect.scenario(seed))
    assert not verdict.violations, f"the right code fails too: {verdict}"
