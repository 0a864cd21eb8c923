"""Dumps of trajectories: `{step}.jsonl`, one object a line, in verl's format with fairbox's fields beside it.

verl's fields: `input`, `output` (decoded without special tokens), `gts`, `score` (null when masked), `step`,
`request_id`, `uid`. docs/reference/dump.md describes fairbox's. Invariants: a line is written with one
call and is whole, so a dump that was cut off by a crash has whole lines up to its last; numbers are finite; an existing
dump is never overwritten.

What the trainer's own pass gave for the same ids lies beside the folder of a training run's dumps, in
`trainer_logprobs/{step}.ndjson`: a trainer knows it when the dump is written already. Those files are no dumps, hence
their suffix.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from fairbox.errors import FairboxError
from rollout.loop.results import TrajectoryResult
from rollout.loop.task import Task
from rollout.metrics import trajectory_metrics
from rollout.tokens.trajectory import Trajectory

_TOKENS: dict[str, type | tuple[type, ...]] = {
    "prompt_ids": list,
    "response_ids": list,
    "response_mask": list,
    "logprobs": list,
    "segments": list,
}
_REQUIRED: dict[str, type | tuple[type, ...]] = {
    "input": str,
    "output": str,
    "gts": str,
    "score": (int, float, type(None)),
    "step": int,
    "request_id": str,
    "uid": str,
    "messages": list,
    "tool_calls": list,
    "stop_reason": str,
    "cause": str,
    "masked": bool,
    "sampling": dict,
    **_TOKENS,
}


TRAINER = "trainer_logprobs"
"""Field beside `logprobs`, and name of the folder."""
_DIGITS = 6
"""Decimals of a trainer's logprob: two implementations in float32 differ by more."""


class DumpError(FairboxError):
    """A dump can't be written or read. The text names the file and, where there is one, the line."""


Decode = Callable[[Sequence[int]], str]


def record_of(result: TrajectoryResult, task: Task, *, step: int, model: str, decode: Decode) -> dict[str, Any]:
    """One line of a dump. `decode` leaves special tokens out."""
    trajectory, reward = result.trajectory, result.reward
    return {
        "input": decode(trajectory.prompt_ids),
        "output": decode(trajectory.response_ids),
        "gts": task.ground_truth,
        "score": None if reward is None else reward.value,
        "step": step,
        "request_id": result.trajectory_id,
        "uid": result.uid,
        "index": result.index,
        "data_source": task.data_source,
        "where": task.where,
        "reward_parts": {} if reward is None else dict(reward.parts),
        "turn_rewards": [] if reward is None else [reward.turns.get(turn, 0.0) for turn in range(1, result.turns + 1)],
        "tool_rewards": result.tool_rewards,
        **_tokens(trajectory),
        "earlier": [_tokens(part) for part in result.earlier],
        "messages": [dict(message) for message in result.messages],
        "tool_calls": [dataclasses.asdict(call) for call in result.tool_calls],
        "turns": result.turns,
        "state": result.state,
        "stop_reason": result.stop_reason,
        "cause": result.cause,
        "masked": result.masked,
        "error": result.error,
        "attempts": result.attempts,
        "parent_id": result.parent_id,
        "branch_point": None if result.branch_point is None else dataclasses.asdict(result.branch_point),
        "timings": dataclasses.asdict(result.times),
        "started_at": result.started_at,
        "turn_records": [dataclasses.asdict(turn) for turn in result.turn_records],
        "metrics": trajectory_metrics(result, task.row),
        "model": model,
        "sampling": dataclasses.asdict(result.sampling),
    }


def _tokens(part: Trajectory) -> dict[str, Any]:
    return {
        "prompt_ids": list(part.prompt_ids),
        "response_ids": list(part.response_ids),
        "response_mask": list(part.response_mask),
        "logprobs": list(part.logprobs),
        "segments": [
            {"kind": segment.kind, "length": len(segment.ids), "weight_version": segment.weight_version}
            for segment in part.segments
        ],
    }


