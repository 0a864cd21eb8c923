"""The OpenHands SDK on the gateway: an agent that nobody adapted, recorded in one branch."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

from rollout.tokens import ChatTemplate, HubTokenizer
from tests.rollout.capture.gateways import scripted
from tests.rollout.openhands_sdk import openhands_env

AGENT = Path(__file__).with_name("openhands_agent.py")


def call(name: str, **arguments: Any) -> str:
    return f"I see.\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def test_openhands_agent_is_recorded_in_one_branch(
    openhands_python: str, chat: ChatTemplate, tokenizer: HubTokenizer
) -> None:
    turns = [call("think", thought="1 + 2 is 3."), call("think", thought="Yes."), call("finish", message="3")]
    async with scripted(tokenizer, chat, turns, max_model_tokens=65536, max_turn_tokens=512) as (gateway, engine):
        process = await asyncio.create_subprocess_exec(
            openhands_python,
            str(AGENT),
            gateway.base_url("task"),
            "scripted",
            "What is 1 + 2?",
            env=openhands_env(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            printed, _ = await asyncio.wait_for(process.communicate(), 240)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, printed.decode()
        assert printed.decode().splitlines()[-1] == "finished"
        found = gateway.trajectory("task")
        assert [(branch.reason, branch.where) for branch in found.branches] == [("first", "")]
        assert [turn.text for turn in found.branch.turns] == turns
        contexts = [request.input_ids for request in engine.requests]
        assert all(longer[: len(shorter)] == shorter for shorter, longer in itertools.pairwise(contexts))
        assert found.branch.trajectory.ids[: len(contexts[-1])] == contexts[-1]
