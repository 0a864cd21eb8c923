"""Programs that are nearly right: one operator, comparison, constant, condition or called name changed, and an input
that shows it.

They measure a reward, or the tests of a data set: a correct solution has to score 1 and its mutants 0. A mutant that
scores 1 is one that the tests let pass. `mutants_of` is pure; `distinct_mutant` runs things, at an executor.
"""

from __future__ import annotations

import ast
import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from executor_service import Cause, ExecutorClient, Limits
from rollout.rewards.base import NotScored
from rollout.rewards.code.functions import Completion

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_OPERATORS: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.BitXor: (ast.BitOr,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
}
_NAMES = {
    "all": "any",
    "any": "all",
    "endswith": "startswith",
    "islower": "isupper",
    "isupper": "islower",
    "lower": "upper",
    "max": "min",
    "min": "max",
    "set": "list",
    "sorted": "list",
    "startswith": "endswith",
    "swapcase": "lower",
    "upper": "lower",
}
"""Functions and methods that are called in place of each other."""
_COUNTS = ("len", "sum")
"""Functions whose value becomes one more."""
_Place = ast.expr | ast.AugAssign | ast.If
_MOST_TRIED = 100
"""Mutants of one solution that are run."""
_LIMITS = Limits(wall_time_s=60, memory_bytes=512 << 20)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed program."""

    source: str
    change: str
    """`line 3: < became <=`."""


@dataclass(frozen=True, slots=True)
class Witness:
    """An input for which two programs give different values, as Python texts."""

    arguments: str
    expected: str
    actual: str


def mutants_of(source: str) -> list[Mutant]:
    """Every program that differs from `source` by one change, in the order of their places. Texts that stand alone
    (docstrings) and annotations are left as they are."""
    tree = ast.parse(source)
    found = []
    for index, node in enumerate(_places(tree)):
        for choice, change in enumerate(_changes(node)):
            changed = copy.deepcopy(tree)
            _apply(_places(changed)[index], choice)
            found.append(Mutant(ast.unparse(ast.fix_missing_locations(changed)), f"line {node.lineno}: {change}"))
    return found


def _places(tree: ast.Module) -> list[_Place]:
    """Nodes that can be changed. The same ones, in the same order, for a copy."""
    return [node for node in _walk(tree) if isinstance(node, _Place) and _changes(node)]


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not (
                isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            ):
                yield from _walk(child)


def _changes(node: _Place) -> list[str]:
    """Descriptions of a node's possible changes, one for each choice."""
    match node:
        case ast.Compare(ops=[operator, *_]):
            return [f"{_name(operator)} became {other.__name__}" for other in _COMPARISONS[type(operator)]]
        case ast.BinOp(op=operator, left=left) | ast.AugAssign(op=operator, target=left):
            if isinstance(left, ast.Constant) and isinstance(left.value, str):  # "%d" % x
                return []
            return [f"{_name(operator)} became {other.__name__}" for other in _OPERATORS.get(type(operator), ())]
        case ast.BoolOp(op=operator):
            return ["or became and" if isinstance(operator, ast.Or) else "and became or"]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
            return []  # its constant is changed
        case ast.Constant(value=bool() | int() | float() as value):
            return [f"{value!r} became {_other(value)!r}"]
        case ast.Constant(value=str(text)) if len(text) <= 40:
            return [f"{text!r} became {_other(text)!r}"]
        case ast.If() | ast.IfExp():
            return ["a condition was negated"]
        case (
            ast.ListComp(generators=[ast.comprehension(ifs=[_])])
            | ast.GeneratorExp(generators=[ast.comprehension(ifs=[_])])
        ):
            return ["a condition was negated"]
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _NAMES:
            return [f"{name} became {_NAMES[name]}"]
        case ast.Call(func=ast.Name(id=name)) if name in _COUNTS:
            return [f"{name} became one more"]
    return []


