"""A tool call from the text of a turn to the ids that answer it: parsed, leased by a real limiter, run by a real
executor in a warm interpreter, encoded. One call at a time."""

from __future__ import annotations

import time

from benchmarks.rollout.replay import CALL
from benchmarks.rows import Row, figure, median
from rollout.engines import find_model
from rollout.stack import LocalStack
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import Toolbox, parse_tool_calls
from rollout.tools.code import CodeInterpreter, CodeInterpreterConfig

CALLS = 300
WARM_UP = 30


async def rows() -> list[Row]:
    chat = ChatTemplate(HubTokenizer(find_model("smollm2")))
    text = "Let me compute it.\n" + CALL.replace('"code", "arg', '"code_interpreter", "arg')
    times = []
    async with (
        LocalStack() as stack,
        CodeInterpreter(CodeInterpreterConfig(), executor=stack.ports.executor, limiter=stack.ports.limiter) as tool,
    ):
        box = Toolbox([tool])
        for _ in range(CALLS + WARM_UP):
            before = time.perf_counter()
            (answer,) = await box.answer("bench", parse_tool_calls(text), run=1, time_limit_s=None)
            assert chat.between_turns([answer.text], ended=True)
            times.append((time.perf_counter() - before) * 1e3)
            assert answer.text == "4950", answer
    times = sorted(times[WARM_UP:])
    where = f"{CALLS} calls one after another, limiter and executor on this machine"
    return [
        figure("tool: round trip p50", median(times), "ms", most=10.0, against=where),
        figure("tool: round trip p95", times[int(len(times) * 0.95)], "ms", against=where),
    ]
