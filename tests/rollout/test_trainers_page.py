"""The examples of docs/how-to/trainers.md do what the page says."""

from __future__ import annotations

from typing import Any

import pytest

from executor_service import Cause
from rollout.loop import Task
from rollout.stack import LocalStack
from rollout.testing import ScriptedEngine
from rollout.tokens import ChatTemplate, HubTokenizer
from tests.interop.results import result, sampled
from tests.pages import examples

torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

CALL = '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}\n</tool_call>'


async def test_the_page_rolls_out_and_batches(tokenizer: HubTokenizer, chat: ChatTemplate) -> None:
    async with LocalStack() as stack:
        addresses = {"127.0.0.1:50051": stack.ports.executor, "127.0.0.1:50052": stack.ports.limiter}
        roll, batch, _, run = examples("how-to/trainers.md", "python", addresses)
        names: dict[str, Any] = {}
        exec(roll, names)
        engine = ScriptedEngine(tokenizer, [CALL, "#### 42"], vocab_size=49152)
        tasks = [Task(str(n), ({"role": "user", "content": "6 * 7?"},), "42", "test", f"here:{n}") for n in range(2)]
        names["results"] = await names["roll"](engine, chat, tasks)
        names["tokenizer"] = type("Padded", (), {"pad_token_id": 0})
        exec(batch, names)
        assert names["batch"].rewards.tolist() == [1.0] * 16
        assert sorted(names["batch"].groups.tolist()) == [0] * 8 + [1] * 8
        exec(run, names)
        outcome = await names["run"]("print(1)")
        assert (outcome.stdout.data, outcome.cause) == (b"1\n", Cause.POLICY)


def test_the_pages_advantages_do_not_see_what_the_service_failed() -> None:
    _, batch, advantages, _ = examples("how-to/trainers.md", "python")
    good, bad = result([1], sampled([2]), reward=1.0), result([1], sampled([2]), reward=0.0)
    names: dict[str, Any] = {"torch": torch, "tokenizer": type("Padded", (), {"pad_token_id": 0})}
    exec(advantages, names)
    values = {}
    for which, rows in (("with", [good, result([1], sampled([2]), infra=True), bad]), ("without", [good, bad])):
        names["results"] = rows
        exec(batch, names)
        values[which] = names["advantages"](names["batch"]).tolist()
    assert values["with"] == [values["without"][0], 0.0, values["without"][1]]
    assert values["without"] == pytest.approx([0.7071058, -0.7071058])
