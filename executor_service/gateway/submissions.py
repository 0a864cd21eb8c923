"""Judges completions: extracts the code, runs what the judge asks for, a few cases at a time, and says what passed.

Invariants: a client's own logic of extraction runs in a sandbox; cases are reported in their order; a case that could
not be run makes the whole verdict Unavailable, so that nothing is rejected for a reason that is not the completion's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from executor_service.gateway import extraction
from executor_service.gateway.errors import BadRequest
from executor_service.gateway.executions import Executions
from executor_service.gateway.extraction import CodeBlock
from executor_service.gateway.judges import DATASETS, JUDGES, Case, Judge, Row, provided
from executor_service.gateway.replies import run_code_reply
from executor_service.gateway.requests import budget_of, execution_of
from executor_service.gateway.schemas import RunCodeRequest, SubmitRequest, TestConfig
from executor_service.grading.rules import OutputBudget
from executor_service.model import FileStatus
from executor_service.v1 import executor_pb2 as pb
from fairbox.apart import AT_ONCE, read_apart
from fairbox.bounded_json import loads

_TOLERANCE = 1e-5
_NUMBER = 4300
"""Characters of a number."""
_TINY = 1e-10
"""Smallest number that differences are related to."""
_SHOWN = 1000
"""Characters of an input or output that are repeated for a case that passed."""


def same_output(printed: str, expected: str) -> bool:
    """Line by line, without white space at the ends of lines and of the text, in lower case; two lines that are numbers
    may differ by a relative 1e-5."""
    lines = zip_longest(_lines(printed.strip()), _lines(expected.strip()))
    return all(a is not None and b is not None and _same_line(a, b) for a, b in lines)


def _lines(text: str) -> Iterator[str]:
    """One by one: to make millions holds the interpreter."""
    begin = 0
    while (end := text.find("\n", begin)) >= 0:
        yield text[begin:end]
        begin = end + 1
    yield text[begin:]


def shortened(text: str) -> str:
    """Both ends of a long text."""
    if len(text) <= _SHOWN:
        return text
    half = (_SHOWN - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def _same_line(printed: str, expected: str) -> bool:
    a, b = printed.lower().strip(), expected.lower().strip()
    if a == b:
        return True
    if len(a) > _NUMBER or len(b) > _NUMBER:
        return False
    try:
        x, y = float(a), float(b)
    except ValueError:
        return False
    return abs(x - y) / max(abs(y), _TINY) < _TOLERANCE


_CASES_AT_ONCE = 4
"""Cases of one submission that run at once: a problem with hundreds of them does not fill the queue."""
_USUAL_OUTPUT = 100_000
"""Expected outputs up to this fit into the default limit, with room for what is wrong."""
_EXTRACTION = Path(extraction.__file__).read_bytes()
_KEPT_BYTES = 32 << 20
"""Output of all cases of a submission together; what is beyond is cut."""
_BLOCKS = "blocks.json"
_BLOCKS_DEPTH, _MOST_BLOCKS = 2, 4000
"""A block is three values."""
_ROW_SIZE = AT_ONCE
"""Bytes that a row is taken to have, so that it is always looked through apart."""
_EXTRACT = f"""
import dataclasses, json
from extraction import CodeBlock, extract_fenced_code, extract_heuristic_code
blocks = []
scope = dict(
    CodeBlock=CodeBlock,
    completion=open("completion.txt", encoding="utf-8", newline="").read(),
    submit_code_blocks=blocks.extend,
    extract_fenced_code=extract_fenced_code,
    extract_heuristic_code=extract_heuristic_code,
)
exec(compile(open("logic.py", encoding="utf-8").read(), "logic.py", "exec"), scope)
with open("{_BLOCKS}", "w", encoding="utf-8") as file:
    json.dump([dataclasses.asdict(block) for block in blocks], file)
