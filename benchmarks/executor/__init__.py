"""Programs, sessions and overload of a real executor, beside plain subprocesses."""

from benchmarks.executor.overload import overload_rows
from benchmarks.executor.programs import program_rows
from benchmarks.executor.sessions import session_rows

PARTS = {"programs": program_rows, "sessions": session_rows, "overload": overload_rows}
