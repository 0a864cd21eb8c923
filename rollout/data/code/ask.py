"""Words that ask for a program, in the language and the form in which the rewards look for it."""

from __future__ import annotations

import json

from rollout.data.code.problem import CodeProblem

_NAMES = {
    "python": "Python",
    "cpp": "C++",
    "java": "Java",
    "go": "Go",
    "rust": "Rust",
    "javascript": "JavaScript",
}
"""Languages whose names in a sentence are not those of their blocks."""


def ask_of(problem: CodeProblem, language: str) -> str:
    """The end of a prompt."""
    name = _NAMES.get(language, language)
    block = f"at the end of your answer:\n```{language}\n...\n```"
    if problem.reward == "humaneval":
        return (
            f"Complete this function in {name}. Put the whole of it, with the imports that it needs, into one block, "
            + block
        )
    return f"Write {name} code. Put the whole program into one block, {block}"


def needs_python(problem: CodeProblem) -> bool:
    """Says whether its tests call Python: then no other language can be asked for."""
    truth = json.loads(problem.ground_truth)
    if isinstance(truth, list):  # of cases, or of assertions
        return any(isinstance(each, str) for each in truth)
    return problem.reward != "code_tests" or bool(truth.get("fn_name") or truth.get("assert_case"))
