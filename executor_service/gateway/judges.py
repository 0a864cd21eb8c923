"""The judges that this server has: four of SandboxFusion's, for rows that come with the request. Pure.

A judge makes prompts of rows, and of a completion the programs that decide. A row that it can't work with is a
BadRequest that names the column. Not here: judges that need files of their own, and those for Java classes, HTML and
jest. What they would be asked for is a BadRequest.
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

from executor_service.gateway.errors import BadRequest
from executor_service.gateway.extraction import CodeBlock, all_blocks, best_code
from executor_service.gateway.requests import compiles
from executor_service.gateway.schemas import RunCodeRequest, SubmitRequest, TestConfig
from fairbox.bounded_json import loads

Row = dict[str, Any]
_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "text"}
_MAX_CASES = 10_000
_DEPTH, _MAX_VALUES = 64, 200_000
"""Most levels and values of columns that are JSON as text; the values are those of all rows of a request."""
_left: ContextVar[list[int]] = ContextVar("values that rows may still hold")
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
"""Imports that HumanEval solutions take for granted."""
_HINTS = {
    "en": "Write a complete program in {language}. It reads from standard input and writes to standard output.",
    "zh": "请用 {language} 编写一个完整的程序，从标准输入读取数据，并将结果写到标准输出。",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One program to run. It passes when it succeeds and, where that is asked for, prints the right thing."""

    request: RunCodeRequest
    info: Row | None = None
    """`{input: {stdin}, output: {stdout}}`, the second of which it must print; None: anything."""
    must_print: str = ""
    """A secret that only a program that ran to its end can print."""


@dataclass(frozen=True, slots=True)
class Submission:
    """Code of a completion and its cases: it is accepted if all cases pass."""

    code: str
    cases: tuple[Case, ...]
    full_code: str | None = None
    extra: Row | None = None


class Judge(NamedTuple):
    """One way to judge; SandboxFusion calls these dataset classes."""

    prompt: Callable[[Row, TestConfig], Row]
    """`{id, prompt, labels}` of a row."""
    submission: Callable[[SubmitRequest, Row, list[CodeBlock]], Submission]
    """The blocks are those that the client's own logic of extraction found."""


def provided(config: TestConfig, kind: type) -> Any:
    """The row or rows of a request, a dict, or a list of them: what its columns hold is counted from here on."""
    _left.set([_MAX_VALUES])
    rows = config.provided_data
    if not rows:
        what = "row" if kind is dict else "rows"
        where = f"config.provided_data, {_KINDS[kind]}"
        raise BadRequest(f"this server has no data sets of its own: give the {what} in {where}")
    if not isinstance(rows, kind):
        wanted = "one object" if kind is dict else "a list of objects"
        raise BadRequest(f"config.provided_data is {_KINDS[type(rows)]}, must be {wanted} here")
    return rows


def _column(row: Row, name: str, kind: type = object) -> Any:
    """A column that holds `kind`; a dict or list may also come as JSON text."""
    if name not in row:
        raise BadRequest(f"config.provided_data has no {name!r}, which this judge needs")
    value = row[name]
    if kind in (dict, list) and isinstance(value, str):
        try:
            value = loads(value, depth=_DEPTH, left=_left.get(), strict=False)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"config.provided_data: {name!r} is text that is not JSON: {error}") from None
    if not isinstance(value, kind):
        raise BadRequest(f"config.provided_data: {name!r} is {type(value).__name__}, must be {_KINDS[kind]}")
    return value


def _run(
    config: TestConfig, code: str, language: str, *, run_s: float = 20.0, compile_s: float = 10.0, **more: Any
) -> RunCodeRequest:
    return RunCodeRequest.model_construct(
        code=code,
        language=language,
        run_timeout=config.run_timeout or run_s,
        compile_timeout=config.compile_timeout or compile_s,
        **more,
    )


def _code_of(request: SubmitRequest, language: str, found: list[CodeBlock]) -> str:
    return best_code([*all_blocks(request.completion, language), *found], language)


def _prompt_of_program(row: Row, config: TestConfig) -> Row:
    text = _column(row, "content", str)
    if config.language is not None:
        text += "\n\n" + _HINTS.get(config.locale or "en", _HINTS["en"]).format(language=config.language)
    return {"id": _column(row, "id"), "prompt": text, "labels": _column(row, "labels", dict)}


def _program(request: SubmitRequest, row: Row, found: list[CodeBlock]) -> Submission:
    """Programs that read standard input: `test` is a list of `{input: {stdin}, output: {stdout}}`."""
    config = request.config
    if config.language is None:
        raise BadRequest("config.language is not set, must be the language of the program")
    tests = _column(row, "test", list)
    if not 1 <= len(tests) <= _MAX_CASES:
        raise BadRequest(f"config.provided_data: 'test' has {len(tests)} cases, must have from 1 to {_MAX_CASES}")
    code = _code_of(request, config.language, found)
    run_s = 10.0 if compiles(config.language) else 20.0
    cases = []
    for i, test in enumerate(tests):
        stdin, _ = _stream(test, i, "input", "stdin"), _stream(test, i, "output", "stdout")
        run = _run(config, code, config.language, run_s=run_s, stdin=stdin)
        cases.append(Case(run, {"input": test["input"], "output": test["output"]}))
    return Submission(code, tuple(cases))


