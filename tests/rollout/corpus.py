"""Looks what fairbox makes of each chat template of llama.cpp's collection, and writes docs/reference/templates.md.

`python -m tests.rollout.corpus FOLDER` writes the page from the templates of a folder. A template is tried over the
vocabulary of SmolLM2 with its family's own tokens, and without any setting.
"""

from __future__ import annotations

import copy
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Regex, pre_tokenizers
from transformers import AddedToken

from rollout.engines.model_store import find_model
from rollout.tokens import ChatTemplate, ChatTemplateError, HubTokenizer, Rewrites
from rollout.tokens.probe import Severity, probe
from rollout.tools.formats.choice import template_format
from tests.rollout.families import FOLDER, SPLIT

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "templates.md"
_MARK = re.compile(
    r"<[|｜][^|｜<>\n'\"{}]{1,40}[|｜]>|<\|[a-zA-Z_:]{1,30}>|<[a-zA-Z_:]{1,30}\|>|\[/?[A-Z_]{3,20}\]|\[gMASK\]"
    r"|</?(?:think|tool_call|tool_response|tools|s|bos|eos|sop|sep|im_[a-z]+|seed:[a-z_]+)>|<(?:start|end)_of_turn>"
    r"|\]~[a-z!]*\[|\[e~\[|\]<\][^\[]*\[>\[|</?minimax:tool_call>|<SPECIAL_[0-9]+>|<(?:end|beginning)_of_sentence>"
)
_PLAIN = re.compile(r"</?(?:think|tool_call|tool_response|tools)>")
"""Tokens of their own that are not special."""
_DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")
_LLAMA = ("<|begin_of_text|>", "<|eot_id|>")
_BEGIN_AND_END = {
    "Mistral": ("<s>", "</s>"),
    "Ministral": ("<s>", "</s>"),
    "Devstral": ("<s>", "</s>"),
    "DeepSeek-R1": _DEEPSEEK,
    "DeepSeek-V3.1": _DEEPSEEK,
    "deepseek-r1": _DEEPSEEK,
    "Llama-3.1-8B-Instruct": _LLAMA,
    "firefunction": _LLAMA,
    "functionary-medium-v3.2": _LLAMA,
    "Hermes": ("<|begin_of_text|>", "<|im_end|>"),
    "Phi-3.5": ("<s>", "<|end|>"),
    "gemma-2": ("<bos>", "<end_of_turn>"),
}
"""A part of a name -> `bos_token` and `eos_token`, which these templates take from the tokenizer."""
_ADDED = {
    "LFM2": ("<|tool_call_start|>",),
    "granite-3.3": ("<|tool_call|>",),
    "Kimi-K2": ("<|tool_call_begin|>",),
    "Laguna": ("<assistant>", "</assistant>"),
    "Hy3": ("<｜hy_eos:opensource｜>", "<｜hy_User:opensource｜>", "<｜hy_Assistant:opensource｜>"),
}
"""A part of a name -> special tokens that the template does not name in one piece."""
_OPTIONS = ({"enable_thinking": True}, {"thinking": True}, {"keep_past_thinking": True}, {"preserve_thinking": True})
"""Variables by which templates are told that the model thinks, and that its thinking stays."""


@dataclass(frozen=True, slots=True)
class Row:
    """One template, and the outcome of trying it."""

    name: str
    severity: str
    """As `rollout.tokens.probe.Severity` names it; empty: the template can't be used."""
    style: str
    """Form in which turns are given to the template."""
    tool_format: str
    """Empty: none reads its calls."""
    problem: str
    """Why it can't be used; else empty."""
    options: str = ""
    """The value of `chat.options` that makes it append-only, if it is not and one of the usual ones does."""

    def line(self) -> str:
        """The row of the page."""
        if self.problem:
            return f"| {self.name} | can't be used: {self.problem} | | |"
        exact = "yes" if self.severity == "NONE" else f"no: `{self.severity.lower()}`"
        if self.options:
            exact = f"with `chat.options={self.options}`"
        return f"| {self.name} | {exact} | {self.style} | {f'`{self.tool_format}`' if self.tool_format else 'none'} |"


def templates() -> dict[str, str]:
    """The templates at hand by name: those that are kept here, and those of the folder FAIRBOX_TEMPLATES."""
    folders = (FOLDER, Path(os.environ.get("FAIRBOX_TEMPLATES") or FOLDER))
    files = {file.stem: file for folder in folders for file in sorted(folder.glob("*.jinja"))}
    return {name: file.read_text(encoding="utf-8") for name, file in sorted(files.items())}


