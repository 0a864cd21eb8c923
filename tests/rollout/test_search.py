"""BM25, and the tool that searches a corpus with it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fairbox.errors import ConfigError
from rollout.tools import ToolOutcome
from rollout.tools.bm25 import Bm25Index, words
from rollout.tools.search import SearchConfig, SearchTool

TEXTS = [
    "The cat sat on the mat.",
    "Dogs and cats are pets; a cat is a pet, a dog too.",
    "Paris is the capital of France.",
    "The capital of Italy is Rome, and Rome was not built in a day.",
]


def formula(query: str, number: int, k1: float = 1.5, b: float = 0.75) -> float:
    """The sum of the module's docstring, written plainly."""
    documents = [words(text) for text in TEXTS]
    mean = sum(map(len, documents)) / len(documents)
    total = 0.0
    for word in set(words(query)):
        having = sum(word in document for document in documents)
        times = documents[number].count(word)
        idf = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
        total += idf * times * (k1 + 1) / (times + k1 * (1 - b + b * len(documents[number]) / mean))
    return total


@pytest.mark.parametrize("query", ["cat", "the capital", "capital capital of Rome", "a pet"])
def test_scores_are_those_of_the_formula_and_sorted(query: str) -> None:
    found = Bm25Index(TEXTS).search(query, 10)
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    assert {number for number, _ in found} == {n for n in range(4) if formula(query, n)}
    for number, score in found:
        assert score == pytest.approx(formula(query, number))


def test_only_documents_with_a_word_are_found_and_never_more_than_asked_for() -> None:
    index = Bm25Index(TEXTS)
    assert len(index.search("the", 1)) == 1
    assert index.search("xyzzy", 3) == index.search("", 3) == Bm25Index([]).search("cat", 3) == []
    assert [number for number, _ in Bm25Index(["same", "same", "same"]).search("SAME", 2)] == [0, 1]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    rows: list[dict[str, Any]] = [{"text": text} for text in TEXTS]
    rows[2]["title"] = "France"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return path


async def test_model_gets_the_best_passages(corpus: Path) -> None:
    async with SearchTool(SearchConfig(str(corpus), top_k=2)) as tool:
        response = await tool.execute("t", {"query": "Capital of France?"})
        assert response.outcome is ToolOutcome.OK
        assert response.text == f"[1] France\n{TEXTS[2]}\n\n[2] {TEXTS[3]}"
        assert (await tool.execute("t", {"query": "xyzzy"})).text == "[no passage has any of these words]"
        for query in ("", "x" * 1001):
            assert (await tool.execute("t", {"query": query})).outcome is ToolOutcome.BAD_ARGUMENTS
        await tool.branch("t", ["u"])
        await tool.release("t")
    async with SearchTool(SearchConfig(str(corpus), max_output_chars=16)) as tool:
        response = await tool.execute("t", {"query": "France"})
        assert (response.text, response.truncated) == ("[1] France\nParis\n[... cut: 42 bytes in all ...]", True)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[]", ":1: must be an object"),
        ("{", ":1: is not JSON"),
        ('{"body": "x"}', ":1: text is 'None', must be a text"),
        ('{"text": "x", "title": 3}', ":1: title is '3', must be a text"),
        ('{"text": "x"}\n{"text": "y"}', "has more lines than max_documents, which is 1"),
    ],
)
async def test_corpus_that_is_not_in_order_is_refused_with_its_line(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(line)
    with pytest.raises(ConfigError, match=problem):
        async with SearchTool(SearchConfig(str(path), max_documents=1)):
            pass


async def test_settings_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="top_k is 0, must be at least 1"):
        SearchTool(SearchConfig("x", top_k=0))
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl: No such file"):
        async with SearchTool(SearchConfig(str(tmp_path / "nowhere.jsonl"))):
            pass
