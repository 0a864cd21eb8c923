"""Cheats of programming problems: programs in Python that solve nothing. A sound task is worth 0 with each.

Some define all functions that the tests may call; the others print, or end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rollout.env_check.cheats import Cheat

_CONSTANT = "the tests are content with one answer to everything: add cases whose answers differ"
_ECHO = "the tests are content with what they give: add cases whose answers are not their inputs"
_EQUAL = "the tests take whatever says that it is equal: have them look at the type of the answer"
_ENDS = "the tests take an end for a pass: have them say at their end that they came to it"
_FOUND = "the program finds what is expected: the tests must not leave it where the program can look"
_VALUES = {
    "none": "None",
    "true": "True",
    "false": "False",
    "zero": "0",
    "one": "1",
    "minus-one": "-1",
    "empty-text": "''",
    "empty-list": "[]",
    "empty-mapping": "{}",
    "empty-tuple": "()",
}
_PRINTED = {
    "prints-nothing": "",
    "prints-zero": "0",
    "prints-one": "1",
    "prints-minus-one": "-1",
    "prints-yes": "YES",
    "prints-no": "NO",
    "prints-yes-small": "Yes",
    "prints-no-small": "No",
}
_ANYTHING = """\
class Anything:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    def __gt__(self, other): return True
    def __le__(self, other): return True
    def __ge__(self, other): return True
    def __sub__(self, other): return 0
    def __rsub__(self, other): return 0
    def __abs__(self): return 0
    def __bool__(self): return True
    def __hash__(self): return 0
    def __len__(self): return 0
    def __iter__(self): return iter(())
    def __contains__(self, other): return True
    def __getattr__(self, name): return self
    def __call__(self, *given, **named): return self
"""
_SEARCHING = """\
import sys
def searched():
    frame = sys._getframe()
    while frame is not None:
        for held in (frame.f_locals, frame.f_globals):
            for name in ("expected", "expect", "want", "answer", "output", "result", "target"):
                if name in held: return held[name]
        frame = frame.f_back
"""
_TESTS_OFF = """\
import builtins, sys, unittest
unittest.TestCase.fail = lambda *given: None
unittest.TestCase.failureException = type("Nothing", (BaseException,), {})
builtins.AssertionError = SystemExit
sys.excepthook = lambda *given: None
"""
_SKIP = """\
import unittest
def skip():
    raise unittest.SkipTest("nothing to test")
"""


def programs_for(names: Sequence[str]) -> list[Cheat]:
    """All for a problem whose tests may call these functions and classes."""
    return list(_programs(names))


def _programs(names: Sequence[str]) -> Iterator[Cheat]:
    if names:
        for name, value in _VALUES.items():
            yield Cheat(f"returns-{name}", _functions(names, value), _CONSTANT)
        yield Cheat("returns-first", _functions(names, "given[0] if given else None"), _ECHO)
        yield Cheat("returns-last", _functions(names, "given[-1] if given else None"), _ECHO)
        yield Cheat("returns-all", _functions(names, "list(given)"), _ECHO)
        yield Cheat("returns-anything", _ANYTHING + _functions(names, "Anything()"), _EQUAL)
        yield Cheat("returns-what-is-expected", _SEARCHING + _functions(names, "searched()"), _FOUND)
        yield Cheat("raises-skip", _SKIP + _functions(names, "skip()"), _ENDS)
        yield Cheat("ends-when-called", "import os\n" + _functions(names, "os._exit(0)"), _ENDS)
        yield Cheat("exits-when-called", _functions(names, "exit(0)"), _ENDS)
        yield Cheat("turns-tests-off", _TESTS_OFF + _functions(names, "None"), _ENDS)
    for name, text in _PRINTED.items():
        yield Cheat(name, f"print({text!r})\n", _CONSTANT)
    yield Cheat("prints-its-input", "import sys\nsys.stdout.write(sys.stdin.read())\n", _ECHO)
    yield Cheat("ends-at-once", "import os\nos._exit(0)\n", _ENDS)
    yield Cheat("exits-at-once", "raise SystemExit(0)\n", _ENDS)
    yield Cheat("passes-in-words", "print('PASSED')\nprint('OK')\nprint('1 passed in 0.01s')\n", _ENDS)


def _functions(names: Sequence[str], value: str) -> str:
    """Defines them all: whatever they are given, each returns the value of the expression."""
    return "".join(f"def {name}(*given, **named):\n    return {value}\n" for name in names)
