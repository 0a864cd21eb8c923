"""HumanEval, MBPP and EvalPlus's editions of both through their reward functions: each canonical solution, a mutant and
a hack of each, graded once, beside what a plain interpreter says of the first two."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.executor.server import INTERPRETER, executor
from benchmarks.rows import Row, figure, skipped
from examples.mutants import mutants_of
from executor_service import ExecutorClient
from rollout.data.code import CodeProblem, read_code_problems
from rollout.rewards import RewardServices, Sample
from rollout.rewards.code import code_asserts, humaneval
from rollout.rewards.code.functions import completion_of

SETS = {
    "HumanEval": "humaneval/HumanEval.jsonl.gz",
    "HumanEval+": "humaneval/HumanEvalPlus.jsonl.gz",
    "MBPP": "mbpp/mbpp.jsonl",
    "MBPP+": "mbpp/mbppplus.jsonl",
}
"""Files in the folder FAIRBOX_DATA."""
BARS_S = {"HumanEval": 0.85}
"""Half of the time that its solutions took when the bar was set."""
KNOWN = ("mbpp/341", "mbpp/630")
"""A mutant that counts on the order of a set, and a test that redefines a function of the program."""
AT_ONCE = 16
"""Answers that are graded at once, as a trainer would send those of a step."""
PLAIN_S = 10.0
"""A plain run that takes longer fails, as a case does by default."""
_LIMITED = ("prlimit", f"--as={2 << 30}")
"""Some mutants fill lists for ever."""
_HACKS: tuple[Callable[[str], str], ...] = (
    lambda name: f"import os\ndef {name}(*a, **k):\n    os._exit(0)\n",
    lambda name: f"def {name}(*a, **k):\n    raise SystemExit(0)\n",
    lambda name: (
        "class Equal(int):\n    __eq__ = __le__ = __ge__ = lambda *a: True\n    __ne__ = lambda *a: False\n"
        f"    __hash__ = int.__hash__\ndef {name}(*a, **k):\n    return Equal()\n"
    ),
    lambda name: f"import builtins\nbuiltins.AssertionError = type('A', (Exception,), {{}})\n{name} = print\n",
    lambda name: f"import sys\nsys.modules['__main__'].check = print\ndef {name}(*a, **k):\n    return a\n",
)
"""Programs that solve nothing, of a function's name."""


@dataclass(frozen=True)
class _Answer:
    problem: CodeProblem
    program: str

    def plain(self) -> str:
        """Program and tests in one source."""
        truth = json.loads(self.problem.ground_truth)
        if self.problem.reward == "humaneval":
            return f"{self.program}\n{truth['test']}\ncheck({truth['entry_point']})\n"
        setup = truth.get("setup_code", "").partition("from solution import")[0]  # uses classes of the program
        return "\n".join([self.program, setup, *truth["assert_case"]])


async def published_rows() -> list[Row]:
    """Wall time of the solutions of each set, and how many answers were graded as they should be."""
    folder, rows = Path(os.environ.get("FAIRBOX_DATA", "data")), []
    for name, place in SETS.items():
        path = folder / place
        if path.is_file():
            rows += await _rows_of(name, read_code_problems(path))
        else:
            rows.append(skipped(name, f"set FAIRBOX_DATA to a folder with {place}"))
    return rows


async def _rows_of(name: str, problems: Sequence[CodeProblem]) -> list[Row]:
    right = [_Answer(problem, problem.solution) for problem in problems]
    wrong = [_Answer(problem, _mutant(problem)) for problem in problems]
    hacks = [_Answer(problem, _hack(problem, number)) for number, problem in enumerate(problems)]
    async with executor("languages=python", "max_concurrent=4") as (client, _):
        await _scores(client, right[:8])
        began = time.perf_counter()
        scores = await _scores(client, right)
        took = time.perf_counter() - began
        scores += await _scores(client, wrong)
        hacked = await _scores(client, hacks)
    plain = await _plain([*right, *wrong])
    number = len(problems)
    same = [each.problem.uid in KNOWN or a == b for each, a, b in zip([*right, *wrong], scores, plain, strict=True)]
    _tell(f"{name}, differs from a plain run", [*right, *wrong], [not each for each in same])
    _tell(f"{name}, fails its own tests", right, [not each for each in plain[:number]])
    _tell(f"{name}, hack with points", hacks, [each != 0.0 for each in hacked])
    bad = f"{number - sum(plain[:number])} fail in a plain run too"
    survivors = f"{sum(plain[number:])} of them pass"
    return [
        figure(f"{name}, {number} solutions", took, "s", most=BARS_S.get(name)),
        figure(f"{name}, one solution", took / number * 1e3, "ms", against=f"{AT_ONCE} at once"),
        figure(f"{name}, solutions worth 1", sum(scores[:number]), "", least=sum(plain[:number]), against=bad),
        figure(f"{name}, mutants worth what a plain run says", sum(same[number:]), "", least=number, against=survivors),
        figure(f"{name}, hacks worth 0", sum(each == 0.0 for each in hacked), "", least=number),
    ]


def _tell(what: str, answers: Sequence[_Answer], which: Sequence[bool]) -> None:
    if found := [answer.problem.uid for answer, chosen in zip(answers, which, strict=True) if chosen]:
        print(f"{what}: {', '.join(found)}", file=sys.stderr)


def _mutant(problem: CodeProblem) -> str:
    found = [mutant.source for mutant in mutants_of(problem.solution)]
    return random.Random(problem.uid).choice(found or [problem.solution])


def _hack(problem: CodeProblem, number: int) -> str:
    truth = json.loads(problem.ground_truth)
    if problem.reward == "humaneval":
        name = completion_of(truth).entry_point
    else:
        names = [
            line.split("(")[0].removeprefix("def ") for line in problem.solution.splitlines() if line[:4] == "def "
        ]
        name = next((each for each in names if f"{each}(" in "".join(truth["assert_case"])), names[-1])
    return _HACKS[number % len(_HACKS)](name)


async def _scores(client: ExecutorClient, answers: Sequence[_Answer]) -> list[float]:
    services, room = RewardServices(executor=client), asyncio.Semaphore(AT_ONCE)

    async def one(answer: _Answer) -> float:
        async with room:
            sample = Sample(text=f"```python\n{answer.program}\n```", ground_truth=answer.problem.ground_truth)
            reward = humaneval if answer.problem.reward == "humaneval" else code_asserts
            return float((await reward(sample, services)).value == 1.0)

    async with asyncio.TaskGroup() as tasks:
        made = [tasks.create_task(one(answer)) for answer in answers]
    return [task.result() for task in made]


async def _plain(answers: Sequence[_Answer]) -> list[float]:
    room = asyncio.Semaphore(len(os.sched_getaffinity(0)))

    async def one(answer: _Answer) -> float:
        async with room:
            process = await asyncio.create_subprocess_exec(*_LIMITED, INTERPRETER, "-", stdin=-1, stdout=-3, stderr=-3)
            try:
                await asyncio.wait_for(process.communicate(answer.plain().encode()), PLAIN_S)
            except TimeoutError:
                process.kill()
            return float(await process.wait() == 0)

    return list(await asyncio.gather(*(one(answer) for answer in answers)))
