"""The order in which a turn's calls start, and what is counted while they run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import pytest

from fairbox.errors import ConfigError
from rollout.testing import ScriptedTool
from rollout.tools import BranchRefused, InfraError, ToolCall, ToolOutcome, ToolResponse, ToolSchema, ToolStatistics
from rollout.tools.statistics import CallBoard, CallPhase, set_phase
from rollout.tools.toolbox import Toolbox


def test_board_knows_where_calls_are() -> None:
    board = CallBoard()
    set_phase(CallPhase.WORKER)  # of no call
    with contextlib.suppress(ZeroDivisionError), board.call():
        set_phase(CallPhase.WORKER)
        with board.call():
            set_phase(CallPhase.LEASE)
            found = board.statistics()
            assert (found.running, found.waiting_for_worker, found.waiting_for_lease) == (0, 1, 1)
            set_phase(CallPhase.RUNNING)
            assert board.statistics().running == 1
        found = board.statistics(waiting_to_begin=1)
        assert found == ToolStatistics(waiting_for_worker=1, finished=1, waiting_to_begin=1)
        raise ZeroDivisionError
    assert board.statistics() == ToolStatistics(finished=1, failed=1)


class Recorder(ScriptedTool):
    """Notes when its calls begin and end, and takes `seconds` of a manual clock for each."""

    def __init__(self, name: str, log: list[str], *, parallel: bool, seconds: float = 1.0) -> None:
        super().__init__(lambda _: "", schema=ToolSchema(name, ""), parallel=parallel)
        self.log = log
        self.limits: list[float | None] = []
        self._seconds = seconds

    async def execute(
        self, trajectory_id: str, arguments: Mapping[str, Any], *, time_limit_s: float | None = None
    ) -> ToolResponse:
        said = f"{self.schema.name}{arguments['n']}"
        self.log.append(f"+{said}")
        self.limits.append(time_limit_s)
        for _ in range(5):
            await asyncio.sleep(0)
        self.log.append(f"-{said}")
        return ToolResponse(said, ToolOutcome.OK, run_s=self._seconds)


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(name, {"n": number}, "") for number, name in enumerate(names)]


async def test_calls_of_a_tool_with_state_run_one_after_another_beside_others() -> None:
    log: list[str] = []
    shell, search = Recorder("shell", log, parallel=False), Recorder("search", log, parallel=True)
    box = Toolbox([shell, search])
    turn = calls("shell", "search", "shell", "search", "shell")
    responses = await box.answer("t", turn, run=5, time_limit_s=2.5)
    assert [response.text for response in responses] == ["shell0", "search1", "shell2", "search3", "shell4"]
    assert log[:3] == ["+shell0", "+search1", "+search3"]
    assert [entry for entry in log if "shell" in entry] == [
        "+shell0",
        "-shell0",
        "+shell2",
        "-shell2",
        "+shell4",
        "-shell4",
    ]
    assert shell.limits == [2.5, 1.5, 0.5]  # the trajectory's time is used up by the calls before
    assert search.limits == [2.5, 2.5]
    assert box.charged_s(turn, responses) == 3.0


async def test_nothing_more_starts_when_a_call_has_failed() -> None:
    log: list[str] = []

    class Stubborn(Recorder):
        """Ends its call although it was cancelled."""

        async def execute(self, *args: Any, **options: Any) -> ToolResponse:
            try:
                return await super().execute(*args, **options)
            except asyncio.CancelledError:
                return ToolResponse("", ToolOutcome.OK)

    failing = ScriptedTool(lambda _: InfraError("down"), schema=ToolSchema("bad", ""))
    box = Toolbox([Stubborn("a", log, parallel=False), failing])
    with pytest.raises(InfraError, match="down"):
        await box.answer("t", calls("a", "bad", "a"), run=3, time_limit_s=None)
    assert log == ["+a0"]


async def test_cap_holds_over_all_tools() -> None:
    log: list[str] = []
    box = Toolbox([Recorder("a", log, parallel=True), Recorder("b", log, parallel=False)], max_parallel_calls=1)
    await box.answer("t", calls("a", "b", "a"), run=3, time_limit_s=None)
    assert log == ["+a0", "-a0", "+b1", "-b1", "+a2", "-a2"]


async def test_statistics_count_calls_of_tools_that_count_none() -> None:
    def answer(arguments: Mapping[str, Any]) -> str | Exception:
        return ValueError("a defect") if arguments["text"] == "bad" else "ok"

    box = Toolbox([ScriptedTool(answer)])
    await box.answer("t", [ToolCall("echo", {"text": "a"}, "")], run=1, time_limit_s=None)
    with pytest.raises(ValueError, match="a defect"):
        await box.answer("t", [ToolCall("echo", {"text": "bad"}, "")], run=1, time_limit_s=None)
    assert box.statistics() == {"echo": ToolStatistics(finished=1, failed=1)}


async def test_response_of_a_tool_that_cuts_nothing_is_cut_with_its_full_size() -> None:
    box = Toolbox([ScriptedTool(lambda _: "a" * 70_000)])
    (response,) = await box.answer("t", [ToolCall("echo", {"text": "a"}, "")], run=1, time_limit_s=None)
    assert (response.truncated, response.total_bytes) == (True, 70_000)
    assert "[... cut: 70000 bytes in all ...]" in response.text
    assert len(response.text) < 65_600


async def test_tool_without_branch_refuses_with_its_name_and_nothing_is_forked() -> None:
    class Branching(ScriptedTool):
        async def branch(self, trajectory_id: str, branches: Any) -> None:
            self.events.append(f"branch {trajectory_id} {','.join(branches)}")
            if "bad" in branches:
                raise BranchRefused("not now")

    able, unable = Branching(lambda _: ""), ScriptedTool(lambda _: "", schema=ToolSchema("fixed", ""))
    with pytest.raises(BranchRefused, match=r"the tool fixed can't branch: ScriptedTool has no method branch\(\)"):
        await Toolbox([able, unable]).branch("t", ["a", "b"])
    assert able.events == []
    await Toolbox([able]).branch("t", ["a", "b"])
    assert able.events == ["branch t a,b"]
    first = Branching(lambda _: "", schema=ToolSchema("first", ""))
    with pytest.raises(BranchRefused, match="not now"):
        await Toolbox([first, able]).branch("t", ["c", "bad"])
    assert first.events[-2:] == ["release c", "release bad"]


def test_settings_of_the_toolbox_are_checked() -> None:
    with pytest.raises(ConfigError, match="max_parallel_calls is 0"):
        Toolbox([], max_parallel_calls=0)
