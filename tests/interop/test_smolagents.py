"""An agent of smolagents whose code runs in a session: `examples/smolagents_executor.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("smolagents", reason="smolagents is not installed: make test-interop")

from smolagents import ChatMessage, CodeAgent, MessageRole, Model, tool

from examples.smolagents_executor import FairboxExecutor, SandboxFailed
from executor_service import ExecutorClient
from tests.executor.servers import Server, running

pytestmark = pytest.mark.smolagents


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as started:
        yield started


class ScriptedModel(Model):  # type: ignore[misc]
    """Gives these programs, one a turn, and keeps what it was shown."""

    def __init__(self, *programs: str) -> None:
        super().__init__(model_id="scripted")
        self.programs = list(programs)
        self.shown = ""

    def generate(self, messages: Any, **_: Any) -> Any:
        self.shown = str(messages[-1].content)
        text = f"Thought: next.\n<code>\n{self.programs.pop(0)}\n</code>"
        return ChatMessage(role=MessageRole.ASSISTANT, content=text)


@tool  # type: ignore[untyped-decorator]
def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: Any number.
    """
    return 2 * number


def played(server: Server, *programs: str, tools: Any = (), **more: Any) -> tuple[Any, ScriptedModel]:
    model = ScriptedModel(*programs)
    with FairboxExecutor(server.target, **more) as executor:
        agent = CodeAgent(tools=list(tools), model=model, executor=executor, verbosity_level=0)
        return agent.run("?", max_steps=len(programs)), model


def test_state_stays_and_the_answer_comes_back_as_it_was(server: Server) -> None:
    answer, model = played(server, "x = [41]\nprint('x is', x)", "x.append({'a': (1, 2)})\nfinal_answer(x)")
    assert answer == [41, {"a": (1, 2)}]
    assert "x is [41]" in model.shown


def test_tools_are_there(server: Server) -> None:
    assert played(server, "final_answer(double(21))", tools=[double])[0] == 42


def test_words_of_an_answer_are_none_where_the_code_went_well(server: Server) -> None:
    code = "import sys\nsys.stderr.write('FinalAnswerException: safe:1')"
    assert played(server, code, "final_answer(2)")[0] == 2


def test_an_error_of_the_code_is_told_and_the_agent_goes_on(server: Server) -> None:
    answer, model = played(server, "print('before')\n1 / 0", "final_answer('went on')")
    assert answer == "went on"
    assert "before" in model.shown
    assert "ZeroDivisionError: division by zero" in model.shown


def test_code_that_takes_too_long_is_interrupted(server: Server) -> None:
    answer, model = played(server, "kept = 7\nwhile True: pass", "final_answer(kept)", timeout=1)
    assert answer == 7
    assert "ran for longer than 1 s" in model.shown


def test_an_interpreter_that_the_code_has_ended_is_replaced(server: Server) -> None:
    answer, model = played(server, "import os\nos._exit(3)", "print(1)", "final_answer('there')")
    assert answer == "there"
    assert "what it knew is lost" in model.shown


def test_nothing_is_left(server: Server) -> None:
    played(server, "final_answer(1)")

    async def sessions() -> int:
        async with ExecutorClient(server.target) as client:
            return len(await client.list_sessions())

    assert asyncio.run(sessions()) == 0


def test_a_service_that_fails_ends_the_run_and_is_not_told_to_the_model() -> None:
    with running() as server, FairboxExecutor(server.target) as executor:

        class Killing(ScriptedModel):
            def generate(self, messages: Any, **more: Any) -> Any:
                server.process.kill()
                server.process.wait(timeout=30)
                return super().generate(messages, **more)

        model = Killing("print(1)", "final_answer(1)")
        agent = CodeAgent(tools=[], model=model, executor=executor, verbosity_level=0)
        with pytest.raises(SandboxFailed):
            agent.run("?")
    assert model.programs == ["final_answer(1)"]
