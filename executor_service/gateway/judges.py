"""The judges that this server has: four of SandboxFusion's, for rows that come with the request. Pure.

Not here: judges that need files of their own, and those for Java classes, HTML and jest. What they would be asked for
is a BadRequest.
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Sequence
from typing import Any

from executor_service.gateway.datasets import Case, Judge, Row, Submission, column, structure, text_of
from executor_service.gateway.errors import BadRequest
from executor_service.gateway.extraction import CodeBlock, all_blocks, best_code, first_block
from executor_service.gateway.requests import compiles
from executor_service.gateway.schemas import RunCodeRequest, SubmitRequest, TestConfig

__all__ = ["DATASETS", "JUDGES", "AutoEval", "CommonOJ", "HumanEval", "Mbpp"]

_MAX_CASES = 10_000
_INSERT = "#<INSERT>"
_PRELUDE = """import collections, copy, datetime, functools, hashlib, heapq, itertools
import math, re, statistics, string, sys
from collections import *
from typing import *
try:
    import numpy, numpy as np
except ImportError:
    pass
"""
"""What HumanEval solutions take for granted."""
_HINTS = {
    "en": "Write a complete program in {language}. It reads from standard input and writes to standard output.",
    "zh": "请用 {language} 编写一个完整的程序，从标准输入读取数据，并将结果写到标准输出。",
}


class CommonOJ:
    """Programs that read standard input: `test` is a list of `{input: {stdin}, output: {stdout}}`."""

    def prompt(self, row: Row, config: TestConfig) -> Row:
        text = text_of(row, "content")
        if config.language is not None:
            text += "\n\n" + _HINTS.get(config.locale or "en", _HINTS["en"]).format(language=config.language)
        return {"id": column(row, "id"), "prompt": text, "labels": structure(row, "labels", dict)}

    def submission(self, request: SubmitRequest, row: Row, blocks: Sequence[CodeBlock]) -> Submission:
        config = request.config
        if config.language is None:
            raise BadRequest("config.language is not set, must be the language of the program")
        tests = structure(row, "test", list)
        if not 1 <= len(tests) <= _MAX_CASES:
            raise BadRequest(f"config.provided_data: 'test' has {len(tests)} cases, must have from 1 to {_MAX_CASES}")
        code = best_code([*all_blocks(request.completion, config.language), *blocks], config.language)
        run_s = config.run_timeout or (10.0 if compiles(config.language) else 20.0)
        cases = []
        for i, test in enumerate(tests):
            run = _run(config, code, config.language, run_s=run_s, compile_s=10.0, stdin=_stream(test, i, "stdin"))
            cases.append(Case(run, _stream(test, i, "stdout"), info={"input": test["input"], "output": test["output"]}))
        return Submission(
            code,
            tuple(cases),
            run_all=bool(config.extra.get("run_all_cases")),
            full_info=bool(config.extra.get("return_full_case")),
        )


class AutoEval:
    """One program: the completion with the row's test code behind it, or where the test says `#<INSERT>`."""

    def prompt(self, row: Row, config: TestConfig) -> Row:
        labels = structure(row, "labels", dict)
        question = text_of(row, "content")
        context = config.extra.get("context", labels.get("context")) or ""
        fewshot = (config.extra.get("fewshot", labels.get("fewshot")) or "") if config.is_fewshot else ""
        if config.is_fewshot and not fewshot:
            raise BadRequest("config.is_fewshot is set, but neither labels nor config.extra have 'fewshot'")
        template = config.extra.get("prompt_template", labels.get("prompt_template"))
        if template:
            values = {"question": question, "fewshot": fewshot, "context": context, "locale": config.locale}
            text = string.Template(str(template)).safe_substitute(values)
        elif not context and not fewshot:
            text = question
        else:
            ask, answer = ("问题：", "答案：") if config.locale == "zh" else ("Question:", "Answer:")
            parts = [context, *(["----------------", fewshot] if context and fewshot else [fewshot])]
            head = "\n\n".join(part for part in parts if part)
            text = f"{head}\n\n{ask}{question}\n\n{answer}\n"
        return {"id": column(row, "id"), "prompt": text, "labels": labels}

    def submission(self, request: SubmitRequest, row: Row, blocks: Sequence[CodeBlock]) -> Submission:
        labels, test = structure(row, "labels", dict), structure(row, "test", dict)
        language = text_of(labels, "programming_language")
        runs_as = str(labels.get("execution_language", language))
        if "java" in (language, runs_as) or "html" in (language, runs_as) or runs_as in ("jest", "junit", "go_test"):
            raise BadRequest(f"labels: programs in {language!r} that run as {runs_as!r} are not judged by this server")
        extra = request.config.extra
        code = _without_main(best_code([*all_blocks(request.completion, language), *blocks], language), language)
        full = _with_test(code, text_of(test, "code"), as_literal=bool(extra.get("repr_code")))
        flag = ""
        if extra.get("append_flag") and runs_as == "python":
            flag = secrets.token_hex(10)
            full += f'\n\nprint("{flag}")'
        files = structure(test, "asset", dict) if test.get("asset") else {}
        if not all(content is None or isinstance(content, str) for content in files.values()):
            raise BadRequest("config.provided_data: test.asset must hold text in base64 for each path")
        run = _run(request.config, full, runs_as, run_s=20.0, compile_s=40.0, files=files)
        return Submission(code, (Case(run, must_print=flag),), full_code=full, extra={})


