"""Which limiter a client looks for next."""

from __future__ import annotations

import pytest

from fairbox.errors import FieldErrors
from limiter import ExecutorSession, LimiterClient
from limiter.client.grpc_transport import Targets


def test_one_address_is_tried_again_and_again_with_waits() -> None:
    targets = Targets("a:1")
    for _ in range(3):
        assert not targets.lost(worked=False)
        assert targets.current == "a:1"


def test_several_are_tried_in_turn_and_waits_come_between_rounds() -> None:
    targets = Targets("a:1, b:2 ,c:3")
    seen = [(targets.current, targets.lost(worked=False)) for _ in range(6)]
    assert seen == [("a:1", True), ("b:2", True), ("c:3", False)] * 2


def test_an_address_where_it_worked_is_tried_once_more_first() -> None:
    targets = Targets("a:1,b:2")
    assert not targets.lost(worked=True)
    assert targets.current == "a:1"
    assert targets.lost(worked=False)
    assert targets.current == "b:2"


@pytest.mark.parametrize("target", ["", "a:1,", ",", "a:1,,b:2", ",".join(["a:1"] * 17)])
def test_a_target_that_is_none_is_refused_at_once(target: str) -> None:
    for make in (LimiterClient, ExecutorSession):
        with pytest.raises(FieldErrors, match="target"):
            make(target)
