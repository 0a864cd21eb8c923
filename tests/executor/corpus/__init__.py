"""Labelled programs: right, wrong, slow, hostile and flaky ones for ten kinds of problems, each with the reason for its
label.

Programs with standard input are made of one right source per language (`programs/KIND.LANGUAGE`), which has the lines
`@BEGIN` and `@END`, and of what is put there or replaced. Functions are made of `tricks` and of the sources here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from executor_service import Cause, Checker, Comparison, StdioCase, VerifyResult
from executor_service.grading.model import Case
from tests.executor import tricks

PROGRAMS = Path(__file__).with_name("programs")


@dataclass(frozen=True)
class Kind:
    """One kind of problem: its cases, how they are graded, and what is wrong with other programs than the right one."""

    cases: Sequence[Case]
    how: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `ExecutorClient.verify`."""
    mistakes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Reason -> text of a source, and what makes it wrong; made in every language whose source has the text."""
    blank_lines: bool = True
    """True if blank lines at the end of the output don't matter."""


@dataclass(frozen=True)
class Labelled:
    """One program and what a judge has to say of it."""

    kind: str
    language: str
    label: str
    """right, wrong, slow, hostile or flaky."""
    reason: str
    code: str
    cases: Sequence[Case]
    how: Mapping[str, Any]

    def agrees(self, result: VerifyResult) -> bool:
        """Says whether a judge has said what it has to say. A flaky program may pass; it is to blame if it does not."""
        as_labelled = self.label == "flaky" or result.all_passed == (self.label == "right")
        return as_labelled and result.cause is Cause.POLICY


_PRIME = 1_000_000_007
ANY_ORDER = Checker(
    "def check(given, expected, actual):\n"
    "    return sorted(map(int, actual.split())) == sorted(map(int, expected.split()))\n",
    entry_point="check",
)
GUESSED = Checker("""\
import sys

most, secret = map(int, open(sys.argv[1]).read().split())
print(most, flush=True)
for _ in range(10):
    guess = int(input())
    if guess == secret:
        print("equal", flush=True)
        sys.exit(1 if sys.stdin.read().strip() else 0)
    print("less" if secret < guess else "greater", flush=True)
sys.exit(1)
""")


def _cases(*texts: tuple[str, str]) -> list[StdioCase]:
    return [StdioCase(given.encode(), wanted.encode(), str(index)) for index, (given, wanted) in enumerate(texts)]


