"""Bodies of a trajectory as the page unpacks them: its texts as JSON, its tokens as packed numbers. Pure.

Invariants: any row has a body, whatever its fields hold; JSON is ASCII and its numbers are finite; a row whose line is
longer than `WHOLE_BYTES` has at most `MAX_CHARS` of texts, and says how many characters were cut.

Tokens are, in little endian: the length of a header, the header as JSON padded to four bytes, then for all parts
together the ids (4 bytes, prompt and response), the mask (1 byte, response), the logprobs (half precision, which keeps
three digits), and if the row has `trainer_logprobs`, the trainer's minus the engine's (half precision).
"""

from __future__ import annotations

import json
import math
import struct
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.dump import TRAINER

WHOLE_BYTES = 2 << 20
"""Lines up to this size are shown whole: 32k tokens with their texts take about one MiB."""
MAX_CHARS = 4 << 20
"""Most characters of the texts of a longer line."""
MAX_TEXT_CHARS = 1 << 20
"""Most characters of one text of a longer line."""
_ITEM_CHARS = 8
"""Charge for a number or a name, so that long lists are bounded as well."""
_LISTS = frozenset(("prompt_ids", "response_ids", "response_mask", "logprobs", TRAINER))
_LARGEST_HALF = 65504.0


def text_body(record: Mapping[str, Any], size: int) -> bytes:
    """A row without its lists of tokens. `size` is that of its line."""
    row: Any = {key: value for key, value in record.items() if key not in _LISTS and key != "earlier"}
    budget = _Budget()
    try:
        row = _cut(row, budget) if size > WHOLE_BYTES else row
        return finite_json({"cut": budget.cut, "row": row}, str)
    except RecursionError:
        return finite_json({"cut": 0, "row": {"error": "this row is nested too deeply to be shown"}})


def finite_json(value: Any, instead: Callable[[str], str | None] = lambda name: None) -> bytes:
    """JSON as browsers read it; `instead` gives what stands for NaN and infinities, which it has not."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(json.loads(json.dumps(value), parse_constant=instead))
    return text.encode("ascii")


@dataclass(slots=True)
class _Budget:
    left: int = MAX_CHARS
    cut: int = 0


def _cut(value: Any, budget: _Budget) -> Any:
    if isinstance(value, str):
        kept = value[: max(0, min(MAX_TEXT_CHARS, budget.left))]
        budget.left -= len(kept) + _ITEM_CHARS
        budget.cut += len(value) - len(kept)
        return kept
    if isinstance(value, dict):
        return {_cut(key, budget): _cut(each, budget) for key, each in value.items() if budget.left > 0}
    if isinstance(value, list):
        return [_cut(each, budget) for each in value if budget.left > 0]
    budget.left -= _ITEM_CHARS
    return value


def finite(value: Any) -> float | None:
    """A number as a float; None for anything else, and for one that no float holds."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def token_body(record: Mapping[str, Any]) -> bytes:
    """The tokens of all parts of a row, or why there are none."""
    earlier = record.get("earlier")
    parts = [*(each for each in earlier if isinstance(each, dict)), record] if isinstance(earlier, list) else [record]
    try:
        headers, ids, masks, logprobs, gaps = zip(*map(_part, parts), strict=True)
    except _Broken as error:
        return _with_header({"problem": str(error)})
    except (TypeError, ValueError, OverflowError, AttributeError, struct.error) as error:
        return _with_header({"problem": f"its token lists can't be read: {str(error)[:100]}"})
    trained = all(len(gap) == len(each) for gap, each in zip(gaps, logprobs, strict=True))
    lists = [*ids, *masks, *logprobs, *(gaps if trained else ())]
    return b"".join([_with_header({"parts": headers, "trainer": trained}), *lists])


class _Broken(Exception):
    """Lists that are missing, or differ in length."""


def _part(part: Mapping[str, Any]) -> tuple[dict[str, Any], bytes, bytes, bytes, bytes]:
    prompt, response = part.get("prompt_ids"), part.get("response_ids")
    if not isinstance(prompt, list) or not isinstance(response, list):
        raise _Broken("this row has no token ids")
    lists = [part.get(key) for key in ("response_mask", "logprobs")]
    mask, logprobs = (each if isinstance(each, list) and len(each) == len(response) else None for each in lists)
    if mask is None or logprobs is None:
        raise _Broken("response_mask or logprobs has not the length of response_ids")
    ids = array("I", prompt)
    ids.extend(array("I", response))
    if sys.byteorder == "big":
        ids.byteswap()
    trainer = part.get(TRAINER)
    gap = []
    if isinstance(trainer, list) and len(trainer) == len(logprobs):
        gap = [_number(theirs) - _number(ours) for theirs, ours in zip(trainer, logprobs, strict=True)]
    header = {"prompt": len(prompt), "response": len(response), "segments": _segments(part.get("segments"))}
    return header, ids.tobytes(), _bits(mask), _halves(logprobs), _halves(gap)


def _bits(mask: Sequence[Any]) -> bytes:
    try:
        return bytes(mask)
    except (TypeError, ValueError):  # bits as other trainers write them: 1.0, null
        return bytes(map(bool, mask))


def _segments(segments: Any) -> list[list[Any]]:
    known = [each for each in segments if isinstance(each, dict)] if isinstance(segments, list) else []
    return [
        [str(each.get("kind"))[:40], each["length"], str(each.get("weight_version") or "")[:80]]
        for each in known
        if isinstance(each.get("length"), int)
    ]


def _halves(numbers: Sequence[Any]) -> bytes:
    try:
        return struct.pack(f"<{len(numbers)}e", *numbers)
    except (OverflowError, struct.error):
        bounded = [max(-_LARGEST_HALF, min(_LARGEST_HALF, _number(each))) for each in numbers]
        return struct.pack(f"<{len(bounded)}e", *bounded)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < _LARGEST_HALF else math.nan


def _with_header(header: Mapping[str, Any]) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 4)
    return struct.pack("<I", len(text)) + text