class HumanEval:
    """Python functions: `prompt` and `test`, which defines check(), and the name of the function in `entry_point`."""

    def prompt(self, row: Row, config: TestConfig) -> Row:
        text = text_of(row, "prompt")
        if config.extra.get("is_freeform"):
            text = f"```python\n{text}\n```\n\nComplete the code above. Answer with all of it, in one fenced block."
        labels = {name: value for name, value in row.items() if name != "prompt"}
        return {"id": column(row, "task_id"), "prompt": text, "labels": labels}

    def submission(self, request: SubmitRequest, row: Row, blocks: Sequence[CodeBlock]) -> Submission:
        if request.config.extra.get("is_freeform"):
            code = best_code([*all_blocks(request.completion, "python"), *blocks], "python")
            body = code
        else:
            # A completion goes on where the prompt ends; it is over where something starts at the margin again.
            code = re.split(r"\n(?=\S)", request.completion, maxsplit=1)[0]
            body = f"{text_of(row, 'prompt')}\n{code}"
        full = f"{_PRELUDE}\n{body}\n{text_of(row, 'test')}\ncheck({text_of(row, 'entry_point')})"
        run = _run(request.config, full, "python", run_s=20.0, compile_s=20.0)
        return Submission(code, (Case(run),), full_code=full)


class Mbpp:
    """Python functions: assertions in `test_list`, and `labels.test_setup_code` before them."""

    def prompt(self, row: Row, config: TestConfig) -> Row:
        tests = "\n".join(map(str, structure(row, "test_list", list)))
        text = f"You are an expert Python programmer, and here is your task: {text_of(row, 'content')} "
        text += f"Your code should pass these tests:\n\n{tests}"
        return {"id": column(row, "id"), "prompt": text, "labels": structure(row, "labels", dict)}

    def submission(self, request: SubmitRequest, row: Row, blocks: Sequence[CodeBlock]) -> Submission:
        labels, tests = structure(row, "labels", dict), structure(row, "test_list", list)
        if not tests:
            raise BadRequest("config.provided_data: 'test_list' is empty, must have an assertion")
        code = first_block(request.completion.partition("[DONE]")[0], "python")
        for end in ("\nassert", '\n"""', "if __name__ =="):
            code = code.partition(end)[0]
        code = f"{labels.get('test_setup_code', '')}\n{code}"
        used = tests[-1:] if request.config.is_fewshot else tests
        full = "\n".join([code, *map(str, used)]) + "\n"
        return Submission(code, (Case(_run(request.config, full, "python", run_s=20.0)),), full_code=full)


JUDGES: dict[str, Judge] = {
    "CommonOJDataset": CommonOJ(),
    "AutoEvalDataset": AutoEval(),
    "AutoEvalV4Dataset": AutoEval(),
    "AutoEvalV5Dataset": AutoEval(),
    "AutoEvalV6Dataset": AutoEval(),
    "HumanEvalDataset": HumanEval(),
    "MBPPDataset": Mbpp(),
}
"""By the name that `config.dataset_type` gives them."""

DATASETS: dict[str, Judge] = {
    "code_contests": JUDGES["CommonOJDataset"],
    "humaneval_python": JUDGES["HumanEvalDataset"],
    "mbpp": JUDGES["MBPPDataset"],
}
"""Data sets whose judge is known without `config.dataset_type`."""


def _run(
    config: TestConfig,
    code: str,
    language: str,
    *,
    run_s: float,
    compile_s: float = 10.0,
    stdin: str | None = None,
    files: dict[str, str | None] | None = None,
) -> RunCodeRequest:
    return RunCodeRequest.model_construct(
        code=code,
        language=language,
        run_timeout=config.run_timeout or run_s,
        compile_timeout=config.compile_timeout or compile_s,
        memory_limit_mb=-1,
        stdin=stdin,
        files=files or {},
        fetch_files=[],
    )


def _stream(test: Any, index: int, name: str) -> str:
    side = "input" if name == "stdin" else "output"
    try:
        value = test[side][name]
        if isinstance(value, str):
            value.encode()
            return value
    except (KeyError, TypeError, UnicodeEncodeError):
        pass
    raise BadRequest(f"config.provided_data: test[{index}].{side}.{name} is missing or not text")


def _without_main(code: str, language: str) -> str:
    """Without what would run by itself."""
    ends = {"python": ['if __name__ == "__main__":'], "cpp": ["int main()"]}.get(language, [])
    for end in [*ends, "# Example usage"]:
        if end in code:
            code = code.partition(end)[0].strip()
    return code


def _with_test(code: str, test: str, *, as_literal: bool) -> str:
    before, marker, after = test.partition(_INSERT)
    if not marker:
        code = code.partition("if __name__ ==")[0]
    shown = repr(code) if as_literal else code
    return before + shown + after if marker else f"{shown}\n{test}"
