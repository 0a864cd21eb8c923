"""Programs of the labelled corpus are judged as labelled. Here those in Python that read standard input and end by
themselves; `make bench-grading` judges all of them."""

from __future__ import annotations

import asyncio
from collections import Counter

from executor_service import ExecutorClient, Limits
from tests.executor.corpus import KINDS, corpus

LIMITS = Limits(wall_time_s=20, memory_bytes=512 << 20, processes=32)


async def test_programs_are_judged_as_labelled(executor: ExecutorClient) -> None:
    programs = [each for each in corpus() if each.kind in KINDS and each.language == "python" and each.label != "slow"]
    results = await asyncio.gather(
        *(executor.verify(each.code, each.cases, limits=LIMITS, **each.how) for each in programs)
    )
    wrong = [
        (program.kind, program.label, program.reason, [(case.verdict, case.message) for case in result.cases])
        for program, result in zip(programs, results, strict=True)
        if not program.agrees(result)
    ]
    assert wrong == []
    assert len(programs) > 100


def test_the_corpus_has_all_that_it_says() -> None:
    programs = list(corpus())
    assert len(programs) >= 600
    assert {each.label for each in programs} == {"right", "wrong", "slow", "hostile", "flaky"}
    assert len({each.kind for each in programs}) == 10
    assert {each.language for each in programs} == {"python", "cpp", "nodejs", "go"}
    same = Counter((each.kind, each.language, each.code) for each in programs)
    assert [what for what, count in same.items() if count > 1] == []
