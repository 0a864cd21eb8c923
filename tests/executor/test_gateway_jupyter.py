"""Cells in one interpreter over `/run_jupyter`: outputs, values, errors, time limits that keep what was done."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from executor_service.guest.protocol import wire
from tests.executor.gateways import GatewayServer

sandbox_fusion = pytest.importorskip("sandbox_fusion")


@pytest.fixture
def server(gateway_server: GatewayServer) -> GatewayServer:
    return gateway_server


def run(server: GatewayServer, *cells: str, **fields: Any) -> dict[str, Any]:
    response = server.post("/run_jupyter", {"cells": cells, **fields})
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def test_cells_share_one_interpreter_and_show_their_last_value(server: GatewayServer) -> None:
    reply = run(server, 'a = "hello"', "a", "print(a)", "a;", "None", "")
    cells = reply["cells"]
    assert (reply["status"], reply["driver"]["status"], reply["driver"]["return_code"]) == ("Success", "Finished", 0)
    assert [cell["stdout"] for cell in cells] == ["", "", "hello\n", "", "", ""]
    assert [cell["display"] for cell in cells] == [[], [{"text/plain": "'hello'"}], [], [], [], []]
    assert all(cell["error"] == [] for cell in cells)


def test_an_error_does_not_stop_the_next_cell(server: GatewayServer) -> None:
    cells = ["x = 1\ndef f():\n    assert x == 2, 'no'\nf()", "1 / 0", "import sys; sys.exit(3)", "def", "print(x)"]
    reply = run(server, *cells)
    errors = [[(error["ename"], error["evalue"]) for error in cell["error"]] for cell in reply["cells"]]
    assert errors[:3] == [
        [("AssertionError", "no")],
        [("ZeroDivisionError", "division by zero")],
        [("SystemExit", "3")],
    ]
    assert [errors[3][0][0], errors[4]] == ["SyntaxError", []]
    trace = "\n".join(reply["cells"][0]["error"][0]["traceback"])
    assert "    assert x == 2, 'no'" in trace
    assert "notebook" not in trace
    assert (reply["status"], reply["cells"][4]["stdout"]) == ("Success", "1\n")


def test_both_streams_of_each_cell_and_of_its_children_are_its_own(server: GatewayServer) -> None:
    reply = run(
        server,
        "import os, sys; print('out'); sys.stderr.write('err\\n')",
        "os.system('echo child; echo wrong >&2')\nprint('after')",
        "sys.stdout.buffer.write(b'\\xff\\n');",
    )
    printed = [(cell["stdout"], cell["stderr"]) for cell in reply["cells"]]
    assert printed == [("out\n", "err\n"), ("child\nafter\n", "wrong\n"), ("\ufffd\n", "")]
    assert (reply["driver"]["stdout"], reply["driver"]["stderr"]) == ("", "")


def test_values_are_shown_in_all_their_forms(server: GatewayServer) -> None:
    rich = """class Rich:
    def _repr_html_(self): return "<b>x</b>"
    def _repr_png_(self): return b"png"
    def _repr_json_(self): return {"a": [1]}
    def _repr_latex_(self): raise RuntimeError
    def __repr__(self): return "rich"
class Whole:
    def _repr_mimebundle_(self, include=None, exclude=None): return {"text/x": "1"}, {}
    def __repr__(self): return "whole"
