"""A scripted engine in a process of its own, which speaks as sglang does: `python -m ... ADDRESS FOLDER`.

It says what `Tier.script` does, and writes down in FOLDER/sampled what it samples.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

from rollout.engines import GenerationRequest, SamplingParams
from rollout.engines.model_store import find_model
from rollout.testing import ScriptedEngine
from rollout.tokens import ChatTemplate, HubTokenizer
from tests.rollout.scripted import tool_call
from tests.rollout.service.serving import VOCABULARY, Tier

_DELAY_S = 0.02
"""Time of a turn."""


def program(draws: random.Random) -> str:
    return tool_call("code_interpreter", code=f"print({draws.randrange(10**6)} * 7)")


class Logged(Tier):
    """Writes down what it samples."""

    def script(self, request: GenerationRequest, turn: int) -> str | Exception:
        with (self.folder / "sampled").open("a") as log:
            log.write(f"{request.params.seed} {hash(request.input_ids)}\n")
        return super().script(request, turn)


class ScriptedServer:
    """Serves all that fairbox asks of sglang, but for weights."""

    def __init__(self, folder: Path) -> None:
        tokenizer = HubTokenizer(find_model("smollm2"))
        tier = Logged(tokenizer, ChatTemplate(tokenizer), folder, ending=0.1, call=program)
        self._engine = ScriptedEngine(tokenizer, tier.script, vocab_size=VOCABULARY, delay_s=_DELAY_S)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/model_info", self._model)
        app.router.add_get("/server_info", self._server)
        app.router.add_post("/generate", self._generate)
        for path in ("/abort_request", "/pause_generation", "/continue_generation"):  # turns are short enough
            app.router.add_post(path, self._nothing)
        return app

    async def _model(self, _: web.Request) -> web.Response:
        return web.json_response({"model_path": "/scripted", "weight_version": self._engine.weight_version})

    async def _server(self, _: web.Request) -> web.Response:
        return web.json_response({"max_req_input_len": self._engine.max_model_tokens})

    async def _nothing(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def _generate(self, asked: web.Request) -> web.StreamResponse:
        body = await asked.json()
        sampling = body["sampling_params"]
        if not body.get("stream"):  # at start: how logprobs follow the temperature
            top = [[-rank / sampling["temperature"], rank, None] for rank in range(body["top_logprobs_num"])]
            return web.json_response({"meta_info": {"output_top_logprobs": [top]}})
        answer = await self._answer(body, sampling)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(asked)
        await response.write(f"data: {json.dumps(answer)}\n\ndata: [DONE]\n\n".encode())
        return response

    async def _answer(self, body: dict[str, Any], sampling: dict[str, Any]) -> dict[str, Any]:
        params = SamplingParams(
            temperature=sampling["temperature"],
            max_new_tokens=sampling["max_new_tokens"],
            stop_token_ids=tuple(sampling["stop_token_ids"]),
            seed=sampling.get("sampling_seed"),
        )
        ids = tuple(body["input_ids"])
        request = GenerationRequest(request_id=body["rid"], trajectory_id=body["rid"], input_ids=ids, params=params)
        result = await self._engine.generate(request)
        reason = {"type": str(result.finish), "matched": result.ids[-1]}
        return {
            "output_ids": list(result.ids),
            "meta_info": {
                "output_token_logprobs": [[p, id_, None] for p, id_ in zip(result.logprobs, result.ids, strict=True)],
                "completion_tokens": len(result.ids),
                "finish_reason": reason,
                "weight_version": self._engine.weight_version,
            },
        }


async def serve(address: str, folder: str) -> None:
    """Until it is killed."""
    runner = web.AppRunner(ScriptedServer(Path(folder)).app())
    await runner.setup()
    host, _, port = address.rpartition(":")
    await web.TCPSite(runner, host, int(port)).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