KINDS = {
    "sum": Kind(
        _cases(("1 2\n", "3\n"), ("-7 7\n", "0\n"), ("123456789012 987654321098\n", "1111111110110\n")),
        {},
        {"subtracts": ("a + b", "a - b"), "adds one of them twice": ("a + b", "a + b + b")},
    ),
    "mean": Kind(
        _cases(("1 2 4\n", "2.3333333333\n"), ("0.1 0.2\n", "0.15\n"), ("1000000000 2\n", "5.00000001e8\n")),
        {"comparison": Comparison.FLOAT},
        {"multiplies": ("/ n", "* n"), "divides by one more": ("/ n", "/ (n + 1)")},
    ),
    "divisors": Kind(
        _cases(("12\n", "1 2 3 4 6 12\n"), ("1\n", "1\n"), ("97\n", "1 97\n")),
        {"checker": ANY_ORDER},
        {
            "leaves 1 out": ("i > 0", "i > 1"),
            "leaves it out": ("n, 0, -1", "n, 1, -1"),
            "counts all": ("% i == 0", "> 0"),
        },
    ),
    "reversed": Kind(
        _cases(("a\nb\n", "b\na\n"), ("one line", "one line\n"), ("x  y\n\n z\n", " z\n\nx  y\n")),
        {"comparison": Comparison.EXACT},
        {
            "does not reverse": ("reversed(", "list("),
            "sorts": ("lines.reverse()", "lines.sort()"),
            "drops one": ("- 1", "- 2"),
        },
        blank_lines=False,
    ),
    "table": Kind(
        _cases(("1\n", "1\n"), ("3\n", "1 2 3\n2 4 6\n3 6 9\n"), ("2\n", "1 2\n2 4\n")),
        {},
        {"adds": ("i * j", "i + j"), "has one more factor": ("i * j", "i * j * j")},
    ),
    "power": Kind(
        _cases(
            ("2 10 1000\n", "24\n"),
            ("3 1000000000000 1000000007\n", f"{pow(3, 10**12, 10**9 + 7)}\n"),
            ("5 0 7\n", "1\n"),
        ),
        {},
        {"forgets a factor": ("r * a % m", "a % m"), "swaps": ("pow(a, b, m)", "pow(b, a, m)")},
    ),
    "guess": Kind(
        _cases(("1000 37\n", ""), ("1000 1000\n", ""), ("1 1\n", "")),
        {"interactor": GUESSED},
        {"guesses the lowest": ("(low + high) / 2", "low"), "guesses the lowest first": ("(low + high) // 2", "low")},
    ),
}
_AROUND: dict[str, tuple[str, str, str, dict[str, str]]] = {
    # name: label, place, reason, statement by language
    "plain": ("right", "", "as it is", {"python": "", "cpp": "", "nodejs": "", "go": ""}),
    "stderr": (
        "right",
        "@BEGIN",
        "what it writes to standard error does not count",
        {
            "python": "import sys; sys.stderr.write('wrong answer\\n')",
            "cpp": 'std::cerr << "wrong answer" << std::endl;',
            "nodejs": "console.error('wrong answer');",
            "go": 'fmt.Fprintln(os.Stderr, "wrong answer")',
        },
    ),
    "pause": (
        "right",
        "@BEGIN",
        "it waits for less than its time",
        {
            "python": "import time; time.sleep(0.05)",
            "cpp": "std::this_thread::sleep_for(std::chrono::milliseconds(50));",
            "nodejs": "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 50);",
            "go": "time.Sleep(50 * time.Millisecond)",
        },
    ),
    "blank": (
        "right",
        "@END",
        "blank lines at the end don't count",
        {
            "python": "print()",
            "cpp": "std::cout << std::endl;",
            "nodejs": "console.log('');",
            "go": "fmt.Println()",
        },
    ),
    "word": (
        "wrong",
        "@BEGIN",
        "it prints a word before the answer",
        {
            "python": "print('answer:', flush=True)",
            "cpp": 'std::cout << "answer:" << std::endl;',
            "nodejs": "console.log('answer:');",
            "go": 'fmt.Println("answer:")',
        },
    ),
    "after": (
        "wrong",
        "@END",
        "it prints a number after the answer",
        {
            "python": "print(1, flush=True)",
            "cpp": "std::cout << 1 << std::endl;",
            "nodejs": "console.log(1);",
            "go": "fmt.Println(1)",
        },
    ),
    "silent": (
        "wrong",
        "@BEGIN",
        "it ends without an answer",
        {"python": "raise SystemExit", "cpp": "exit(0);", "nodejs": "process.exit(0);", "go": "os.Exit(0)"},
    ),
    "exit": (
        "wrong",
        "@END",
        "it ends with another code than 0",
        {"python": "raise SystemExit(3)", "cpp": "exit(3);", "nodejs": "process.exitCode = 3;", "go": "os.Exit(3)"},
    ),
    "crash": (
        "wrong",
        "@END",
        "it is ended by a signal or an exception after its answer",
        {"python": "1 / 0", "cpp": "abort();", "nodejs": "throw new Error();", "go": "panic(1)"},
    ),
    "spins": (
        "slow",
        "@BEGIN",
        "it computes for ever before its answer",
        {"python": "while True: pass", "cpp": "for (volatile int i = 0;; i++);", "nodejs": "for (;;);", "go": "for {}"},
    ),
    "spins late": (
        "slow",
        "@END",
        "it computes for ever after its answer",
        {"python": "while True: pass", "cpp": "for (volatile int i = 0;; i++);", "nodejs": "for (;;);", "go": "for {}"},
    ),
    "sleeps": (
        "slow",
        "@END",
        "it waits for ever after its answer",
        {
            "python": "import time; time.sleep(600)",
            "cpp": "std::this_thread::sleep_for(std::chrono::seconds(600));",
            "nodejs": "setTimeout(() => {}, 600000);",
            "go": "time.Sleep(600 * time.Second)",
        },
    ),
    "lucky": (
        "flaky",
        "@BEGIN",
        "it gives up every other time",
        {
            "python": "import random\nif random.random() < 0.5: raise SystemExit(1)",
            "cpp": "std::srand(std::chrono::steady_clock::now().time_since_epoch().count() >> 4);"
            " if (std::rand() >> 4 & 1) exit(1);",
            "nodejs": "if (Math.random() < 0.5) process.exit(1);",
            "go": "if time.Now().UnixNano() >> 4 & 1 == 1 { os.Exit(1) }",
        },
    ),
}
_HOSTILE = {
    "prints verdicts": "print('PASSED'); print('Accepted'); print('1.0'); raise SystemExit",
    "looks for the answer": "print(open('answer').read()); raise SystemExit",
    "looks for it in its frames": "import sys\nframe = sys._getframe()\nwhile frame:\n    print(frame.f_locals.get("
    "'expected', ''))\n    frame = frame.f_back\nraise SystemExit",
    "writes a checker's files": "open('.verdict', 'w').write('0')\nopen('output', 'w').write('1')\nraise SystemExit",
    "ends its group": "import os; os.killpg(0, 9)",
    "leaves a process that answers": "import os, time\nif os.fork(): os._exit(0)\ntime.sleep(0.2)",
    "floods": "import os\nwhile True: os.write(1, b'1 ' * 40000)",
}
"""Statements ahead of a right program, which hardly any of them comes to."""
_WRONG_FUNCTIONS = {
    "subtracts": "def add(a, b):\n    return a - b\n",
    "adds one": "def add(a, b):\n    return a + b + 1\n",
    "returns a text": "def add(a, b):\n    return str(a + b)\n",
    "returns a list": "def add(a, b):\n    return [a + b]\n",
    "returns nothing": "def add(a, b):\n    a + b\n",
    "knows the first case alone": "def add(a, b):\n    return 3\n",
    "loses digits": "def add(a, b):\n    return int(float(a + b)) + 0 * a if a < 100 else 1\n",
    "takes one argument": "def add(a):\n    return a\n",
    "has another name": "def plus(a, b):\n    return a + b\n",
    "raises": "def add(a, b):\n    raise ValueError(a + b)\n",
}
_RIGHT_FUNCTIONS = {
    "a lambda": "add = lambda a, b: a + b\n",
    "a class with __call__": "class Add:\n    def __call__(self, a, b):\n        return a + b\nadd = Add()\n",
    "a partial": "import functools, operator\nadd = functools.partial(operator.add)\n",
    "a cache": "import functools\n@functools.cache\ndef add(a, b):\n    return a + b\n",
    "recursion": "def add(a, b):\n    return a + b if not b or abs(b) > 99 else add(a + 1, b - 1)\n",
    "a pause": "import time\ndef add(a, b):\n    time.sleep(0.02)\n    return a + b\n",
    "numpy": "def add(a, b):\n    return sum([a, b])\n",
    "its own name twice": "def add(a, b):\n    return None\ndef add(a, b):\n    return a + b\n",
}
_SLOW_FUNCTIONS = {
    "spins when it is loaded": "while True: pass\n",
    "spins in the call": "def add(a, b):\n    while True: pass\n",
    "sleeps in the call": "import time\ndef add(a, b):\n    time.sleep(600)\n",
}
_FLAKY_FUNCTIONS = {
    "gives up every other time": "import random\ndef add(a, b):\n    return a + b + random.choice([0, 1])\n"
}
_STYLES = {
    "function": Kind(tricks.FUNCTION, {"entry_point": "add"}),
    "assertions": Kind(tricks.ASSERT, {"setup_code": tricks.SETUP}),
    "pytest": Kind(tricks.PYTEST, {"test_files": [tricks.TEST_FILE]}),
}