display(1, "two")
Rich()"""
    reply = run(server, rich, "Whole()", "Rich")
    assert reply["cells"][0]["display"] == [
        {"text/plain": "1"},
        {"text/plain": "'two'"},
        {
            "text/html": "<b>x</b>",
            "image/png": base64.b64encode(b"png").decode(),
            "application/json": {"a": [1]},
            "text/plain": "rich",
        },
    ]
    assert reply["cells"][1]["display"] == [{"text/x": "1", "text/plain": "whole"}]
    assert list(reply["cells"][2]["display"][0]) == ["text/plain"]


def test_a_cell_may_await_and_pickle_what_it_defines(server: GatewayServer) -> None:
    reply = run(
        server,
        "import asyncio, pickle\nasync def f():\n    await asyncio.sleep(0)\n    return 42",
        "await f()",
        "class A: pass\ntype(pickle.loads(pickle.dumps(A()))) is A",
        "__name__",
    )
    shown = [cell["display"][0]["text/plain"] for cell in reply["cells"][1:]]
    assert shown == ["42", "True", "'__main__'"]


def test_files_go_in_and_come_out(server: GatewayServer) -> None:
    content = base64.b64encode(b"AB").decode()
    code = "open('out', 'w').write(open('a/in').read() * 2); import os; sorted(os.listdir('.'))"
    reply = run(server, code, files={"a/in": content}, fetch_files=["out", "missing", "/etc/passwd"])
    assert reply["files"] == {"out": base64.b64encode(b"ABAB").decode()}
    assert reply["files_left_out"] == {"missing": "MISSING", "/etc/passwd": "not in the work folder"}


def test_a_cell_that_takes_too_long_is_interrupted_and_the_next_runs(server: GatewayServer) -> None:
    reply = run(server, "x = 1", "print('part')\nwhile True: x += 1", "print(x > 1)", cell_timeout=1, total_timeout=100)
    assert reply["status"] == "Success"
    assert (reply["cells"][1]["stdout"], reply["cells"][1]["error"][0]["ename"]) == ("part\n", "CellTimeout")
    assert reply["cells"][2]["stdout"] == "True\n"


@pytest.mark.parametrize(
    ("cell", "fields", "outcome", "status", "code"),
    [
        ("print('part')\nwhile True: pass", {"total_timeout": 3}, "TIME_LIMIT", "TimeLimitExceeded", None),
        ("print('part'); x = bytearray(600 << 20)", {"memory_limit_MB": 128}, "MEMORY_LIMIT", "Finished", 137),
        ("print('part', flush=True); import os; os._exit(7)", {}, "NONZERO_EXIT", "Finished", 7),
        ("print('part', flush=True); import os; os._exit(0)", {}, "FINISHED", "Finished", 0),
    ],
)
def test_what_was_done_by_then_is_kept_when_the_interpreter_ends(
    server: GatewayServer, cell: str, fields: dict[str, Any], outcome: str, status: str, code: int | None
) -> None:
    asked = {"total_timeout": 100, "fetch_files": ["kept"], **fields}
    reply = run(server, "open('kept', 'w').write('AB')", cell, "print('never')", **asked)
    assert (reply["status"], reply["outcome"]) == ("Failed", outcome)
    assert (reply["driver"]["status"], reply["driver"]["return_code"]) == (status, code)
    assert len(reply["cells"]) == 2
    assert reply["cells"][0]["display"] == [{"text/plain": "2"}]
    assert (reply["cells"][1]["stdout"], reply["cells"][1]["error"][0]["ename"]) == ("part\n", outcome)
    assert reply["files"] == {"kept": "QUI="}


def test_large_outputs_are_cut_and_marked(server: GatewayServer) -> None:
    reply = run(server, "print('x' * 3_000_000)", *(["'y' * 1_000_000"] * 12), "'y' * 1_100_000", total_timeout=100)
    assert [cell["truncated"] for cell in reply["cells"]] == [True, *([False] * 11), True, True]
    assert len(reply["cells"][0]["stdout"]) == 1 << 20
    assert [len(cell["display"]) for cell in reply["cells"]] == [0, *([1] * 11), 0, 0]


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({}, ["body", "cells"]),
        ({"cells": "1"}, ["body", "cells"]),
        ({"cells": ["\ud800"]}, ["body", "cells", 0]),
        ({"cells": ["1"], "kernel": "julia"}, ["body", "kernel"]),
        ({"cells": ["1"], "total_timeout": 1e5}, ["body", "total_timeout"]),
        ({"cells": ["1"], "files": {"../x": ""}}, ["body", "files", "../x"]),
    ],
)
def test_a_bad_field_is_a_422_that_names_it(server: GatewayServer, body: Any, loc: list[Any]) -> None:
    response = server.post("/run_jupyter", body)
    assert (response.status_code, response.json()["detail"][0]["loc"]) == (422, loc)


def test_no_time_at_all_is_a_timeout_at_once(server: GatewayServer) -> None:
    reply = run(server, "1", total_timeout=0)
    assert (reply["status"], reply["driver"]["status"], reply["cells"]) == ("Failed", "TimeLimitExceeded", [])


async def test_the_client_from_pypi(server: GatewayServer) -> None:
    request = sandbox_fusion.RunJupyterRequest(cells=["a = 123", "a", "print(a)", "raise RuntimeError('x')"])
    for reply in (
        sandbox_fusion.run_jupyter(request, endpoint=server.url, max_attempts=1),
        await sandbox_fusion.run_jupyter_async(request, endpoint=server.url, max_attempts=1),
    ):
        assert reply.status == sandbox_fusion.RunStatus.Success
        assert (reply.cells[1].display, reply.cells[2].stdout) == ([{"text/plain": "123"}], "123\n")
        assert reply.cells[3].error[0]["ename"] == "RuntimeError"


def test_what_is_displayed_is_read_as_json_up_to_a_bound(server: GatewayServer) -> None:
    """All of it would hold the server's event loop for as long as a program likes."""
    code = "class J:\n    def _repr_json_(self): return [0] * 20_000\ndisplay(*[J()] * 256)"
    reply = run(server, code)
    forms = [display["application/json"] for display in reply["cells"][0]["display"] if len(display) > 1]
    read = [form for form in forms if isinstance(form, list)]
    assert (len(read), len(forms) > 100) == ((256 << 10) // 60_000, True)
    assert {json.dumps(form) for form in read} == {form for form in forms if isinstance(form, str)}


def test_what_a_cell_claims_in_place_of_its_interpreter_is_bounded(server: GatewayServer) -> None:
    head = {"type": "done", "cell": 1, "exit_code": 0, "table": 0, "cpu_s": 1e308, "peak_bytes": 0, "resident_bytes": 0}
    said = b"".join(wire.encode(head | {"cell": cell}) for cell in (1, 2))
    driver = run(server, f"import os, time\nos.write(240, {said!r})\ntime.sleep(60)", "1")["driver"]
    assert (driver["status"], driver["cpu_time"] <= 100) == ("Finished", True)
