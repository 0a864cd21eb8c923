"""Extraction of the program from an answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.rewards.code import CodeSource, extract_code

FENCED, UNCLOSED, WHOLE, NONE = CodeSource.FENCED, CodeSource.UNCLOSED, CodeSource.WHOLE, CodeSource.NONE


@pytest.mark.parametrize(
    ("text", "code", "source"),
    [
        ("Sure:\n```python\na = 1\n```\nDone.", "a = 1\n", FENCED),
        ("```\na = 1\n```", "a = 1\n", FENCED),
        ("```Python\r\na = 1\r\nb = 2\r\n```\r\n", "a = 1\nb = 2\n", FENCED),
        ("~~~py\na\n~~~", "a\n", FENCED),
        ("```{.python}\na\n```", "a\n", FENCED),
        ("```python title=x.py\na\n```", "a\n", FENCED),
        # The last one of the language, whatever follows it.
        ("```python\nold\n```\n```python\nnew\n```\nIt prints:\n```text\n3\n```\n```\n4\n```", "new\n", FENCED),
        ("```python\nkept\n```\n```python\ncut", "kept\n", FENCED),
        ("```python\n\n```\n```\na\n```", "a\n", FENCED),
        # A longer fence holds shorter ones.
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n", FENCED),
        ("1. So:\n   ```python\n   if a:\n       b\n\n   ```", "if a:\n    b\n\n", FENCED),
        ("```python\n    return 1\n```", "    return 1\n", FENCED),
        ("<think>```python\nwrong\n```</think>\n```python\nright\n```", "right\n", FENCED),
        ("<think>```python\nwrong\n```</think> I give up.", "", NONE),
        ("```python\na = 1", "a = 1\n", UNCLOSED),
        ("```\na = 1\n", "a = 1\n\n", UNCLOSED),
        ("```json\n{}\n```", "", NONE),
        ("```cpp\nint main() {}\n```", "", NONE),
        ("a = 1", "", NONE),
        ("use `a = 1` or ```a = 1```", "", NONE),
        ("", "", NONE),
    ],
)
def test_the_program_of_an_answer(text: str, code: str, source: CodeSource) -> None:
    found = extract_code(text)
    assert (found.code, found.source, bool(found)) == (code, source, source is not NONE)


def test_a_text_without_a_fence_is_a_program_where_that_is_allowed() -> None:
    assert extract_code("    return 1\n", whole=True).source is WHOLE
    assert extract_code("    return 1\n", whole=True).code == "    return 1\n"
    assert extract_code(" \n", whole=True).source is NONE
    assert extract_code("so:\n```json\n{}\n```", whole=True).source is NONE


@pytest.mark.parametrize(("language", "tag"), [("cpp", "c++"), ("nodejs", "js"), ("klingon", "Klingon"), ("R", "r")])
def test_a_block_is_of_the_language_that_is_asked_for(language: str, tag: str) -> None:
    assert extract_code(f"```python\nno\n```\n```{tag}\nyes\n```", language).code == "yes\n"


@given(st.text(alphabet="`~ \n\rpyx{}", max_size=80))
def test_any_text_has_one_program_or_none(text: str) -> None:
    found = extract_code(text, whole=True)
    assert bool(found) == bool(found.code.strip())
