"""Dumps to look at: one that the scripted engine played, and plain ones of verl."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollout.dump import DumpWriter, record_of
from rollout.engines import EngineUnavailable, GenerationRequest, SamplingParams
from rollout.envs import EnvironmentSetup, Gsm8kConfig, Gsm8kEnvironment
from rollout.loop import AgentLoop, Limits
from rollout.testing import ScriptedEngine, ScriptedTool
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import Toolbox, ToolOutcome, ToolResponse
from tests.rollout.scripted import roll_out

CALL = '<tool_call>\n{{"name": "echo", "arguments": {{"text": "{}"}}}}\n</tool_call>'


def play(chat: ChatTemplate, tokenizer: HubTokenizer, folder: Path, step: int, *, right: int) -> Path:
    """Three problems with two rollouts each; `right` of the six answer what is asked, one of the others fails by the
    service. Tools answer in several lines, with characters that take two cells, and once fail."""
    environment = Gsm8kEnvironment(Gsm8kConfig(), EnvironmentSetup(limit=3))
    truths = {task.uid: task.ground_truth for task in environment.tasks()}
    played: list[str] = []

    def say(request: GenerationRequest, turn: int) -> str | Exception:
        if request.trajectory_id not in played:
            played.append(request.trajectory_id)
        number = played.index(request.trajectory_id)
        if turn == 0:
            return "Let me see ☃.\n" + CALL.format("six\\n☃ 漢字" if number % 2 == 0 else "fail")
        if number == 5 and right < 5:
            return EngineUnavailable("the engine went away")
        return f"#### {list(truths.values())[number // 2] if number < right else -1}"

    def answer(arguments: Any) -> str | ToolResponse:
        if arguments["text"] == "fail":
            return ToolResponse("Traceback\n\x1b[31mred", ToolOutcome.PROGRAM_ERROR, run_s=0.25)
        return str(arguments["text"])

    async def run() -> Path:
        engine = ScriptedEngine(tokenizer, say, vocab_size=49152)
        loop = AgentLoop(engine, chat, Toolbox([ScriptedTool(answer)]), Limits(), SamplingParams(temperature=1.0))
        done = await roll_out(loop, environment.score, environment.tasks(), concurrency=1, samples_per_prompt=2)
        with DumpWriter(folder, step) as dump:
            for task, result in done:
                dump.write(record_of(result, task, step=step, model="SmolLM2-135M-Instruct", decode=chat.decode_plain))
        return dump.path

    return asyncio.run(run())


@pytest.fixture(scope="session")
def played(chat: ChatTemplate, tokenizer: HubTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the steps 9 and 10; not to be written to."""
    folder = tmp_path_factory.mktemp("played")
    play(chat, tokenizer, folder, 9, right=1)
    play(chat, tokenizer, folder, 10, right=4)
    return folder


def verl_row(number: int, **fields: Any) -> dict[str, Any]:
    """A row as verl's trainer dumps it, without anything of ours."""
    return {
        "input": f"user\nQuestion {number // 2}?\nassistant\n",
        "output": f"I think it is {number}.",
        "gts": str(number),
        "score": float(number),
        "step": 1,
        "acc": number % 2 == 0,
        "pred": "six",
    } | fields


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes `{step}.jsonl` below tmp_path; rows are objects, or texts that are written as they are."""

    def write(step: int | str, *rows: dict[str, Any] | str) -> Path:
        path = tmp_path / f"{step}.jsonl"
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_text("".join(line + "\n" for line in lines))
        return path

    return write
