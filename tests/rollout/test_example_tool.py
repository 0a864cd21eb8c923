"""The example of a tool of one's own: it is loaded from a file, and finds what fits best."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.tool import SearchConfig, SearchTool
from fairbox.errors import ConfigError
from rollout.tools import ToolOutcome

TEXTS = [
    "The cat sat on the mat.",
    "Dogs and cats are pets; a cat is a pet, a dog too.",
    "Paris is the capital of France.",
    "The capital of Italy is Rome, and Rome was not built in a day.",
]


async def test_model_gets_the_best_passages(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    async with SearchTool(SearchConfig(str(corpus), top_k=2)) as tool:
        response = await tool.execute("t", {"query": "Capital of France?"})
        assert (response.outcome, response.text) == (ToolOutcome.OK, f"[1] {TEXTS[2]}\n\n[2] {TEXTS[3]}")
        assert (await tool.execute("t", {"query": "xyzzy"})).text == "[no passage has any of these words]"
        assert (await tool.execute("t", {"query": "?"})).outcome is ToolOutcome.BAD_ARGUMENTS


async def test_corpus_that_can_not_be_read_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl: .*No such file"):
        async with SearchTool(SearchConfig(str(tmp_path / "nowhere.jsonl"))):
            pass
