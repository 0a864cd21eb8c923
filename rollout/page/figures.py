"""Figures of a step or a run, counted from the rows of its dump; and what is worth a look in them.

Invariants: a figure that `summary.json` has too is the same number, to the last bit; a broken line is counted as such
and is in no other figure. Held are some numbers of each row, no text but those of `RunFindings`, which are bounded.
"""

from __future__ import annotations

import heapq
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollout.dump import TRAINER
from rollout.metrics import PHASES
from rollout.page.agreement import PartAgreement
from rollout.page.bodies import finite
from rollout.rewards.agreement import is_case
from rollout.viewer.rows.groups import scores_of
from rollout.viewer.rows.summary import RowSummary

_TOP = 10
"""Surprising tokens, slow calls and kinds of failure that are kept."""
_MOST_KINDS = 5000
"""Kinds of failed calls that are told apart; a model may fail in any number of ways."""
_MOST_EXAMPLES = 20
"""Rows that are named for a kind of failure."""
_TELLING_CHARS = 120
_DIGITS = re.compile(r"0x[0-9a-fA-F]+|\d+")


class DumpFigures:
    """`add` each row; `facts()` is what the page and `summary.json` show."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter(finished=0, broken=0, masked=0, retried=0, scored=0, turns=0)
        self._tokens: Counter[str] = Counter(prompt=0, sampled=0, tool=0)
        self._by: dict[str, Counter[str]] = {name: Counter() for name in ("stops", "causes", "tool_calls")}
        self._masked: Counter[tuple[str, bool]] = Counter()
        self._calling = 0
        self._phases = dict.fromkeys(PHASES, 0.0)
        self._scores: list[float] = []
        self._parts: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, row: RowSummary, record: Mapping[str, Any]) -> None:
        """Counts a row. `record` is empty for a broken line."""
        if row.problem:
            self._counts["broken"] += 1
            return
        sampled = row.sampled_tokens or 0
        counts = {"finished": 1, "masked": row.masked, "retried": (row.attempts or 1) > 1, "turns": row.turns or 0}
        self._counts.update(counts)
        self._tokens.update(
            {"prompt": row.prompt_tokens or 0, "sampled": sampled, "tool": (row.response_tokens or 0) - sampled}
        )
        self._by["stops"][row.stop_reason] += 1
        self._by["causes"][row.cause] += 1
        self._by["tool_calls"].update(row.outcomes)
        self._calling += bool(row.outcomes)
        timings = record.get("timings")
        for phase, key in PHASES.items():
            seconds = timings.get(key) if isinstance(timings, dict) else None
            self._phases[phase] += finite(seconds) or 0.0
        if row.masked:
            self._masked[row.cause, bool(row.outcomes)] += 1
        elif scores := scores_of([row]):
            self._counts["scored"] += 1
            self._scores += scores
            parts = record.get("reward_parts")
            for name, value in parts.items() if isinstance(parts, dict) else ():
                if (known := finite(value)) is not None and not is_case(name):
                    self._parts[name].append(known)

    def facts(self) -> dict[str, Any]:
        """Figures by the names of `summary.json`, and some that it has not."""
        count = self._counts["finished"]
        masked = [{"cause": cause, "called": called, "rows": n} for (cause, called), n in self._masked.items()]
        return {
            **self._counts,
            "score_mean": statistics.fmean(self._scores) if self._scores else None,
            "reward_parts": {name: statistics.fmean(values) for name, values in self._parts.items()},
            **{name: dict(counter.most_common()) for name, counter in self._by.items()},
            "tokens": dict(self._tokens),
            "phase_seconds": self._phases,
            "masked_by": masked,
            "calling": self._calling,
            "silent": count - self._calling,
        }


@dataclass
class _Kinds:
    """Rows by a kind, such as that of a failure. Kinds beyond `_MOST_KINDS` are left out."""

    truncated: bool = False
    _counts: Counter[tuple[str, ...]] = field(default_factory=Counter)
    _rows: dict[tuple[str, ...], list[int]] = field(default_factory=dict)

    def add(self, kind: tuple[str, ...], number: int) -> None:
        """Counts one; the first `_MOST_EXAMPLES` rows of a kind are kept."""
        if kind not in self._rows and len(self._rows) >= _MOST_KINDS:
            self.truncated = True
            return
        self._counts[kind] += 1
        rows = self._rows.setdefault(kind, [])
        if len(rows) < _MOST_EXAMPLES and number not in rows:
            rows.append(number)

    def most(self) -> list[tuple[tuple[str, ...], int, list[int]]]:
        """The most frequent: kind, count, rows."""
        return [(kind, count, self._rows[kind]) for kind, count in self._counts.most_common(_TOP)]


@dataclass
class RunFindings:
    """`add` each row with its number in the page; `facts()` names rows by it."""

    _tokens: list[tuple[float, int, int, int]] = field(default_factory=list)
    _gaps: list[tuple[float, int, int, int, float]] = field(default_factory=list)
    _slow: list[tuple[float, int, int, str, str]] = field(default_factory=list)
    _failures: _Kinds = field(default_factory=_Kinds)
    _masked: _Kinds = field(default_factory=_Kinds)
    _rewards: PartAgreement = field(default_factory=PartAgreement)

    def add(self, number: int, row: RowSummary, record: Mapping[str, Any]) -> None:
        """Looks at one row."""
        if row.masked:
            self._masked.add((row.cause[:40], _telling_line(record.get("error"))), number)
        given = record.get("reward_parts")
        if isinstance(given, dict):
            for score in scores_of([row]):
                self._rewards.add(number, row.uid[:80] or str(row.prompt_key), score, given)
        parts = record.get("earlier")
        offset = 0
        for part in [*(parts if isinstance(parts, list) else ()), record]:
            if isinstance(part, dict):
                offset += self._surprises(number, part, offset)
        calls = record.get("tool_calls")
        for position, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict):
                self._call(number, position, call)

    def facts(self) -> dict[str, Any]:
        """The lists, the first is the worst."""
        tokens = [{"logprob": -key, "row": row, "at": at, "id": id} for key, row, at, id in sorted(self._tokens)[::-1]]
        slow = [
            {"seconds": seconds, "row": row, "call": call, "name": name, "outcome": outcome}
            for seconds, row, call, name, outcome in sorted(self._slow)[::-1]
        ]
        failures = [
            {"name": kind[0], "outcome": kind[1], "text": kind[2], "calls": count, "rows": rows}
            for kind, count, rows in self._failures.most()
        ]
        masked = [
            {"cause": kind[0], "text": kind[1], "count": count, "rows": rows}
            for kind, count, rows in self._masked.most()
        ]
        gaps = [{"gap": gap, "row": row, "at": at, "id": id} for _, row, at, id, gap in sorted(self._gaps)[::-1]]
        lists: dict[str, Any] = {"tokens": tokens, "gaps": gaps, "slow": slow, "failures": failures, "masked": masked}
        lists["rewards"] = self._rewards.facts()
        return {**lists, "truncated": any(each.truncated for each in (self._failures, self._masked, self._rewards))}

    def _surprises(self, number: int, part: Mapping[str, Any], offset: int) -> int:
        """Keeps the least likely sampled tokens, whose logprobs are the lowest: others have 0. Returns the tokens."""
        prompt, ids, logprobs = (part.get(key) for key in ("prompt_ids", "response_ids", "logprobs"))
        if not (isinstance(prompt, list) and isinstance(ids, list) and isinstance(logprobs, list)):
            return 0
        try:
            bound = -self._tokens[0][0] if len(self._tokens) == _TOP else 0.0
            if len(ids) == len(logprobs) and min(logprobs, default=0.0) < bound:
                for at in heapq.nsmallest(_TOP, range(len(ids)), key=logprobs.__getitem__):
                    logprob = finite(logprobs[at])
                    if logprob is not None and logprob < 0.0 and isinstance(ids[at], int):
                        _keep(self._tokens, (-logprob, number, offset + len(prompt) + at, ids[at]))
            self._disagreements(number, part.get(TRAINER), logprobs, ids, offset + len(prompt))
        except (TypeError, OverflowError):  # logprobs that are no numbers, or none that a float holds
            return len(prompt) + len(ids)
        return len(prompt) + len(ids)

    def _disagreements(self, number: int, trainer: Any, logprobs: list[Any], ids: list[Any], offset: int) -> None:
        """Keeps the tokens to which the trainer gave the most different logprobs."""
        if not isinstance(trainer, list) or not len(trainer) == len(logprobs) == len(ids):
            return
        gaps = [0.0 if theirs is None else theirs - ours for theirs, ours in zip(trainer, logprobs, strict=True)]
        far = list(map(abs, gaps))
        if max(far, default=0.0) <= (self._gaps[0][0] if len(self._gaps) == _TOP else 0.0):
            return
        for at in heapq.nlargest(_TOP, range(len(far)), key=far.__getitem__):
            if finite(far[at]) and isinstance(ids[at], int):
                _keep(self._gaps, (far[at], number, offset + at, ids[at], gaps[at]))

    def _call(self, number: int, position: int, call: Mapping[str, Any]) -> None:
        name, outcome = str(call.get("name") or "")[:80], str(call.get("outcome") or "")[:40]
        seconds = sum(finite(call.get(key)) or 0.0 for key in ("wait_s", "run_s"))
        if seconds > 0:
            _keep(self._slow, (seconds, number, position, name, outcome))
        if outcome and outcome != "ok":
            self._failures.add((name, outcome, _telling_line(call.get("text"))), number)


def _keep(heap: list[Any], item: Any) -> None:
    """Keeps the `_TOP` largest."""
    if len(heap) < _TOP:
        heapq.heappush(heap, item)
    elif item > heap[0]:
        heapq.heapreplace(heap, item)


def _telling_line(text: Any) -> str:
    """The last line of an answer that says something, numbers left out: where a traceback has its error."""
    end = text[-4000:] if isinstance(text, str) else ""
    lines = [line.strip() for line in end.splitlines() if any(map(str.isalnum, line))]
    return _DIGITS.sub("#", lines[-1])[:_TELLING_CHARS] if lines else ""
