"""Turns of many formats as messages: thoughts, words and calls, and nothing of the marks around them."""

from __future__ import annotations

import pytest

from rollout.capture.turns import parse_turn
from rollout.tools import FORMATS

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"code": {"type": "string"}}}}}]
# A whole turn of each family as its template writes it: a thought, something said, and a call of `f`.
WHOLE = {
    "hermes": '<think>Why?</think>I look.\n<tool_call>\n{"name": "f", "arguments": {"code": "1"}}\n</tool_call>',
    "qwen3_coder": "<think>Why?</think>I look.\n<tool_call>\n<function=f>\n<parameter=code>\n1\n</parameter>\n"
    "</function>\n</tool_call>",
    "glm45": "<think>Why?</think>I look.<tool_call>f<arg_key>code</arg_key><arg_value>1</arg_value></tool_call>",
    "hunyuan3": "<think:opensource>Why?</think:opensource>I look.<tool_calls:opensource>\n<tool_call:opensource>f"
    "<tool_sep:opensource>\n<arg_key:opensource>code</arg_key:opensource>\n<arg_value:opensource>1"
    "</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
    "deepseek": "Why?</think>I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>"
    '{"code": "1"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_v32": 'Why?</think>I look.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n'
    '<｜DSML｜parameter name="code" string="true">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
    "kimi_k2": "<think>Why?</think>I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
    '<|tool_call_argument_begin|>{"code": "1"}<|tool_call_end|><|tool_calls_section_end|>',
    "kimi_k3": "Why?<|close|>think<|sep|><|open|>response<|sep|>I look.<|close|>response<|sep|><|open|>tools<|sep|>"
    '<|open|>call tool="f" index="1"<|sep|><|open|>argument key="code" type="string"<|sep|>1<|close|>argument<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
    "minimax_m2": 'Why?\n</think>\n\nI look.\n<minimax:tool_call>\n<invoke name="f">\n<parameter name="code">1'
    "</parameter>\n</invoke>\n</minimax:tool_call>",
    "minimax_m3": "<mm:think>Why?</mm:think>I look.M<tool_call>\n"
    'M<invoke name="f">M<code>1M</code>M</invoke>\nM</tool_call>'.replace("M<", "]<]minimax[>[<"),
    "gemma4": '<|channel>thought\nWhy?\n<channel|>I look.<|tool_call>call:f{code:<|"|>1<|"|>}<tool_call|>',
    "lfm2": '<think>Why?</think>I look.<|tool_call_start|>[f(code="1")]<|tool_call_end|>',
    "solar": "<|think|>Why?<|end|><|begin|>assistant<|content|>I look.<|tool_calls|><|tool_call:begin|>a1"
    '<|tool_call:name|>f<|tool_call:args|>{"code": "1"}<|tool_call:end|>',
    "muse": " to=self<|message|>Why?<|eom|><|start|>assistant to=user<|message|>I look.<|eom|><|start|>assistant to=f"
    '<|message|><atem:function_calls>\n<atem:invoke name="f">\n<atem:parameter name="code">1</atem:parameter>\n'
    "</atem:invoke>\n</atem:function_calls>",
    "minicpm5": '<think>\nWhy?\n</think>\n\nI look.\n<function name="f"><param name="code">1</param></function>',
    "tool_calls": '<think>Why?</think>I look.\n<tool_calls>[{"name": "f", "arguments": {"code": "1"}}]</tool_calls>',
    "granite3": '<think>Why?</think>I look.<|tool_call|>[{"name": "f", "arguments": {"code": "1"}}]',
    "nemotron2": 'Why?\n</think>\n\nI look.\n<TOOLCALL>[{"name": "f", "arguments": {"code": "1"}}]</TOOLCALL>',
    "gigachat3": '<think>Why?</think>I look.<|function_call|>{"name": "f", "arguments": {"code": "1"}}',
    "apertus": '<think>Why?</think>I look.<|tools_prefix|>[{"f": {"code": "1"}}]<|tools_suffix|>',
    "command_r7b": '<think>Why?</think>I look.<|START_ACTION|>[\n{"tool_call_id": "0", "tool_name": "f", "parameters": '
    '{"code": "1"}}\n]<|END_ACTION|>',
    "functionary31": '<think>Why?</think>I look.<function=f>{"code": "1"}</function>',
    "functionary32": '<think>Why?</think>>>>all\nI look.>>>f\n{"code": "1"}',
}


@pytest.mark.parametrize("name", WHOLE)
def test_thoughts_words_and_calls_of_each_format_are_taken_apart(name: str) -> None:
    message = parse_turn(WHOLE[name], FORMATS[name], TOOLS).message
    assert (message.reasoning, message.content) == ("Why?", "I look.")
    assert [(call.name, call.arguments) for call in message.calls] == [("f", '{"code": "1"}')]
