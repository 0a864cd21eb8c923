"""`fairbox events`: the trajectories of a dump as event streams, one a line, as the code search projects dump them."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from fairbox.config import load, setting
from fairbox.errors import FairboxError
from rollout.dump import DumpError, read_dump
from rollout.events import TokenEvent, event_json, trajectory_events
from rollout.undump import result_of

__all__ = ["EventsConfig", "main"]


@dataclass(frozen=True)
class EventsConfig:
    """Settings of `fairbox events`."""

    dump: str = setting(help="The dump, a .jsonl file.")
    index: int | None = setting(None, help="Only the trajectory of this `index`; none: all.")
    out: str | None = setting(None, help="A new file; none: standard output.")
    tokens: bool = setting(True, help="With the tokens of each turn, which are most of the bytes.")
    strict: bool = setting(False, help="Without keys that the OpenHands SDK does not know, as logprobs.")


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when everything was written."""
    config = load(EventsConfig, prefix="FAIRBOX_EVENTS", prog="fairbox events", description=__doc__ or "", argv=argv)
    written = 0
    with _output(config.out) as file:
        for record in read_dump(Path(config.dump)):
            if config.index is None or record.get("index") == config.index:
                print(json.dumps(_line(record, config)), file=file)
                written += 1
    if config.index is not None and not written:
        raise DumpError(f"{config.dump}: has no trajectory of index {config.index}")
    return 0


@contextlib.contextmanager
def _output(path: str | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise FairboxError(f"{path}: can't be written: {error.strerror or error}") from None


def _line(record: Mapping[str, Any], config: EventsConfig) -> dict[str, Any]:
    """One trajectory. The keys are those of the code search projects."""
    result = result_of(record)
    events = (event for event in trajectory_events(result) if config.tokens or not isinstance(event, TokenEvent))
    return {
        "instance_id": result.uid,
        "trajectory_id": result.trajectory_id,
        "total_reward": record["score"],
        "reward_dict": record.get("reward_parts", {}),
        "raw_final_message": result.final_text,
        "stop_reason": result.stop_reason,
        "messages": [event_json(event, strict=config.strict) for event in events],
        "metrics_dict": record.get("metrics", {}),
    }