def _stream(test: Any, index: int, side: str, name: str) -> str:
    try:
        value = test[side][name]
        if isinstance(value, str):
            value.encode()
            return value
    except (KeyError, TypeError, UnicodeEncodeError):
        pass
    raise BadRequest(f"config.provided_data: test[{index}].{side}.{name} is missing or not text")


def _prompt_of_question(row: Row, config: TestConfig) -> Row:
    labels = _column(row, "labels", dict)
    question = _column(row, "content", str)
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
    return {"id": _column(row, "id"), "prompt": text, "labels": labels}


def _tested(request: SubmitRequest, row: Row, found: list[CodeBlock]) -> Submission:
    """One program: the completion with the row's test code behind it, or where the test says `#<INSERT>`."""
    labels, test = _column(row, "labels", dict), _column(row, "test", dict)
    language = _column(labels, "programming_language", str)
    runs_as = str(labels.get("execution_language", language))
    if "java" in (language, runs_as) or "html" in (language, runs_as) or runs_as in ("jest", "junit", "go_test"):
        raise BadRequest(f"labels: programs in {language!r} that run as {runs_as!r} are not judged by this server")
    extra = request.config.extra
    code = _without_main(_code_of(request, language, found), language)
    full = _with_test(code, _column(test, "code", str), as_literal=bool(extra.get("repr_code")))
    flag = ""
    if extra.get("append_flag") and runs_as == "python":
        flag = secrets.token_hex(10)
        full += f'\n\nprint("{flag}")'
    files = _column(test, "asset", dict) if test.get("asset") else {}
    if not all(content is None or isinstance(content, str) for content in files.values()):
        raise BadRequest("config.provided_data: test.asset must hold text in base64 for each path")
    run = _run(request.config, full, runs_as, compile_s=40.0, files=files)
    return Submission(code, (Case(run, must_print=flag),), full, extra={})


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


def _prompt_of_humaneval(row: Row, config: TestConfig) -> Row:
    text = _column(row, "prompt", str)
    if config.extra.get("is_freeform"):
        text = f"```python\n{text}\n```\n\nComplete the code above. Answer with all of it, in one fenced block."
    labels = {name: value for name, value in row.items() if name != "prompt"}
    return {"id": _column(row, "task_id"), "prompt": text, "labels": labels}


def _humaneval(request: SubmitRequest, row: Row, found: list[CodeBlock]) -> Submission:
    """Python functions: `prompt` and `test`, which defines check(), and the name of the function in `entry_point`."""
    if request.config.extra.get("is_freeform"):
        code = body = _code_of(request, "python", found)
    else:
        # A completion goes on where the prompt ends; it is over where something starts at the margin again.
        code = re.split(r"\n(?=\S)", request.completion, maxsplit=1)[0]
        body = f"{_column(row, 'prompt', str)}\n{code}"
    full = f"{_PRELUDE}\n{body}\n{_column(row, 'test', str)}\ncheck({_column(row, 'entry_point', str)})"
    return Submission(code, (Case(_run(request.config, full, "python", compile_s=20.0)),), full)


def _prompt_of_mbpp(row: Row, config: TestConfig) -> Row:
    tests = "\n".join(map(str, _column(row, "test_list", list)))
    text = f"You are an expert Python programmer, and here is your task: {_column(row, 'content', str)} "
    text += f"Your code should pass these tests:\n\n{tests}"
    return {"id": _column(row, "id"), "prompt": text, "labels": _column(row, "labels", dict)}


def _mbpp(request: SubmitRequest, row: Row, found: list[CodeBlock]) -> Submission:
    """Python functions: assertions in `test_list`, and `labels.test_setup_code` before them."""
    labels, tests = _column(row, "labels", dict), _column(row, "test_list", list)
    if not tests:
        raise BadRequest("config.provided_data: 'test_list' is empty, must have an assertion")
    code = best_code(all_blocks(request.completion.partition("[DONE]")[0], "python")).replace("\r", "")
    for end in ("\nassert", '\n"""', "if __name__ =="):
        code = code.partition(end)[0]
    code = f"{labels.get('test_setup_code', '')}\n{code}"
    used = tests[-1:] if request.config.is_fewshot else tests
    full = "\n".join([code, *map(str, used)]) + "\n"
    return Submission(code, (Case(_run(request.config, full, "python")),), full)


_AUTO_EVAL = Judge(_prompt_of_question, _tested)
JUDGES = {
    "CommonOJDataset": Judge(_prompt_of_program, _program),
    **{f"AutoEval{version}Dataset": _AUTO_EVAL for version in ("", "V4", "V5", "V6")},
    "HumanEvalDataset": Judge(_prompt_of_humaneval, _humaneval),
    "MBPPDataset": Judge(_prompt_of_mbpp, _mbpp),
}
"""By the name that `config.dataset_type` gives them."""
DATASETS = {
    "code_contests": JUDGES["CommonOJDataset"],
    "humaneval_python": JUDGES["HumanEvalDataset"],
    "mbpp": JUDGES["MBPPDataset"],
}
"""Data sets whose judge is known without `config.dataset_type`."""
