"""Abilities of a cell: state, displayed values, errors, input, files, `await`, exits."""

from __future__ import annotations

import re

import pytest

from executor_service import (
    Cause,
    Display,
    ExecutionResult,
    ExecutorClient,
    FileStatus,
    InputFile,
    Limits,
    Outcome,
    Session,
)
from executor_service.guest.serve.display import MAX_DISPLAYS, MAX_FORM, MAX_TEXT
from tests.executor.levels import STRONGEST, Level

pytestmark = pytest.mark.parametrize("level", STRONGEST, indirect=True, scope="session")
"""Tests of the interpreter that serves cells, in which the level has no part."""


def shown(result: ExecutionResult) -> list[str]:
    """Plain texts of what was displayed, of a cell that ended well."""
    assert result.outcome is Outcome.FINISHED, result
    return [display.text for display in result.displays]


async def test_names_imports_and_functions_are_kept(session: Session) -> None:
    await session.run("import math\nx = 3\ndef area(r): return math.pi * r * x")
    assert shown(await session.run("round(area(2), 3)")) == ["18.85"]
    assert shown(await session.run("__name__, math.__name__")) == ["('__main__', 'math')"]


async def test_cells_are_counted_and_results_say_which(session: Session) -> None:
    results = [await session.run("1") for _ in range(3)]
    assert [result.cell for result in results] == [1, 2, 3]
    assert results[0].profile == "python-base"


@pytest.mark.parametrize(
    ("code", "texts"),
    [
        ("1 + 1", ["2"]),
        ("x = 1", []),
        ("None", []),
        ("1\n2", ["2"]),
        ("x = 5; x", ["5"]),
        ("for i in range(2): i", []),
        ("'''several\nlines'''", ["'several\\nlines'"]),
        ("# nothing", []),
        ("display(1, 'a')\n2", ["1", "'a'", "2"]),
        ("print('out')\n[1,\n 2]  # a comment", ["[1, 2]"]),
        ("if True:\n    'not at the top'", []),
        ("f'{1 + 1}'", ["'2'"]),
        ("lambda: 1\n(lambda: 2)()", ["2"]),
        ("1;", ["1"]),
    ],
)
async def test_the_last_expression_is_displayed(session: Session, code: str, texts: list[str]) -> None:
    assert shown(await session.run(code)) == texts


async def test_nothing_is_displayed_where_that_is_asked_for(session: Session) -> None:
    assert shown(await session.run("1 + 1", display=False)) == []


async def test_the_last_value_has_a_name(session: Session) -> None:
    await session.run("6 * 7")
    assert shown(await session.run("_ + 1")) == ["43"]


RICH = """
class Table:
    def __repr__(self): return "Table()"
    def _repr_html_(self): return "<table>"
    def _repr_png_(self): return b"\\x89PNG"
    def _repr_json_(self): return {"a": 1}
    def _repr_latex_(self): raise RuntimeError("broken form")
"""


async def test_values_are_displayed_in_every_form_that_they_have(session: Session) -> None:
    result = await session.run(f"{RICH}\nTable()")
    assert result.displays == (
        Display(
            {
                "text/plain": b"Table()",
                "text/html": b"<table>",
                "image/png": b"\x89PNG",
                "application/json": b'{"a": 1}',
            }
        ),
    )


async def test_a_class_and_what_answers_to_every_name_have_plain_text_alone(session: Session) -> None:
    result = await session.run(f"{RICH}\nfrom unittest.mock import MagicMock\ndisplay(Table, MagicMock(name='m'))")
    assert [set(display.data) for display in result.displays] == [{"text/plain"}, {"text/plain"}]


async def test_a_mimebundle_wins_over_single_forms(session: Session) -> None:
    code = "class B:\n    def _repr_mimebundle_(self, include=None, exclude=None):\n"
    code += "        return {'text/plain': 'plain', 'application/x-y': b'z'}, {}\nB()"
    assert dict((await session.run(code)).displays[0].data) == {"text/plain": b"plain", "application/x-y": b"z"}


async def test_a_repr_that_raises_is_the_error_of_the_cell(session: Session) -> None:
    result = await session.run("class Bad:\n    def __repr__(self): return 1 / 0\nBad()")
    assert (result.outcome, result.message) == (Outcome.NONZERO_EXIT, "ZeroDivisionError: division by zero")


async def test_what_is_displayed_is_bounded_by_form(session: Session) -> None:
    code = f"class Big:\n    def __repr__(self): return 'r' * {MAX_TEXT + 5}\n"
    code += f"    def _repr_html_(self): return 'h' * {MAX_FORM + 1}\n    def _repr_svg_(self): return 's' * 10\nBig()"
    (display,) = (await session.run(code)).displays
    assert display.truncated
    assert {kind: len(data) for kind, data in display.data.items()} == {"text/plain": MAX_TEXT, "image/svg+xml": 10}


