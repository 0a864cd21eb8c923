"""Rows that ask for one function and bring Python that tests it: HumanEval, MBPP, and EvalPlus's editions of both."""

from __future__ import annotations

import ast
import builtins
import json
import re
from collections.abc import Mapping
from typing import Any

from rollout.data.code.problem import CodeProblem, RowFault, UnusableRow, list_of, smallest, text_of

_MOST_INPUT_BYTES = 900_000
"""Inputs of EvalPlus that a test holds; the largest beyond it are left out. A test may have 1 MiB."""
_DECIDES = re.compile(r"\b(?:assert|raise)\b|\.assert")
"""Signs of a test that can fail by what it finds: three of MBPP+ compare each answer and assert nothing."""
_PLUS_TEST = """\
def check(candidate):
    import copy, json, math

    names = {{"__name__": "reference"}}
    exec({reference!r}, names)
    reference, poly = names[{entry_point!r}], names.get("poly")

    def same(out, wanted, atol):
        if isinstance(wanted, float) or (atol and type(wanted) is int):
            number = isinstance(out, (int, float)) and not isinstance(out, bool)
            return number and (out == wanted or math.isclose(out, wanted, rel_tol=1e-7, abs_tol=atol or 1e-6))
        if isinstance(wanted, (list, tuple)) and type(out) is type(wanted) and len(out) == len(wanted):
            return all(same(*pair, atol) for pair in zip(out, wanted))
        return out == wanted

    for given in json.loads({inputs!r}):
        out = candidate(*copy.deepcopy(given))
        if {entry_point!r} == "find_zero":
            assert abs(poly(*given, out)) <= {atol}
        else:
            assert same(out, reference(*copy.deepcopy(given)), {atol}), given
"""
"""Compares with the reference on every input, as EvalPlus does: floats within 1e-6 if the data give no tolerance, and a
root by the value of its polynomial, which may have several."""


def humaneval(record: Mapping[str, Any], where: str) -> CodeProblem:
    """HumanEval: `prompt`, `test`, `entry_point`. Raises UnusableRow."""
    parts = {name: text_of(record, name, where) for name in ("prompt", "test", "entry_point")}
    return _completion(record, parts, "openai/humaneval", where)


def humaneval_plus(record: Mapping[str, Any], where: str) -> CodeProblem:
    """EvalPlus's HumanEval: `base_input` and `plus_input`, whose outputs are those of `canonical_solution`. Raises
    UnusableRow, also for EvalPlus's MBPP, whose inputs are tuples and sets that only the hub's rows keep."""
    if str(record.get("task_id")).startswith("Mbpp/"):
        raise UnusableRow(
            RowFault.OTHER_EDITION, where, "JSON does not keep its inputs: use the hub's evalplus/mbppplus"
        )
    parts = {name: text_of(record, name, where) for name in ("prompt", "entry_point")}
    inputs = [*list_of(record.get("base_input")), *list_of(record.get("plus_input"))]
    if not inputs or not all(isinstance(given, list) for given in inputs):
        raise UnusableRow(RowFault.BAD_ROW, where, "base_input and plus_input must be lists of arguments, not empty")
    atol = record.get("atol") or 0
    if not isinstance(atol, (int, float)):
        raise UnusableRow(RowFault.BAD_ROW, where, f"atol must be a number, but is {str(atol)[:40]!r}")
    reference = parts["prompt"] + text_of(record, "canonical_solution", where)
    texts = [json.dumps(given) for given in inputs]
    kept = [texts[index] for index in smallest(list(map(len, texts)), _MOST_INPUT_BYTES)]
    parts["test"] = _PLUS_TEST.format(
        reference=reference, inputs=f"[{', '.join(kept)}]", entry_point=parts["entry_point"], atol=float(atol)
    )
    return _completion(record, parts, "evalplus/humanevalplus", where)


def mbpp(record: Mapping[str, Any], where: str) -> CodeProblem:
    """MBPP: `text` or `prompt`, and `test_list`; MBPP+ by its `test`, which has all inputs, and where that decides
    nothing by `test_list` too. Raises UnusableRow."""
    question = text_of(record, "text" if "text" in record else "prompt", where)
    tests = record["test_list"]
    if not isinstance(tests, list) or not tests or not all(isinstance(test, str) and test.strip() for test in tests):
        raise UnusableRow(RowFault.BAD_ROW, where, "test_list must be a list of assertions that is not empty")
    truth: dict[str, Any] = {"assert_case": tests}
    if isinstance(whole := record.get("test"), str) and whole.strip():
        truth["assert_case"] = [whole] if _DECIDES.search(whole) else [whole, *tests]
    setup = record.get("test_setup_code") or "\n".join(map(str, list_of(record.get("test_imports"))))
    if named := _named_as_builtins(str(record.get("code") or ""), "\n".join(truth["assert_case"])):
        setup = "\n".join(filter(None, [setup, f"from solution import {', '.join(named)}"]))
    if setup:
        truth["setup_code"] = setup
    # Names and signatures are nowhere but in the tests: as the data's authors ask, one of them is shown.
    question = f"{question.strip()}\nYour code should pass this test:\n{tests[0]}"
    uid = f"mbpp/{record.get('task_id', where)}"
    return CodeProblem(
        uid, question, json.dumps(truth), "code_asserts", "google/mbpp", where, str(record.get("code") or "")
    )


def _completion(record: Mapping[str, Any], parts: dict[str, str], source: str, where: str) -> CodeProblem:
    uid = str(record.get("task_id") or where)
    given = str(record.get("canonical_solution") or "")
    solution = parts["prompt"] + given if given else ""
    return CodeProblem(uid, parts["prompt"], json.dumps(parts), "humaneval", source, where, solution)


def _named_as_builtins(solution: str, tests: str) -> list[str]:
    """Functions of the solution that have the name of a built-in one, and are called by tests."""
    try:
        tree = ast.parse(solution)
    except (SyntaxError, ValueError, RecursionError):
        return []
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and hasattr(builtins, node.name)}
    return sorted(name for name in defined if re.search(rf"(?<![\w.]){name}\(", tests))
