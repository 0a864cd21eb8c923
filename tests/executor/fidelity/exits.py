"""Exit codes and signals that end a program."""

from __future__ import annotations

from dataclasses import replace

from tests.executor.fidelity.case import Case, programs

_EXITS = r"""
=== exit_0
sys.exit(0)
=== exit_none
sys.exit()
=== exit_3
sys.exit(3)
=== exit_256
sys.exit(256)
=== exit_300
sys.exit(300)
=== exit_negative
sys.exit(-1)
=== exit_huge
sys.exit(10**30)
=== exit_true
sys.exit(True)
=== exit_float
sys.exit(1.5)
=== exit_string
sys.exit('a message')
=== exit_tuple
sys.exit((1, 2))
=== exit_raise
raise SystemExit(7)
=== exit_raise_class
raise SystemExit
=== exit_quit
quit()
=== exit_exit_with
exit(4)
=== exit_subclass
class S(SystemExit): pass
raise S(5)
=== exit_changed_code
e = SystemExit(1); e.code = 9; raise e
=== exit_in_finally
try: 1/0
finally: sys.exit(2)
=== exit_os_exit
sys.stdout.flush(); os._exit(6)
=== exit_os_exit_without_flush
os._exit(6)
=== exit_after_exception
raise ValueError('x')
=== exit_base_exception
raise BaseException('x')
=== exit_generator_exit
raise GeneratorExit
=== exit_keyboard_interrupt
raise KeyboardInterrupt
=== exit_keyboard_interrupt_with_text
raise KeyboardInterrupt('x')
=== exit_bad_str
class E(Exception):
    def __str__(self): 1/0
raise E
=== exit_abort
os.abort()
"""
_SIGNALS = (
    "SIGTERM",
    "SIGKILL",
    "SIGSEGV",
    "SIGALRM",
    "SIGABRT",
    "SIGUSR1",
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGPIPE",
    "SIGXFSZ",
)

_IGNORED = ("SIGPIPE", "SIGXFSZ")
"""Ignored by Python: nothing ends the sleep after them."""
_FORGOTTEN = "Exception ignored on threading shutdown:\nOverflowError: .*\n"
"""Python 3.13 finds the error of a number that is too large for an exit code again when it ends."""

CASES = tuple(
    replace(case, source=f"import sys, os\nprint('before')\n{case.source}", ignore=_FORGOTTEN)
    for case in programs(_EXITS)
)
SIGNALS = tuple(
    Case(f"dies_of_{name}", f"import os, signal, time\nos.kill(os.getpid(), signal.{name}); time.sleep({sleep})\n")
    for name, sleep in ((name, 0.1 if name in _IGNORED else 5) for name in _SIGNALS)
)
