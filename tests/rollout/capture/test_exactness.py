"""A real model behind the gateway: recorded ids are what the engine got and gave, and the logprobs are the model's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from rollout.capture import CaptureGateway, CaptureSettings
from rollout.capture.record import record_json
from rollout.dump import DumpWriter
from rollout.dump_check import check_dump
from rollout.engines import GenerationRequest, GenerationResult
from rollout.engines.local.engine import TransformersEngine
from rollout.tokens import ChatTemplate
from tests.rollout.capture.gateways import TOOLS, client


class Witness(TransformersEngine):
    """Remembers what went in and out of the real engine."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: list[tuple[GenerationRequest, GenerationResult]] = []

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        result = await super().generate(request)
        self.seen.append((request, result))
        return result


async def converse(gateway: CaptureGateway, name: str, question: str) -> None:
    """An agent with a tool that it never gets to see used, two questions and a second try of the last one."""
    async with client(gateway, name, timeout=90.0) as openai:
        messages: list[Any] = [{"role": "user", "content": question}]
        for follow_up in ("Are you sure?", "Say it in one word."):
            reply = await openai.chat.completions.create(
                model=gateway.engine.model_name, messages=messages, tools=TOOLS, temperature=0.8, max_tokens=8, seed=3
            )
            message: Any = reply.choices[0].message.model_dump(exclude_none=True)
            messages += [message, {"role": "user", "content": follow_up}]
        for seed in (1, 2):
            model = gateway.engine.model_name
            await openai.chat.completions.create(
                model=model, messages=messages, tools=TOOLS, temperature=0.8, max_tokens=8, seed=seed
            )


async def test_record_is_what_the_model_saw_and_sampled(tiny_dir: Path, chat: ChatTemplate, tmp_path: Path) -> None:
    settings = CaptureSettings(listen="127.0.0.1:0")
    engine = Witness(tiny_dir, max_batch=4, max_model_tokens=1024)
    async with engine, CaptureGateway(engine, chat, settings) as gateway:
        rows = []
        questions = {"a": "What is the capital of France?", "b": "Name a colour."}
        await asyncio.gather(*(converse(gateway, name, question) for name, question in questions.items()))
        for name in questions:
            found = gateway.trajectory(name)
            assert [branch.reason for branch in found.branches] == ["first", "resampled"]
            seen = [(asked.input_ids, given) for asked, given in engine.seen if asked.trajectory_id == name]
            recorded = [*found.branches[0].turns, found.branches[1].turns[-1]]
            assert len(seen) == len(recorded) == 4
            for (context, given), turn in zip(seen, recorded, strict=True):
                trajectory = turn.trajectory()
                assert trajectory.ids == context + given.ids
                assert trajectory.logprobs[-len(given.ids) :] == given.logprobs
            rows += record_json(found, model=engine.model_name, decode=chat.decode_plain)["branches"]
        assert engine.statistics().running == engine.statistics().queued == 0
    with DumpWriter(tmp_path, 1) as dump:
        for row in rows:
            dump.write(row)
    check = check_dump(tmp_path / "1.jsonl", tiny_dir)
    assert (check.problems, check.trajectories) == ((), 4)
    assert check.sampled_tokens == sum(sum(row["response_mask"]) for row in rows) > 0
    assert check.max_logprob_difference < 1e-4, check.worst
