"""JSON in steps: what it reads is what `json.loads` reads, within bounds, and others get their turn meanwhile."""

from __future__ import annotations

import contextlib
import gc
import json
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_service.grading.values import Malformed, check
from fairbox import bounded_json

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=60,
)


@pytest.fixture(scope="module", params=[20, 33])
def short_steps(request: pytest.FixtureRequest) -> Iterator[None]:
    """A step is shorter than most texts here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded_json, "STEP", request.param)
        yield


def read(text: str) -> str:
    try:
        return repr(bounded_json.loads(text, depth=100, left=[10_000]))
    except ValueError:
        return "no JSON"


@pytest.mark.usefixtures("short_steps")
@given(values, st.booleans(), st.sampled_from([None, 0, 1]))
def test_json_is_read_as_json_loads_reads_it(value: object, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert read(text) == repr(json.loads(text))


@pytest.mark.usefixtures("short_steps")
@given(st.text('[]{}",:\\u0123dD89abEef-.+ ntx\n', max_size=60))
def test_what_json_loads_refuses_is_refused(text: str) -> None:
    try:
        expected = repr(json.loads(text))
    except ValueError:
        expected = "no JSON"
    assert read(text) == expected


LARGE = {
    "lists": '["l",[' + '["l",[]],' * 200_000 + "1]]",
    "numbers": '["l",[' + "1," * 1_000_000 + "1]]",
    "rows": '["l",[' + "[1,null]," * 300_000 + "1]]",
    "no rows": '["l",[' + f"[{'1,' * 8000}[]]," * 60 + "1]]",
    "long numbers": '["l",[' + f"1{'0' * 4200}," * 1000 + "1]]",
    "escapes": '"' + "\\n" * (4 << 20) + '"',
}


def longest_hold(work: threading.Thread) -> float:
    """Seconds of CPU that this process used at most between two turns of this thread while the other one works."""
    longest, last = 0.0, time.process_time()
    work.start()
    while work.is_alive():
        time.sleep(0.001)
        now = time.process_time()
        longest, last = max(longest, now - last), now
    return longest


@pytest.mark.parametrize("name", LARGE)
def test_nothing_holds_the_interpreter(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(bounded_json, "STEP", 16 << 10)

    def work() -> None:
        with contextlib.suppress(ValueError):
            bounded_json.loads(LARGE[name], depth=64, left=[200_000])
        with contextlib.suppress(Malformed):
            check(LARGE[name].encode())

    gc.collect()
    gc.freeze()  # as a server does: collections of what the suite holds are not meant
    try:
        # What is in the code is there each time; what else the process does is not.
        assert any(longest_hold(threading.Thread(target=work)) < 0.03 for _ in range(10))
    finally:
        gc.unfreeze()
