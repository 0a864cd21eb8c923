"""Figures of one trajectory, and of all trajectories of a step or a run: tokens, turns, calls, times, search. Pure.

Each is counted once, here: the closing table, Prometheus, dumps and trainers read the same. The names of a trajectory's
tokens and turns are those of the code search projects. Two things differ: calls are counted (there,
`avg_tool_calls_per_step` is always 0), and nothing is counted of a trajectory that did nothing.

| figure | meaning |
| --- | --- |
| `files_read` | files that commands which show files were given: `cat`, `head`, `tail`, `sed`, `nl`, ... |
| `duplicate_command_rate` | of its calls, those that were made before with the same arguments |
| `hit` | 1 where a file that is right was seen, in a command or an answer; only with the row's truth |
| `first_hit_turn` | the first turn in which one was; only where there is one |

Commands are read as words, not run: a file that a glob or a pipe names is not counted.

Invariant: a trajectory that is masked is counted as such and is in no mean; a figure that nothing was measured for is
left out, except for the shares of stop reasons and the counts, so that a plot has no false zeros.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from executor_service import Cause
from rollout.loop.limits import StopReason
from rollout.loop.results import ToolCallRecord, TrajectoryResult
from rollout.rewards.agreement import CaseAgreement, is_case
from rollout.rewards.base import NotScored, Sample
from rollout.rewards.localization.truth import target_files
from rollout.tools.base import ToolOutcome

ROOT = "/testbed"
"""Folder where workspaces are mounted."""
_SHOWS = frozenset(("awk", "bat", "cat", "head", "less", "more", "nl", "sed", "tac", "tail", "view"))
_SEPARATOR = re.compile(r"[|;&\n()]+")
_WORD = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")
_PATH = re.compile(r"(?=.*[^.])[\w./@+-]*[./][\w@+-]+")
"""A word with a dot or a slash in it that is more than dots: `src/a.py`, `a.py`, `src/Makefile`; no globs."""
_MOST_PLACES = 100
"""Occurrences of a path in one text that are looked at."""
PHASES = {
    "engine_queue": "queue_s",
    "engine": "engine_s",
    "tool_wait": "tool_wait_s",
    "tool_run": "tool_run_s",
    "score": "score_s",
}
"""Phase -> field of PhaseTimes."""
_SCORE = "reward/avg_raw_reward"
_NO_TOOL = (ToolOutcome.UNKNOWN_TOOL, ToolOutcome.MALFORMED)


def _search_metrics(calls: Sequence[ToolCallRecord], row: Mapping[str, Any]) -> dict[str, float]:
    """The figures of the table above."""
    figures = {"files_read": float(len(files_read(calls))), "duplicate_command_rate": _duplicates(calls)}
    try:
        truth = target_files(Sample(text="", ground_truth="", row=row))
    except NotScored:
        return figures
    turn = first_hit(calls, truth)
    figures["hit"] = float(turn is not None)
    return figures if turn is None else figures | {"first_hit_turn": float(turn)}


def files_read(calls: Iterable[ToolCallRecord]) -> frozenset[str]:
    """Paths, relative to the workspace, of files that were shown."""
    found: set[str] = set()
    for call in calls:
        command = (call.arguments or {}).get("command")
        if isinstance(command, str) and call.outcome.ran:
            for part in _SEPARATOR.split(command):
                words = [word.strip("'\"") for word in _WORD.findall(part)]
                if words and words[0] in _SHOWS:
                    found.update(_relative(word) for word in words[1:] if _PATH.fullmatch(word))
    return frozenset(found)


def first_hit(calls: Iterable[ToolCallRecord], files: Iterable[str]) -> int | None:
    """The first turn in which a call or its answer names one of the files; None: none does."""
    files = tuple(files)
    for call in sorted(calls, key=lambda call: call.turn):
        if any(_names(text, file) for file in files for text in (call.text, call.raw)):
            return call.turn
    return None


def _duplicates(calls: Sequence[ToolCallRecord]) -> float:
    seen = {(call.name, json.dumps(call.arguments, sort_keys=True, default=str)) for call in calls}
    return 1 - len(seen) / len(calls) if calls else 0.0


def _relative(path: str) -> str:
    return path.removeprefix(ROOT + "/").removeprefix("./")


def _names(text: str, path: str) -> bool:
    """Says whether a text has the path whole: not as the end of a longer one, nor the beginning of a longer name."""
    position = text.find(path) if path else -1
    for _ in range(_MOST_PLACES):
        if position < 0:
            return False
        end = position + len(path)
        before, after = text[max(0, position - len(ROOT) - 1) : position], text[end : end + 1]
        begins = not before or before.endswith(ROOT + "/") or _ends_a_word(before.removesuffix("./"))
        if begins and not (after.isalnum() or after == "_"):
            return True
        position = text.find(path, position + 1)
    return False


def _ends_a_word(before: str) -> bool:
    return not before or not (before[-1].isalnum() or before[-1] in "_./-")


def trajectory_metrics(result: TrajectoryResult, row: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Every figure by its name. `row` is the task's; some figures of the search need its truth.

    A step is a turn of the assistant. The prompt's tokens are those that the last turn was given, of each part; the
    seconds are those on the wall, waits included.
    """
    parts = [part.turns for part in result.parts]
    response = sum(len(turn) for turns in parts for turn in turns)
    prompt = sum(turns[-1].start for turns in parts if turns)
    calls = len(result.tool_calls)
    return {
        "tokens": float(prompt + response),
        "steps": float(result.turns),
        "avg_tool_calls_per_step": _per(calls, result.turns),
        "wall_clock_duration": result.times.total_s,
        "total_prompt_tokens": float(prompt),
        "total_response_tokens": float(response),
        "avg_prompt_tokens_per_step": _per(prompt, result.turns),
        "avg_response_tokens_per_step": _per(response, result.turns),
        "num_turns": float(result.turns),
        "num_tool_calls": float(calls),
        "num_tool_calls_per_turn": _per(calls, result.turns),
        **_search_metrics(result.tool_calls, row or {}),
    }


