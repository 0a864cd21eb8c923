"""Which limiter a client looks for next."""

from __future__ import annotations

import pytest

from fairbox.errors import FieldErrors
from limiter import ExecutorSession, LimiterClient
from limiter.client.targets import Targets


def test_one_address_is_tried_again_and_again_with_waits() -> None:
    targets = Targets("a:1")
    for _ in range(3):
        assert not targets.lost(worked=False)
        assert targets.current == "a:1"


def test_several_are_tried_in_turn_and_waits_come_between_rounds() -> None:
    targets = Targets("a:1, b:2 ,c:3")
    seen = [(targets.current, targets.lost(worked=False)) for _ in range(6)]
    assert seen == [("a:1", True), ("b:2", True), ("c:3", False)] * 2


def test_leader_that_is_named_is_tried_at_once_also_when_it_is_not_listed() -> None:
    targets = Targets("a:1,b:2")
    assert targets.lost(worked=False, leader="x:9")
    assert targets.current == "x:9"
    assert not targets.lost(worked=True), "where it worked it is tried once more"
    assert targets.current == "x:9"
    assert targets.lost(worked=False)
    assert targets.current == "b:2"


def test_limiters_that_name_each_other_do_not_make_a_circle_without_waits() -> None:
    targets = Targets("a:1,b:2")
    tries = 0
    while targets.lost(worked=False, leader={"a:1": "b:2", "b:2": "a:1"}[targets.current]):
        tries += 1
    assert tries <= 4
    assert not Targets("a:1").lost(worked=False, leader="a:1"), "itself"


@pytest.mark.parametrize("target", ["", "a:1,", ",", "a:1,,b:2", ",".join(["a:1"] * 17)])
def test_a_target_that_is_none_is_refused_at_once(target: str) -> None:
    for make in (LimiterClient, ExecutorSession):
        with pytest.raises(FieldErrors, match="target"):
            make(target)