async def test_the_number_of_displays_is_bounded(session: Session) -> None:
    result = await session.run(f"for i in range({MAX_DISPLAYS + 3}): display(i)")
    assert len(result.displays) == MAX_DISPLAYS
    assert [display.truncated for display in result.displays[-2:]] == [False, True]


async def test_text_that_is_not_valid_unicode_is_displayed(session: Session) -> None:
    code = "class S:\n    def __repr__(self): return '\\ud800'\nS()"
    assert shown(await session.run(code)) == ["\\ud800"]


async def test_an_error_has_the_lines_of_its_cells_and_no_frame_of_ours(session: Session) -> None:
    await session.run("def inner():\n    raise KeyError('k')\n")
    result = await session.run("x = 1\ninner()")
    assert (result.outcome, result.cause, result.exit_code) == (Outcome.NONZERO_EXIT, Cause.POLICY, 1)
    assert re.sub(r"(?m)^ +[~^]+\n", "", result.stderr.text) == (  # without the marks that Python 3.13 sets
        "Traceback (most recent call last):\n"
        '  File "<cell 2>", line 2, in <module>\n'
        "    inner()\n"
        '  File "<cell 1>", line 2, in inner\n'
        "    raise KeyError('k')\n"
        "KeyError: 'k'\n"
    )
    assert result.message == "KeyError: 'k'"
    assert shown(await session.run("x")) == ["1"]


async def test_a_cell_that_can_not_be_compiled_runs_not_at_all(session: Session) -> None:
    result = await session.run("print('ran')\nreturn 5")
    assert (result.outcome, result.stdout.data) == (Outcome.NONZERO_EXIT, b"")
    assert "'return' outside function" in result.stderr.text
    assert "executor_service" not in result.stderr.text
    assert shown(await session.run("1")) == ["1"]


async def test_source_of_functions_of_a_cell_can_be_read(session: Session) -> None:
    await session.run("def f(x):\n    return x  # here")
    assert shown(await session.run("import inspect\ninspect.getsource(f)")) == ["'def f(x):\\n    return x  # here'"]


@pytest.mark.parametrize(
    ("code", "outcome", "exit_code", "stderr"),
    [
        ("exit()", Outcome.FINISHED, 0, ""),
        ("import sys; sys.exit(3)", Outcome.NONZERO_EXIT, 3, ""),
        ("raise SystemExit('why')", Outcome.NONZERO_EXIT, 1, "why\n"),
    ],
)
async def test_a_cell_that_exits_ends_and_its_session_goes_on(
    session: Session, code: str, outcome: Outcome, exit_code: int, stderr: str
) -> None:
    await session.run("x = 1")
    result = await session.run(code)
    assert (result.outcome, result.exit_code, result.stderr.text) == (outcome, exit_code, stderr)
    assert "goes on" in result.message
    assert shown(await session.run("x")) == ["1"]


async def test_await_at_the_top_uses_one_loop_for_all_cells(session: Session) -> None:
    code = "import asyncio\nqueue = asyncio.Queue()\ntask = asyncio.ensure_future(queue.get())\nawait asyncio.sleep(0)"
    await session.run(code)
    assert shown(await session.run("await queue.put('later')\nawait task")) == ["'later'"]
    assert shown(await session.run("await asyncio.sleep(0, 7)")) == ["7"]


async def test_asyncio_run_works_in_a_cell(session: Session) -> None:
    await session.run("import asyncio\nawait asyncio.sleep(0)")
    assert shown(await session.run("async def f(): return 9\nasyncio.run(f())")) == ["9"]


async def test_future_imports_last(session: Session) -> None:
    await session.run("from __future__ import annotations")
    assert shown(await session.run("def f(x: not_there): pass\nf.__annotations__")) == ["{'x': 'not_there'}"]


async def test_each_cell_has_its_own_input(session: Session) -> None:
    assert shown(await session.run("input(), input()", stdin=b"one\ntwo\nthree")) == ["('one', 'two')"]
    result = await session.run("input()")
    assert result.message == "EOFError: EOF when reading a line"
    assert shown(await session.run("import sys; sys.stdin.read()", stdin="\u00e9".encode())) == ["'\u00e9'"]
    assert shown(await session.run("import subprocess; subprocess.run(['cat'], capture_output=True).stdout")) == ["b''"]


async def test_files_are_put_and_returned_by_cell(session: Session) -> None:
    put = [InputFile("data/a.txt", b"one"), InputFile("run.sh", b"", mode=0o755)]
    await session.run("1", files=put)
    result = await session.run(
        "import os\nopen('out', 'w').write(open('data/a.txt').read() + '!')\noct(os.stat('run.sh').st_mode & 0o777)",
        files=[InputFile("data/a.txt", b"two")],
        return_paths=["out", "nothing"],
    )
    assert shown(result) == ["'0o755'"]
    assert [(file.path, file.status, file.content) for file in result.files] == [
        ("out", FileStatus.RETURNED, b"two!"),
        ("nothing", FileStatus.MISSING, b""),
    ]