def _per(count: int, turns: int) -> float:
    return count / turns if turns else 0.0


class RolloutMetrics:
    """`add` each trajectory of a step or a run; `flat()` is what trainers log, the attributes are sums over all, masked
    ones included. It holds some floats of each, and neither tokens nor text."""

    def __init__(self) -> None:
        self.trajectories = self.masked = self.turns = 0
        self.retried = 0
        """Trajectories that took more than one attempt."""
        self.unscored = 0
        """Masked trajectories that were played, but that nothing could score."""
        self.stops: Counter[StopReason] = Counter()
        self.causes: Counter[Cause] = Counter()
        self.outcomes: Counter[ToolOutcome] = Counter()
        """Tool calls by outcome."""
        self.tokens: Counter[str] = Counter(prompt=0, sampled=0, tool=0)
        self.phase_s: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        """Seconds by phase; calls side by side add up."""
        self._scored_stops: Counter[StopReason] = Counter()
        self._tokens: list[int] = []
        """Sampled and tool tokens of each trajectory that is not masked."""
        self._turn_tokens: list[int] = []
        self._rewards: list[float | None] = []
        """Beside `_tokens`; None of one that nobody has scored yet."""
        self.tests = CaseAgreement()
        """Tests of programming problems, if rewards have a part for each."""
        self._means: defaultdict[str, list[float]] = defaultdict(list)
        self._times: defaultdict[str, list[float]] = defaultdict(list)
        self._tools: defaultdict[str, _ToolFigures] = defaultdict(_ToolFigures)

    @property
    def scored(self) -> int:
        """Trajectories with a reward."""
        return self.trajectories - self.masked

    @property
    def mean_score(self) -> float | None:
        """None when nothing was scored."""
        scores = self._means.get(_SCORE)
        return statistics.fmean(scores) if scores else None

    @property
    def mean_parts(self) -> dict[str, float]:
        """Part of the rewards -> its mean over the trajectories that have it."""
        parts = [name for name in self._means if name.startswith("reward/") and name != _SCORE]
        return {name.removeprefix("reward/"): statistics.fmean(self._means[name]) for name in parts}

    def add(self, result: TrajectoryResult, metrics: Mapping[str, float] | None = None) -> None:
        """`metrics` are the trajectory's own (`trajectory_metrics`)."""
        self._sum_up(result)
        if result.masked:
            return
        self._scored_stops[result.stop_reason] += 1
        self._tokens.append(sum(len(part.response_ids) for part in result.parts))
        self._turn_tokens += (len(turn) for part in result.parts for turn in part.turns)
        self._rewards.append(None if result.reward is None else result.reward.value)
        if result.reward is not None:
            parts = {name: value for name, value in result.reward.parts.items() if not is_case(name)}
            self._add_means("reward/", {"avg_raw_reward": result.reward.value, **parts})
            self.tests.add(result.uid, result.reward.parts)
        self._add_means("metrics/", metrics or {})
        times = _phases(result)
        # Parallel calls add up in the phases, which may so be longer than the wall: nothing is left for others then.
        waits = sum(seconds for phase, seconds in times.items() if phase != "score")
        times |= {"total": result.times.total_s, "other": max(0.0, result.times.total_s - waits)}
        for phase, seconds in times.items():
            self._times[phase].append(seconds)
        for call in result.tool_calls:
            known = call.name and call.outcome not in _NO_TOOL  # a model may make up any number of names
            self._tools[call.name if known else "unknown"].add(call.outcome, call.run_s)

    def _sum_up(self, result: TrajectoryResult) -> None:
        self.trajectories += 1
        self.masked += result.masked
        self.unscored += result.unscored
        self.retried += result.attempts > 1
        self.turns += result.turns
        self.stops[result.stop_reason] += 1
        self.causes[result.cause] += 1
        self.outcomes.update(call.outcome for call in result.tool_calls)
        sampled = sum(result.trajectory.response_mask)
        self.tokens["prompt"] += len(result.trajectory.prompt_ids)
        self.tokens["sampled"] += sampled
        self.tokens["tool"] += len(result.trajectory.response_ids) - sampled
        for phase, seconds in _phases(result).items():
            self.phase_s[phase] += seconds

    def _add_means(self, prefix: str, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._means[prefix + name].append(value)

    def flat(self) -> dict[str, float]:
        """Names and values; docs/reference/localization.md says what each means."""
        count = len(self._tokens)
        figures: dict[str, float] = {
            "generate/num_trajectories": self.trajectories,
            "generate/num_masked": self.masked,
            "generate/num_errors": self.causes[Cause.INFRA],
            "generate/num_timeouts": self._scored_stops[StopReason.TOOL_TIME],
            "generate/num_retried": self.retried,
            **{f"stop/{reason}": self._scored_stops[reason] / count if count else 0.0 for reason in StopReason},
        }
        if count:
            figures |= _spread("generate/{}_num_tokens", self._tokens) | self._tokens_by_reward()
            figures |= {name: statistics.fmean(values) for name, values in self._means.items()} | self.tests.flat()
        if self._turn_tokens:
            figures |= _spread("generate/{}_tokens_per_turn", self._turn_tokens)
        for phase, seconds in self._times.items():
            figures[f"time/{phase}_s/mean"] = statistics.fmean(seconds)
            figures[f"time/{phase}_s/p90"] = _p90(seconds)
            figures[f"time/{phase}_s/max"] = max(seconds)
        for name, tool in self._tools.items():
            figures |= {f"tool/{name}/{what}": value for what, value in tool.flat().items()}
        return {name: float(value) for name, value in figures.items()}

    def _tokens_by_reward(self) -> dict[str, float]:
        """As SkyRL has them: of rewards above 0 and of rewards of 0; a negative one is in neither; 0 of none."""
        pairs = [
            (tokens, reward) for tokens, reward in zip(self._tokens, self._rewards, strict=True) if reward is not None
        ]
        above = [tokens for tokens, reward in pairs if reward > 0]
        zero = [tokens for tokens, reward in pairs if reward == 0]
        return {
            "generate/avg_tokens_non_zero_rewards": statistics.fmean(above) if above else 0.0,
            "generate/avg_tokens_zero_rewards": statistics.fmean(zero) if zero else 0.0,
        }


class _ToolFigures:
    """Figures of the calls to one tool."""

    def __init__(self) -> None:
        self._calls = self._ok = self._ran = 0
        self._run_s = 0.0

    def add(self, outcome: ToolOutcome, run_s: float) -> None:
        self._calls += 1
        self._ok += outcome is ToolOutcome.OK
        self._ran += outcome.ran
        self._run_s += run_s if outcome.ran else 0.0

    def flat(self) -> dict[str, float]:
        mean = {"mean_run_s": self._run_s / self._ran} if self._ran else {}
        return {"calls": float(self._calls), "ok_rate": self._ok / self._calls} | mean


def _phases(result: TrajectoryResult) -> dict[str, float]:
    return {phase: getattr(result.times, field) for phase, field in PHASES.items()}


def _p90(values: Sequence[float]) -> float:
    """Linear between the two nearest values in order, numpy's default."""
    return statistics.quantiles(values if len(values) > 1 else [*values, *values], n=10, method="inclusive")[-1]


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Smallest, largest, mean and standard deviation of the population; `{}` in the name stands for which."""
    figures = {
        "min": min(values),
        "max": max(values),
        "avg": statistics.fmean(values),
        "std": statistics.pstdev(values),
    }
    return {name.format(which): value for which, value in figures.items()}
