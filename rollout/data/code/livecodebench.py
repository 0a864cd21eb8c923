"""Rows of LiveCodeBench: programs, and methods of `class Solution` (LeetCode).

Their private tests are JSON, or JSON in a pickled text, compressed and in base64. Invariants: the pickle
is never loaded, only its text is read; no more than `MOST_BYTES` of it is unpacked.
"""

from __future__ import annotations

import base64
import json
import pickletools
import zlib
from collections.abc import Mapping
from typing import Any

from rollout.data.code.problem import CodeProblem, RowFault, UnusableRow, json_of, text_of, truth_text, with_starter

MOST_BYTES = 512 << 20
"""Most of one problem's private tests, unpacked: several times the largest that is published."""
_TEXTS = ("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
_AROUND = ("PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP")
"""Opcodes that a pickled text has around it, in any protocol."""


def livecodebench(record: Mapping[str, Any], where: str) -> CodeProblem:
    """The problem of a row. Raises UnusableRow."""
    question = text_of(record, "question_content", where)
    cases = [
        *_cases(json_of(record, "public_test_cases", where), "public_test_cases", where),
        *_cases(_private(record.get("private_test_cases"), where), "private_test_cases", where),
    ]
    if not cases:
        raise UnusableRow(RowFault.NO_TESTS, where, "has no tests in public_test_cases, private_test_cases")
    name = ""
    if any(case.get("testtype") == "functional" for case in cases):
        metadata = json_of(record, "metadata", where)
        name = str(metadata.get("func_name") or "") if isinstance(metadata, Mapping) else ""
        if not name:
            raise UnusableRow(RowFault.BAD_ROW, where, "metadata must have func_name, for tests of kind functional")
    question = with_starter(question, record)
    truth = truth_text([case["input"] for case in cases], [case["output"] for case in cases], fn_name=name)
    uid = f"livecodebench/{record.get('question_id') or where}"
    return CodeProblem(uid, question, truth, "code_tests", "livecodebench/code_generation", where)


def _cases(value: Any, key: str, where: str) -> list[Mapping[str, Any]]:
    """The cases of a column, each with the texts `input` and `output`."""
    cases = [] if value is None else value
    if not isinstance(cases, list) or not all(isinstance(each, Mapping) for each in cases):
        raise UnusableRow(RowFault.BAD_ROW, where, f"{key} must be a list of objects")
    if not all(isinstance(each.get(name), str) for each in cases for name in ("input", "output")):
        raise UnusableRow(RowFault.BAD_ROW, where, f"{key} must have input and output, both texts, in each")
    return cases


def _private(value: Any, where: str) -> Any:
    """The private tests, out of either of their forms."""
    if not isinstance(value, str) or not value:
        return value or []
    try:
        return json.loads(value)
    except ValueError:
        pass
    except RecursionError:
        raise UnusableRow(RowFault.BAD_ROW, where, "private_test_cases is nested too deeply") from None
    try:
        return json.loads(_pickled_text(_unpacked(base64.b64decode(value, validate=True), where)))
    except (ValueError, RecursionError, zlib.error) as error:
        raise UnusableRow(RowFault.BAD_ROW, where, f"private_test_cases can't be read: {error}") from None


def _unpacked(packed: bytes, where: str) -> bytes:
    stream = zlib.decompressobj()
    data = stream.decompress(packed, MOST_BYTES)
    if stream.unconsumed_tail:
        raise UnusableRow(RowFault.TOO_LARGE, where, f"private_test_cases has more than {MOST_BYTES >> 20} MiB")
    return data


def _pickled_text(data: bytes) -> str:
    """The text that is all of a pickle. The pickle is read, never run. Raises ValueError."""
    found: list[str] = []
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in _TEXTS and isinstance(argument, str):
            found.append(argument)
        elif opcode.name not in _AROUND:
            raise ValueError(f"the pickle has {opcode.name}, must hold a text and nothing else")
    if len(found) != 1:
        raise ValueError(f"the pickle holds {len(found)} texts, must hold one")
    return found[0]