def _apply(node: _Place, choice: int) -> None:
    match node:
        case ast.Compare():
            node.ops[0] = _COMPARISONS[type(node.ops[0])][choice]()
        case ast.BinOp() | ast.AugAssign():
            node.op = _OPERATORS[type(node.op)][choice]()
        case ast.BoolOp():
            node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        case ast.Constant():
            node.value = _other(node.value)
        case ast.If() | ast.IfExp():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.ListComp() | ast.GeneratorExp():
            node.generators[0].ifs = [ast.UnaryOp(ast.Not(), node.generators[0].ifs[0])]
        case ast.Call(func=ast.Name(id=name)) if name in _COUNTS:
            # As `sum((len(x), 1))`: a node can't put another in its own place.
            node.func, node.args = ast.Name("sum", ast.Load()), [_pair(copy.copy(node))]
            node.keywords = []
        case ast.Call(func=ast.Name() as function):
            function.id = _NAMES[function.id]
        case ast.Call(func=ast.Attribute() as method):
            method.attr = _NAMES[method.attr]


def _pair(call: ast.Call) -> ast.Tuple:
    """`(call, 1)`, whose sum is one more."""
    return ast.Tuple([call, ast.Constant(1)], ast.Load())


def _other(value: object) -> bool | int | float | str:
    if isinstance(value, bool):
        return not value
    return value + "x" if isinstance(value, str) else value + 1  # type: ignore[operator]


def _name(node: ast.AST) -> str:
    return type(node).__name__


_COMPARES = '''
import copy, json, math, signal, sys

MOST_CALLS = 200

class Late(BaseException):
    pass

def late(*_):
    raise Late

signal.signal(signal.SIGVTALRM, late)  # of CPU time: a loaded machine changes nothing

def load(source, name):
    names = {"__name__": "solution"}
    exec(compile(source, "solution.py", "exec"), names)
    return names[name], names

def same(a, b):
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-2, abs_tol=1e-2) or a == b or (a != a and b != b)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b

def value(function, arguments):
    """[value], or None where it raises."""
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.25)
    try:
        return [function(*copy.deepcopy(arguments))]
    except Exception:
        return None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)

def main(job):
    original, names = load(job["original"], job["name"])
    accepts = lambda arguments, right, got: same(right, got)
    if job["accepts"]:
        exec(job["accepts"], names)
        accepts = lambda arguments, right, got: names["accepts"](arguments, got)
    calls = []

    def recorder(*arguments):
        if len(calls) < MOST_CALLS:
            calls.append(copy.deepcopy(arguments))
        return original(*arguments)

    check, tests = load(job["setup"], "check")
    tests[job["name"]] = recorder
    check(recorder)
    wanted = [value(original, arguments) for arguments in calls]
    for index, source in enumerate(job["mutants"]):
        try:
            mutant, _ = load(source, job["name"])
            values = [value(mutant, arguments) for arguments in calls]
        except (Late, Exception):
            continue
        for arguments, right, got in zip(calls, wanted, values):
            if right and got and not accepts(arguments, right[0], got[0]):
                return [index, *(repr(each)[:1000] for each in (arguments, right[0], got[0]))]
    return None

print(json.dumps(main(json.loads(sys.stdin.read()))))
'''
"""Runs in a sandbox. The arguments are those that the test calls the original with."""


async def distinct_mutant(
    executor: ExecutorClient, problem: Completion, solution: str, *, seed: int = 0, accepts: str = ""
) -> tuple[Mutant, Witness] | None:
    """A mutant of `solution` (an answer that is right) and a call of the test for which both return, and differ by more
    than rounding; None where no mutant has one. Which one is drawn by `seed`. Raises ExecutorError, and NotScored where
    the test can't be run with the solution.

    `accepts`, for problems with several right answers: source of `accepts(arguments, value)`, which says whether a
    value is right, and sees what the solution defines. Mutants that raise, or that take long, are passed over: they
    are too easy to tell from the original.
    """
    original = problem.program(solution)
    mutants = mutants_of(original)
    random.Random(f"{seed}/{problem.entry_point}").shuffle(mutants)
    mutants = mutants[:_MOST_TRIED]
    job = {
        "original": original,
        "name": problem.entry_point,
        "setup": problem.setup_code,
        "accepts": accepts,
        "mutants": [mutant.source for mutant in mutants],
    }
    result = await executor.execute(_COMPARES, stdin=json.dumps(job).encode(), limits=_LIMITS)
    if not result.ok:
        cause = Cause.INFRA if result.cause is Cause.INFRA else Cause.TASK
        raise NotScored(
            cause, f"{problem.entry_point}: {result.outcome}: {result.stderr.text[-500:] or result.message}"
        )
    found = json.loads(result.stdout.text.rpartition("\n")[0].rpartition("\n")[2])
    return (mutants[found[0]], Witness(*found[1:])) if found else None