def parts_of(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The parts of a record, in order, each with `prompt_ids`, `response_ids`, `response_mask`, `logprobs` and
    `segments`; the last one is the record itself."""
    return [*record.get("earlier", ()), record]


class DumpWriter:
    """`with DumpWriter(folder, step) as dump: dump.write(record)`. The folder is made as needed. Raises DumpError."""

    def __init__(self, folder: Path, step: int) -> None:
        self.path = folder / f"{step}.jsonl"
        self._file: int | None = None

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            raise _exists(self.path) from None
        except OSError as error:
            raise DumpError(f"{self.path}: can't be written: {error.strerror or error}") from None
        return self

    def __exit__(self, *_: object) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def write(self, record: dict[str, Any]) -> None:
        """Appends one line. Numbers that are not finite are a ValueError."""
        assert self._file is not None
        line = json.dumps(record, allow_nan=False) + "\n"
        rest = memoryview(line.encode("ascii"))
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            raise DumpError(f"{self.path}: can't be written: {error.strerror or error}") from None


def trainer_file(run: Path, step: str) -> Path:
    """The file of a step of a training run."""
    return run / TRAINER / f"{step}.ndjson"


def write_trainer_logprobs(path: Path, rows: Iterable[tuple[str, Sequence[Sequence[float]]]]) -> None:
    """Writes a line for each trajectory: its id, and natural logarithms of its parts' `response_ids` in order, of which
    the last one is the trajectory itself; none where it is masked. The file replaces another. Raises DumpError."""
    unfinished = path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("w", encoding="ascii") as file:
            for name, parts in rows:
                *earlier, last = ({TRAINER: [_decimal(each) for each in part]} for part in parts)
                file.write(json.dumps({"request_id": name, **last, "earlier": earlier}, allow_nan=False) + "\n")
        unfinished.replace(path)
    except OSError as error:
        raise DumpError(f"{path}: can't be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            unfinished.unlink()


def _decimal(number: float) -> float | None:
    return round(number, _DIGITS) if math.isfinite(number) else None


def refuse_existing(path: Path) -> None:
    """Raises DumpError if there is such a dump already."""
    if path.exists():
        raise _exists(path)


def _exists(path: Path) -> DumpError:
    return DumpError(f"{path}: exists, and dumps are not overwritten; set out to another folder")


def read_dump(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a dump, each validated. Raises DumpError."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield _checked(line, f"{path}:{number}")
    except OSError as error:
        raise DumpError(f"{path}: {error.strerror or error}") from None


def _checked(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DumpError(f"{where}: is not JSON: {error}") from None
    if not isinstance(record, dict):
        raise DumpError(f"{where}: must be an object")
    _check_types(record, _REQUIRED, where)
    earlier = record.get("earlier", [])
    if not isinstance(earlier, list) or not all(isinstance(part, dict) for part in earlier):
        raise DumpError(f"{where}: earlier is {str(earlier)[:40]!r}, which has the wrong type")
    for number, part in enumerate(earlier):
        _check_types(part, _TOKENS, f"{where}: earlier[{number}]")
        _check_lengths(part, f"{where}: earlier[{number}]")
    _check_lengths(record, where)
    return record


def _check_types(record: Mapping[str, Any], required: Mapping[str, Any], where: str) -> None:
    for key, kind in required.items():
        if key not in record:
            raise DumpError(f"{where}: {key} is missing")
        if not isinstance(record[key], kind):
            raise DumpError(f"{where}: {key} is {str(record[key])[:40]!r}, which has the wrong type")


def _check_lengths(record: Mapping[str, Any], where: str) -> None:
    lengths = {key: len(record[key]) for key in ("response_ids", "response_mask", "logprobs")}
    if len(set(lengths.values())) != 1:
        raise DumpError(f"{where}: response_ids, response_mask and logprobs differ in length: {lengths}")
    if sum(segment["length"] for segment in record["segments"]) != len(record["prompt_ids"]) + lengths["logprobs"]:
        raise DumpError(f"{where}: the segments' lengths are not those of prompt_ids and response_ids together")
