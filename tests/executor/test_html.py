"""Results as notebooks show them: all that programs say is text, and pictures are pictures."""

from __future__ import annotations

import pytest

from executor_service import Cause, Display, ExecutionResult, ExecutorClient, Outcome, Output, OutputFile
from executor_service.model import Compilation, FileStatus

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


async def test_a_run_is_shown_with_its_values(executor: ExecutorClient) -> None:
    code = f"import sys; print({HOSTILE!r}); print('warned', file=sys.stderr); 6 * 7"
    shown = (await executor.execute(code, display=True))._repr_html_()
    assert "<b>FINISHED, " in shown
    assert "&lt;/pre&gt;&lt;script&gt;alert(1)" in shown
    assert "<script" not in shown
    assert "<img" not in shown
    assert "<small>stderr</small><pre>warned\n</pre>" in shown
    assert "<pre>42</pre>" in shown
    failed = (await executor.execute("raise SystemExit(3)"))._repr_html_()
    assert "<b>NONZERO_EXIT, exit code 3, cause POLICY, " in failed


@pytest.mark.parametrize("kind", ["image/png", "image/svg+xml"])
def test_pictures_are_images_and_other_forms_are_not_used(kind: str) -> None:
    values = {kind: b"\x89P", "text/html": HOSTILE.encode(), "text/plain": HOSTILE.encode()}
    result = ExecutionResult(Outcome.FINISHED, Cause.POLICY, displays=(Display(values), Display({"text/plain": b"1"})))
    shown = result._repr_html_()
    assert f'src="data:{kind};base64,iVA="' in shown
    assert shown.count("<img") == 1
    assert 'alt="&lt;/pre&gt;&lt;script&gt;' in shown
    assert "<pre>1</pre>" in shown


def test_what_is_long_is_cut_and_files_and_compilers_are_told_of() -> None:
    result = ExecutionResult(
        Outcome.COMPILE_ERROR,
        Cause.POLICY,
        stdout=Output(b"x" * 30_000, 30_000),
        files=(OutputFile("<a>", FileStatus.RETURNED, b"1", 1),),
        compilation=Compilation(Outcome.NONZERO_EXIT, stderr=Output(b"error: <", 8, truncated=True)),
    )
    shown = result._repr_html_()
    assert len(shown) < 21_000
    assert "<small>stdout (cut)</small>" in shown
    assert "compiler&#x27;s stderr (cut)</small><pre>error: &lt;</pre>" in shown
    assert "files: &lt;a&gt; (RETURNED, 1 bytes)" in shown
