"""The summary at the end of `make test`, over results that pytest itself wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import summary

PROGRAM = """
import pytest
def test_good(): pass
def test_bad(): assert 0
def test_left(): pytest.skip("needs ruby")
@pytest.mark.xfail
def test_gap(): assert 0
@pytest.fixture
def broken(): raise OSError
def test_error(broken): pass
"""


def test_counts_failures_and_reasons_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_it.py").write_text(PROGRAM)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py", "--junitxml=one.xml"]
    plain = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run(words, cwd=tmp_path, env=plain, capture_output=True, timeout=60, check=False)
    assert summary.main([str(tmp_path), "one", "two"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[1].split()[:5] == ["one", "1", "2", "1", "1"]
    assert said[2].split() == ["two", "no", "result"]
    assert "    1  needs ruby" in said
    assert said[-4:] == [
        "FAILED test_it::test_bad (one)",
        "FAILED test_it::test_error (one)",
        "FAILED two: pytest did not come to its end",
        "1 passed, 3 failed, 1 skipped",
    ]


def test_all_green_is_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.xml").write_text('<testsuites><testsuite time="60"><testcase name="a"/></testsuite></testsuites>')
    assert summary.main([str(tmp_path), "one"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"