def tokenizer_of(plain: HubTokenizer, name: str, template: str) -> HubTokenizer:
    """The tokenizer under a template, with the tokens that it names."""
    ends = _named(_BEGIN_AND_END, name)
    added = {*_MARK.findall(template), *ends, *_named(_ADDED, name)}
    special = {mark for mark in added if not _PLAIN.fullmatch(mark)}
    made = copy.copy(plain)
    made._tokenizer = inner = copy.deepcopy(plain._tokenizer)
    inner.add_tokens([AddedToken(m, special=True, normalized=False) for m in sorted(special)], special_tokens=True)
    inner.add_tokens([AddedToken(m, special=False, normalized=False) for m in sorted(added - special)])
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    inner.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made._template = template
    made._options = dict(zip(("bos_token", "eos_token"), ends, strict=False))
    made._special = {token.content: i for i, token in inner.added_tokens_decoder.items() if token.content in special}
    return made


def row_of(plain: HubTokenizer, name: str, template: str) -> Row:
    """The row of one template."""
    tokenizer = tokenizer_of(plain, name, template)
    try:
        found = probe(tokenizer)
        chat = ChatTemplate(tokenizer, rewrites=Rewrites.KEEP)
    except ChatTemplateError as error:
        return Row(name, "", "", "", str(error).splitlines()[0].replace("|", "\\|")[:90])
    options = "" if found.severity is Severity.NONE else _helping(tokenizer)
    style = found.conversation.style
    given = "text" if not style.calls else "`tool_calls`, `reasoning_content`" if style.reasoning else "`tool_calls`"
    form = template_format(chat)
    return Row(name, found.severity.name, given, "" if form is None else form.name, "", options)


def _helping(tokenizer: HubTokenizer) -> str:
    """The first of the usual options with which the template is append-only; empty: none."""
    for options in _OPTIONS:
        tried = copy.copy(tokenizer)
        tried._options = {**tokenizer._options, **options}
        try:
            if probe(tried).severity is Severity.NONE:
                return json.dumps(options)
        except ChatTemplateError:
            continue
    return ""


def page(rows: list[Row]) -> Iterator[str]:
    """The lines of docs/reference/templates.md."""
    usable = [row for row in rows if row.tool_format]
    exact = [row for row in usable if row.severity == "NONE"]
    helped = [row for row in usable if row.options]
    kept = len(usable) - len(exact) - len(helped)
    yield from (
        "# Chat templates of models",
        "",
        "<!-- Written by `make test-templates`. -->",
        "",
        f"The {len(rows)} templates of llama.cpp's collection (`llama-cpp-python` 0.3.36), over the vocabulary of",
        f"SmolLM2 with each family's own tokens. {len(exact)} work without any setting, {len(helped)} more with one of",
        f"`chat.options`, and {kept} with `chat.rewrites=keep`. [Chat templates](../how-to/chat-templates.md) explains",
        "that, and the words of the second column. Where calls can be given as data, tests compare calls and their",
        "answers with what the template itself writes. Check your model all the same: `fairbox check-template FOLDER`.",
        "",
        "| template | append-only | turns are given as | `tool_format=auto` |",
        "| --- | --- | --- | --- |",
    )
    yield from (row.line() for row in rows)


def _named(table: Mapping[str, tuple[str, ...]], name: str) -> tuple[str, ...]:
    return next((value for part, value in table.items() if part in name), ())


def main(argv: list[str]) -> None:
    """Writes the page."""
    os.environ["FAIRBOX_TEMPLATES"] = argv[0]
    plain = HubTokenizer(find_model("smollm2"))
    rows = [row_of(plain, name, template) for name, template in templates().items()]
    PAGE.write_text("\n".join(page(rows)) + "\n", encoding="utf-8")


def conversation(name: str, calls: int) -> list[dict[str, Any]]:
    """Messages of a question, calls of `name` as data, and their answers."""
    ids = [f"call{index:05d}" for index in range(calls)]
    made = [
        {"type": "function", "id": call_id, "function": {"name": name, "arguments": {"code": f"print({index})"}}}
        for index, call_id in enumerate(ids)
    ]
    answers = [{"role": "tool", "content": f"{n}4", "name": name, "tool_call_id": i} for n, i in enumerate(ids)]
    question = {"role": "user", "content": "What is 6 * 7?"}
    return [question, {"role": "assistant", "content": "", "tool_calls": made}, *answers]


if __name__ == "__main__":
    main(sys.argv[1:])