"""


def judge_of(dataset: str, config: TestConfig) -> Judge:
    """Raises BadRequest for a data set or a judge that this server does not know."""
    if dataset in DATASETS:
        return DATASETS[dataset]
    if config.dataset_type is None:
        raise BadRequest(f"no eval class found for dataset {dataset}")
    if config.dataset_type not in JUDGES:
        raise BadRequest(f"eval class {config.dataset_type} not found")
    return JUDGES[config.dataset_type]


class Submissions:
    def __init__(self, executions: Executions, *, queue_s: float) -> None:
        self._executions = executions
        self._queue_s = queue_s

    async def judge(self, request: SubmitRequest) -> Row:
        """Judges a completion against the row in config.provided_data.

        Raises BadRequest, Unacceptable and Unavailable.
        """
        config = request.config
        judge, row, logic = judge_of(request.dataset, config), provided(config, dict), config.custom_extract_logic
        blocks = [] if logic is None else await self._extract(request.completion, logic)
        size = len(request.completion) + _ROW_SIZE
        submission = await read_apart(size, lambda: judge.submission(request, row, blocks))
        tests = await self._run_all(submission.cases, config)
        return {
            "id": request.id,
            "accepted": len(tests) == len(submission.cases) and all(test["passed"] for test in tests),
            "extracted_code": submission.code,
            "full_code": submission.full_code,
            "test_code": None,
            "tests": tests,
            "extracted_type": None,
            "extra": submission.extra,
        }

    async def _run_all(self, cases: Sequence[Case], config: TestConfig) -> list[Row]:
        """Verdicts in the order of the cases, up to the first that fails unless all are to be run."""
        run_all, full_info = config.extra.get("run_all_cases"), bool(config.extra.get("return_full_case"))
        verdicts: list[Row] = []
        budget = OutputBudget(_KEPT_BYTES)
        for start in range(0, len(cases), _CASES_AT_ONCE):
            some = cases[start : start + _CASES_AT_ONCE]
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._run(case, budget, full_info=full_info)) for case in some]
            except BaseExceptionGroup as failures:
                raise failures.exceptions[0] from None
            for task in tasks:
                verdicts.append(task.result())
                if not run_all and not verdicts[-1]["passed"]:
                    return verdicts
        return verdicts

    async def _run(self, case: Case, budget: OutputBudget, *, full_info: bool) -> Row:
        execution, info = await asyncio.to_thread(execution_of, case.request), case.info
        expected = None if info is None else info["output"]["stdout"]
        if expected is not None and len(expected) > _USUAL_OUTPUT:
            # A right answer must not be cut.
            execution.limits.output_bytes = 2 * len(expected.encode())
        result = await self._executions.run(execution, budget_of(case.request, self._queue_s))

        def right() -> bool:
            printed = result.stdout.text
            if expected is not None and (result.stdout.truncated or not same_output(printed, expected)):
                return False
            return case.must_print in printed

        passed = result.ok and await read_apart(result.size + len(expected or ""), right)
        if info is not None and passed and not full_info:
            info = {side: {k: shortened(str(v)) for k, v in streams.items()} for side, streams in info.items()}
        kept = budget.cut_execution(result)
        reply = await read_apart(kept.size, lambda: run_code_reply(kept, ()))
        return {"passed": passed, "exec_info": reply, "test_info": info}

    async def _extract(self, completion: str, logic: str) -> list[CodeBlock]:
        """The blocks that a client's own Python finds in a completion."""
        files = [
            pb.InputFile(path="extraction.py", content=_EXTRACTION),
            pb.InputFile(path="completion.txt", content=completion.encode()),
            pb.InputFile(path="logic.py", content=logic.encode()),
        ]
        execution = pb.ExecuteCodeRequest(code=_EXTRACT, files=files, return_paths=[_BLOCKS])
        execution.limits.wall_time_s = 10.0
        budget = budget_of(RunCodeRequest.model_construct(language="python"), self._queue_s)
        result = await self._executions.run(execution, budget)
        if not result.ok or result.files[0].status is not FileStatus.RETURNED:
            last = (result.stderr.text.strip() or result.message).splitlines()[-1:]
            raise BadRequest(f"config.custom_extract_logic failed: {''.join(last)[:400] or result.outcome}")
        try:
            text = result.files[0].content
            read = await read_apart(len(text), lambda: loads(text, depth=_BLOCKS_DEPTH, left=[_MOST_BLOCKS]))
            found = [CodeBlock(**each) for each in read]
            if not all(isinstance(b.priority, int) and isinstance(b.code, str) for b in found):
                raise TypeError("priority must be a number and code text")
            return found
        except (TypeError, ValueError, RecursionError) as error:
            raise BadRequest(f"config.custom_extract_logic: its blocks can't be read: {error}") from None
