"""Programming problems in the form in which data sets are published: one row of each kind, all the same small tasks."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from typing import Any

SUM = "a, b = map(int, input().split())\nprint(a + b)\n"
METHOD = "class Solution:\n    def add(self, a: int, b: int) -> int:\n        return a + b\n"

CASES = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
PRIVATE = [{"input": "20 22\n", "output": "42\n", "testtype": "stdin"}]


def packed(cases: Any, protocol: int = 4) -> str:
    """Private tests as LiveCodeBench publishes them."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases), protocol))).decode()


LIVECODEBENCH = {
    "question_title": "Sum",
    "question_content": "Print the sum.",
    "platform": "atcoder",
    "question_id": "abc300_a",
    "difficulty": "easy",
    "starter_code": "",
    "public_test_cases": json.dumps(CASES),
    "private_test_cases": packed(PRIVATE),
    "metadata": "{}",
}
LEETCODE = LIVECODEBENCH | {
    "question_id": "3200",
    "platform": "leetcode",
    "starter_code": "class Solution:\n    def add(self, a: int, b: int) -> int:\n        ",
    "public_test_cases": json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}]),
    "private_test_cases": json.dumps([{"input": "20\n22", "output": "42", "testtype": "functional"}]),
    "metadata": '{"func_name": "add"}',
}
CODE_CONTESTS = {
    "name": "1_A. Sum",
    "description": "Print the sum.",
    "public_tests": {"input": ["1 2\n"], "output": ["3\n"]},
    "private_tests": {"input": ["20 22\n"], "output": ["42\n"]},
    "generated_tests": {"input": [], "output": []},
    "source": 2,
    "solutions": {"language": [2, 3], "solution": ["int main() {}", SUM]},
    "time_limit": {"seconds": 1, "nanos": 500_000_000},
    "input_file": "",
    "output_file": "",
}
TESTLIB_CHECKER = """\
#include "testlib.h"
int main(int argc, char* argv[]) {
    registerTestlibCmd(argc, argv);
    if (ouf.readInt() != ans.readInt()) quitf(_wa, "another sum");
    quitf(_ok, "the sum");
}
"""
CODE_CONTESTS_PLUS: dict[str, Any] = {
    "id": "1_A",
    "title": "Sum",
    "description": "Print the sum.",
    "time_limit": 2000,
    "memory_limit": 256,
    "checker": TESTLIB_CHECKER,
    "generator": "int main() {}",
    "correct_submissions": [{"language": "cpp", "code": "int main() {}"}, {"language": "py3", "code": SUM}],
    "incorrect_submissions": [],
    "test_cases": [{"input": "1 2\n", "output": "3\n"}, {"input": "20 22\n", "output": "42\n"}],
}
CODEFORCES = {
    "id": "1/A",
    "title": "Sum",
    "description": "Print the sum.",
    "input_format": "Two numbers.",
    "output_format": "Their sum.",
    "interaction_format": None,
    "note": "Numbers are whole.",
    "examples": [{"input": "1 2", "output": "3"}],
    "official_tests": [{"input": "1 2\n", "output": "3\n"}, {"input": "20 22\n", "output": "42\n"}],
    "official_tests_complete": True,
    "input_mode": "stdio",
    "time_limit": 2.0,
    "generated_checker": None,
}
ANY_ORDER_CHECKER = """\
import sys

given, right, said = (open(path).read() for path in sys.argv[1:4])
print(1 if sorted(said.split()) == sorted(right.split()) else 0)
"""
TACO = {
    "question": "Print the sum.",
    "input_output": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]}),
    "solutions": json.dumps([SUM]),
    "starter_code": "",
    "time_limit": "2.0 seconds",
    "picture_num": None,
}
HUMANEVAL_PLUS = {
    "task_id": "HumanEval/2",
    "prompt": "def half(x: float) -> float:\n    ",
    "entry_point": "half",
    "canonical_solution": "return x / 2\n",
    "base_input": [[3.0]],
    "plus_input": [[0.1], [1e9]],
    "atol": 0,
}
