"""The chat templates of many models: what the page says of each, and calls answered as the template itself does.

Those whose licence keeps them out are in the folder FAIRBOX_TEMPLATES; `make test-templates` fetches them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollout.tokens import CallRef, ChatTemplate, ChatTemplateError, HubTokenizer, Rewrites
from rollout.tokens.alignment import common_length
from rollout.tokens.conversation import opened_thinking
from rollout.tokens.probe import Severity
from rollout.tools import ToolCall
from rollout.tools.formats.choice import template_format
from tests.rollout.corpus import PAGE, conversation, row_of, templates, tokenizer_of

TEMPLATES = templates()
RUN = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "Runs code.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "Code."}},
            "required": ["code"],
        },
    },
}


@pytest.fixture(scope="session")
def plain(model_dir: Path) -> HubTokenizer:
    return HubTokenizer(model_dir)


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_the_page_says_is_so(plain: HubTokenizer, name: str) -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert row_of(plain, name, TEMPLATES[name]).line() in lines


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_are_parsed_and_answered_as_the_template_writes_them(plain: HubTokenizer, name: str) -> None:
    tokenizer = tokenizer_of(plain, name, TEMPLATES[name])
    try:
        chat = ChatTemplate(tokenizer, rewrites=Rewrites.KEEP)
    except ChatTemplateError as error:
        pytest.skip(f"it can't be used: {error}")
    if not chat.conversation.has_tools:
        pytest.skip("it has no place for tools, so its prompt asks for another format")
    if chat.findings.severity is not Severity.NONE:
        pytest.skip("it is not append-only")
    form = template_format(chat)
    if form is None:
        pytest.skip("no format reads its calls")
    made = _answered(tokenizer, chat, conversation("run", 2)) or _answered(tokenizer, chat, conversation("run", 1))
    if made is None:
        pytest.skip("it takes no calls as data, or leaves them out")
    messages, said, whole = made
    calls = form.parse(said, [RUN])
    wanted = [call["function"] for call in messages[1]["tool_calls"]]
    assert [(call.name, call.arguments) for call in calls if isinstance(call, ToolCall)] == [
        (call["name"], json.loads(call["arguments"]) if isinstance(call["arguments"], str) else call["arguments"])
        for call in wanted
    ]
    refs = [CallRef("run", call.ref.call_id or f"call{index:05d}") for index, call in enumerate(calls)]
    between = chat.conversation.between([message["content"] for message in messages[2:]], refs)
    if refs[0].call_id != "call00000":  # the answers bear the ids that the template wrote
        for message, ref in zip(messages[2:], refs, strict=True):
            message["tool_call_id"] = ref.call_id
        whole = tokenizer.render(messages, [RUN], generate=True)
    assert whole.endswith(between.removeprefix(chat.conversation.end))


def _answered(
    tokenizer: HubTokenizer, chat: ChatTemplate, messages: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], str, str] | None:
    """The messages, what the template writes behind the prompt, and all of it; None where a call is left out."""
    if chat.conversation.style.arguments_as_text:
        for call in messages[1]["tool_calls"]:
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    try:
        whole = tokenizer.render(messages, [RUN], generate=True)
        prompt = tokenizer.render(messages[:1], [RUN], generate=True)
    except ChatTemplateError:
        return None
    if any(f"print({number})" not in whole for number, _ in enumerate(messages[2:])):
        return None
    prompt = prompt.removesuffix(opened_thinking(prompt))
    return messages, whole[common_length(prompt, whole) :], whole
