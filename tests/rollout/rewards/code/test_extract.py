"""Extraction of the program from an answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.rewards.code import Extracted, extract_code


@pytest.mark.parametrize(
    ("text", "code", "fenced"),
    [
        ("Sure:\n```python\na = 1\n```\nDone.", "a = 1\n", True),
        ("```\na = 1\n```", "a = 1\n", True),
        ("```Python\r\na = 1\r\nb = 2\r\n```\r\n", "a = 1\nb = 2\n", True),
        ("~~~py\na\n~~~", "a\n", True),
        ("```{.python}\na\n```", "a\n", True),
        ("```python title=x.py\na\n```", "a\n", True),
        # The last one of the language, whatever follows it.
        ("```python\nold\n```\n```python\nnew\n```\nIt prints:\n```text\n3\n```\n```\n4\n```", "new\n", True),
        ("```python\nkept\n```\n```python\ncut", "kept\n", True),
        ("```python\n\n```\n```\na\n```", "a\n", True),
        # A longer fence holds shorter ones.
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n", True),
        ("1. So:\n   ```python\n   if a:\n       b\n\n   ```", "if a:\n    b\n\n", True),
        ("```python\n    return 1\n```", "    return 1\n", True),
        ("<think>```python\nwrong\n```</think>\n```python\nright\n```", "right\n", True),
        ("<think>```python\nwrong\n```</think> I give up.", "", False),
        ("```python\na = 1", "a = 1\n", False),
        ("```\na = 1\n", "a = 1\n\n", False),
        ("```json\n{}\n```", "", False),
        ("```cpp\nint main() {}\n```", "", False),
        ("a = 1", "", False),
        ("use `a = 1` or ```a = 1```", "", False),
        ("", "", False),
    ],
)
def test_the_program_of_an_answer(text: str, code: str, fenced: bool) -> None:
    assert extract_code(text) == Extracted(code, fenced)


def test_a_text_without_a_fence_is_a_program_where_that_is_allowed() -> None:
    assert extract_code("    return 1\n", whole=True) == Extracted("    return 1\n", fenced=False)
    assert not extract_code(" \n", whole=True).code
    assert not extract_code("so:\n```json\n{}\n```", whole=True).code


@pytest.mark.parametrize(("language", "tag"), [("cpp", "c++"), ("nodejs", "js"), ("klingon", "Klingon"), ("R", "r")])
def test_a_block_is_of_the_language_that_is_asked_for(language: str, tag: str) -> None:
    assert extract_code(f"```python\nno\n```\n```{tag}\nyes\n```", language).code == "yes\n"


@given(st.text(alphabet="`~ \n\rpyx{}", max_size=80))
def test_any_text_has_one_program_or_none(text: str) -> None:
    found = extract_code(text, whole=True)
    assert bool(found.code) == bool(found.code.strip())