async def test_files_that_can_not_be_written_keep_the_cell_from_running(session: Session) -> None:
    await session.run("import os; os.mkdir('taken'); ran = False")
    result = await session.run("ran = True", files=[InputFile("taken", b"x")])
    assert (result.outcome, result.cause) == (Outcome.NONZERO_EXIT, Cause.POLICY)
    assert "Not run" in result.message
    assert shown(await session.run("ran")) == ["False"]


async def test_returned_files_keep_to_their_limit(session: Session) -> None:
    result = await session.run(
        "open('a', 'wb').write(b'x' * 60); open('b', 'wb').write(b'y' * 60)",
        return_paths=["a", "b"],
        limits=Limits(return_bytes=100),
    )
    assert [file.status for file in result.files] == [FileStatus.RETURNED, FileStatus.TOO_LARGE]


async def test_output_belongs_to_the_cell_that_wrote_it(session: Session) -> None:
    first = await session.run("import sys, os\nprint('a', end='')\nsys.stderr.write('e')\nos.write(1, b'raw')")
    second = await session.run("print('b')")
    assert (sorted(first.stdout.text), first.stderr.text) == (sorted("araw"), "e")
    assert (second.stdout.text, second.stderr.text) == ("b\n", "")


async def test_output_of_what_a_cell_left_running_belongs_to_the_next(session: Session) -> None:
    await session.run(
        "import threading, time\ngo = threading.Event()\n"
        "def work():\n    go.wait(); print('from a thread', flush=True); done.set()\n"
        "done = threading.Event()\nthreading.Thread(target=work, daemon=True).start()"
    )
    result = await session.run("go.set(); done.wait()")
    assert result.stdout.text == "from a thread\n"


async def test_a_cell_that_floods_is_cut_and_counted(session: Session) -> None:
    result = await session.run("print('x' * 5000, end='')", limits=Limits(output_bytes=1000))
    assert (len(result.stdout.data), result.stdout.total_bytes, result.stdout.truncated) == (1000, 5000, True)
    assert (await session.run("print('y')")).stdout.text == "y\n"


async def test_what_a_cell_used_is_told(session: Session) -> None:
    result = await session.run("sum(i * i for i in range(2_000_000))")
    assert result.cpu_time_s > 0
    assert result.wall_time_s > 0
    assert result.peak_memory_bytes > 1 << 20


async def test_a_program_without_a_session_displays_where_that_is_asked_for(executor: ExecutorClient) -> None:
    code = (
        "import os, sys\nprint(__file__ == os.path.abspath('main.py'), sys.argv)\nopen('f', 'w').write(input())\n6 * 7"
    )
    result = await executor.execute(code, display=True, args=["-v"], stdin=b"hello", return_paths=["f"])
    assert shown(result) == ["42"]
    assert result.stdout.text == "True ['main.py', '-v']\n"
    assert result.files[0].content == b"hello"
    assert result.cell == 0
    plain = await executor.execute("6 * 7")
    assert (plain.outcome, plain.displays) == (Outcome.FINISHED, ())


async def test_a_displayed_program_has_the_outcomes_of_a_program(executor: ExecutorClient) -> None:
    limits = Limits(wall_time_s=0.5)
    late = await executor.execute("import time; time.sleep(600)", display=True, limits=limits)
    assert (late.outcome, late.cause, late.exit_code) == (Outcome.TIME_LIMIT, Cause.POLICY, 137)
    gone = await executor.execute("import os; os._exit(4)", display=True)
    assert (gone.outcome, gone.exit_code) == (Outcome.NONZERO_EXIT, 4)
    failed = await executor.execute("def f():\n    1 / 0\nf()", display=True)
    assert failed.stderr.text.splitlines()[1].endswith('/main.py", line 3, in <module>')


async def test_a_forked_child_ends_with_its_cell_and_answers_nothing(session: Session) -> None:
    code = "import os\npid = os.fork()\nprint('child' if pid == 0 else 'parent', flush=True)\n"
    result = await session.run(f"{code}if pid: os.waitpid(pid, 0)\nelse: 1 / 0")
    assert result.outcome is Outcome.FINISHED
    assert sorted(result.stdout.text.split()) == ["child", "parent"]
    assert result.stderr.text.endswith("ZeroDivisionError: division by zero\n")
    assert shown(await session.run("pid > 0")) == ["True"]


async def test_processes_of_multiprocessing_work_in_cells(session: Session, level: Level) -> None:
    if level.landlock:
        pytest.skip("no shared memory, so no locks between processes")
    code = "import multiprocessing as mp\ndef double(x): return 2 * x\n"
    code += "with mp.get_context('fork').Pool(2) as pool: out = pool.map(double, [1, 2])\nout"
    assert shown(await session.run(code)) == ["[2, 4]"]
