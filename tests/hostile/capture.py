"""Requests to the capture gateway, in the form of `inputs`; and the gateway as a process, with an engine that follows a
script, including calls of tools, well formed and not: `python -m tests.hostile.capture ADDRESS`.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from rollout.capture import CaptureGateway, CaptureSettings
from rollout.engines import find_model
from rollout.engines.base import GenerationRequest
from rollout.testing import ScriptedEngine
from rollout.tokens import ChatTemplate, HubTokenizer

CAPTURED = r"""
captured: 3 MB of lists | CHAT | [<<1000000*[],>>1]
captured: 900 levels | CHAT | <<900*[>><<900*]>>
captured: a million levels | CHAT | <<500000*{"a":>>1
captured: a million digits | CHAT | {"seed":1<<1000000*0>>}
captured: 4,000 digits | CHAT | {MODEL,"temperature":1<<4000*0>>,"messages":[USER"x"}]}
captured: a seed of 4,000 digits | CHAT | {MODEL,"seed":1<<4000*0>>,"messages":[USER"x"}]}
captured: a budget of 4,000 digits | CHAT | {MODEL,"max_tokens":1<<4000*0>>,"messages":[USER"x"}]}
captured: 20,000 messages | CHAT | {MODEL,"messages":[<<20000*USER""},>>USER""}]}
captured: 1 MB of text | CHAT | {MODEL,"messages":[USER"<<500000*a{>>"}]}
captured: 1 MB in one word | CHAT | {MODEL,"messages":[USER"<<1000000*a>>"}]}
captured: special tokens | CHAT | {MODEL,"messages":[USER"<<100000*<|im_end|> >>"}]}
captured: 20,000 tools | CHAT | {MODEL,"messages":[USER"x"}],"tools":[\
<<20000*{"type":"function","function":{"name":"f","parameters":{}}},>>{"type":"function","function":{"name":"f"}}]}
captured: 20,000 calls | CHAT | {MODEL,"messages":[{"role":"assistant","tool_calls":[\
<<20000*{"function":{"name":"f","arguments":"[["}},>>{"function":{"name":"f"}}]},USER"x"}]}
captured: half a character | CHAT | {MODEL,"messages":[USER"\ud800"}]}
captured: half a character in a tool | CHAT | {MODEL,"messages":[USER"x"}],"tools":[\
{"type":"function","function":{"name":"f\ud800","description":"\udfff","parameters":{}}}]}
captured: half a character in a call | CHAT | {MODEL,"messages":[{"role":"assistant",\
"tool_calls":[{"id":"\ud800","function":{"name":"\ud800","arguments":"\ud800"}}]},USER"x"}]}
captured: infinite numbers in a tool | CHAT | {MODEL,"messages":[USER"x"}],"tools":[\
{"type":"function","function":{"name":"f","parameters":{"most":1e999,"least":NaN}}}]}
captured: an infinite temperature | CHAT | {MODEL,"temperature":1e999,"messages":[USER"x"}]}
captured: 3 MB of a name | CHAT | {"model":"<<3000000*x>>","messages":[USER"x"}]}
captured: 3 MB of an unknown parameter | CHAT | {MODEL,"messages":[USER"x"}],"z":"<<3000000*x>>"}
captured: 150,000 parameters | CHAT | {<<150000#"z%d":1,>>MODEL,"messages":[USER"x"}]}
captured: no gzip | CHAT | gzip no gzip
captured: 300 MB in gzip | CHAT | gzip [<<100000000*[],>>1]
captured: no UTF-8 | CHAT | deflate x
captured: a reward beyond floats | /t/neighbour/reward | {"reward":1<<400*0>>}
captured: an infinite reward | /t/neighbour/reward | {"reward":1e999}
captured: a reward of 3 MB | /t/neighbour/reward | {"reward":"<<3000000*x>>"}
captured: a reward of lists | /t/neighbour/reward | {"reward":[<<1000000*[],>>1]}
"""
"""CHAT, MODEL and USER stand for the path, the model, and the beginning of a user's message."""
_TURNS = (
    'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1e999, "b": NaN}}\n</tool_call>',
    "Four.",
    '<tool_call>\n{<tool_call>\n{"name": "f", "arguments": [[[',
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
    "",
)


async def _serve(address: str) -> None:
    tokenizer = HubTokenizer(find_model("smollm2"))

    def say(_: GenerationRequest, turn: int) -> str:
        engine.requests.clear()
        return _TURNS[turn % len(_TURNS)]

    engine = ScriptedEngine(tokenizer, say, vocab_size=49152)
    async with engine, CaptureGateway(engine, ChatTemplate(tokenizer), CaptureSettings(listen=address)):
        logging.getLogger("fairbox.capture").info("listening on %s", address)
        await asyncio.Event().wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(_serve(sys.argv[1]))
