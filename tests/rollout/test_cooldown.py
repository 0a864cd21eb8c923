"""An executor that can't do its job is left alone for a while by all calls of a process together."""

from __future__ import annotations

import pytest

from rollout.tools.code.client import Cooldown


def test_pause_doubles_up_to_five_seconds_and_ends_with_a_success() -> None:
    cooldown = Cooldown()
    assert cooldown.pause(0.0) == 0.0
    now, pauses = 0.0, []
    for _ in range(8):
        cooldown.failed(now, now)
        pauses.append(round(cooldown.pause(now), 3))
        now += 10.0
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    cooldown.failed(now, now)
    cooldown.succeeded()
    assert cooldown.pause(now) == 0.0
    cooldown.failed(now, now)
    assert cooldown.pause(now) == pytest.approx(0.1)


def test_attempts_that_were_under_way_together_count_as_one_failure() -> None:
    cooldown = Cooldown()
    for _ in range(100):
        cooldown.failed(1.0, 2.0)
        cooldown.failed(1.5, 2.5)
    assert cooldown.failures == 1
    assert cooldown.pause(2.0) == pytest.approx(0.1)
    cooldown.failed(2.2, 2.6)
    assert cooldown.failures == 2
