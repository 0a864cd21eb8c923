"""Ranks texts by Okapi BM25. Pure, and small enough to be read: an inverted index in memory.

A document's score for a query is the sum over the query's different words w of
`idf(w) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * length / mean length))`, with `idf(w) = ln(1 + (N - n + 0.5) /
(n + 0.5))`, tf how often w is in the document, n how many of the N documents have it (Robertson and Zaragoza, The
Probabilistic Relevance Framework, 2009; the `1 +` keeps frequent words from counting negatively, as in Lucene).
"""

from __future__ import annotations

import heapq
import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable

__all__ = ["Bm25Index", "words"]

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return _WORD.findall(text.lower())


class Bm25Index:
    """An index of the texts that it is given, in their order."""

    def __init__(self, texts: Iterable[str], *, k1: float = 1.5, b: float = 0.75) -> None:
        self._k1 = k1
        self._b = b
        self._lengths = array("L")
        self._postings: dict[str, tuple[array[int], array[int]]] = {}
        """Word -> (documents that have it, how often each does)."""
        for number, text in enumerate(texts):
            found = words(text)
            self._lengths.append(len(found))
            for word, count in Counter(found).items():
                documents, counts = self._postings.setdefault(word, (array("L"), array("L")))
                documents.append(number)
                counts.append(count)
        self._mean_length = sum(self._lengths) / len(self._lengths) if self._lengths else 0.0

    def __len__(self) -> int:
        return len(self._lengths)

    def search(self, query: str, count: int) -> list[tuple[int, float]]:
        """(document, score) of the best, best first; equal ones in their order. Only documents with a word of it."""
        scores: dict[int, float] = {}
        for word in dict.fromkeys(words(query)):
            documents, counts = self._postings.get(word, ((), ()))
            weight = math.log(1 + (len(self) - len(documents) + 0.5) / (len(documents) + 0.5))
            for document, times in zip(documents, counts, strict=True):
                share = self._lengths[document] / self._mean_length
                part = weight * times * (self._k1 + 1) / (times + self._k1 * (1 - self._b + self._b * share))
                scores[document] = scores.get(document, 0.0) + part
        return heapq.nsmallest(count, scores.items(), key=lambda item: (-item[1], item[0]))