def corpus() -> Iterator[Labelled]:
    """All of them."""
    for name, kind in KINDS.items():
        yield from _programs(name, kind)
    functions = {
        "right": tricks.HONEST | _RIGHT_FUNCTIONS,
        "wrong": _WRONG_FUNCTIONS,
        "slow": _SLOW_FUNCTIONS,
        "hostile": tricks.MODULES | tricks.VALUES,
        "flaky": _FLAKY_FUNCTIONS,
    }
    for name, kind in _STYLES.items():
        for label, sources in functions.items():
            for reason, code in sources.items():
                yield Labelled(name, "python", label, reason, code, kind.cases, kind.how)


def _programs(name: str, kind: Kind) -> Iterator[Labelled]:
    def labelled(language: str, label: str, reason: str, source: str) -> Labelled:
        code = source.replace("@BEGIN\n", "").replace("@END\n", "")
        return Labelled(name, language, label, reason, code, kind.cases, kind.how)

    sources = {path.suffix[1:]: path.read_text() for path in sorted(PROGRAMS.glob(f"{name}.*"))}
    for language, source in sources.items():
        for key, (label, place, reason, statements) in _AROUND.items():
            if key == "blank" and not kind.blank_lines:
                label, reason = "wrong", "a blank line more is another text"
            yield labelled(language, label, reason, source.replace(place, statements[language], 1) if place else source)
        for reason, (old, new) in kind.mistakes.items():
            if old in source:
                yield labelled(language, "wrong", reason, source.replace(old, new))
    for reason, statement in _HOSTILE.items():
        yield labelled("python", "hostile", reason, sources["python"].replace("@BEGIN", statement, 1))
