"""Ends of programs: exit codes, hooks, threads, signals, finalization."""

from __future__ import annotations

from tests.executor.fidelity.case import Case, programs

_SIGNALS = r"""
=== default_sigpipe
import os, signal
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
r, w = os.pipe(); os.close(r); os.write(w, b'x')
=== broken_pipe
import os
r, w = os.pipe(); os.close(r)
try: os.write(w, b'x')
except BrokenPipeError as e: print(e)
=== alarm_handler
import signal
rang = []
signal.signal(signal.SIGALRM, lambda *a: rang.append(a[0]))
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
while not rang: signal.pause()
signal.setitimer(signal.ITIMER_REAL, 0); print('rang', rang[0])
=== sigint_to_self_caught
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT); signal.pause()
except KeyboardInterrupt: print('caught')
=== raise_signal_handler
import signal
signal.signal(signal.SIGTERM, lambda *a: exit(12))
signal.raise_signal(signal.SIGTERM)
=== segfault
import ctypes; ctypes.string_at(0)
=== signal_table
import signal
print([(n, str(signal.getsignal(n))[:30]) for n in signal.valid_signals() if signal.getsignal(n)])
=== signal_mask
import signal
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.sigpending())
print(signal.getitimer(signal.ITIMER_REAL), signal.set_wakeup_fd(-1))
=== interrupt_main
import _thread, os, sys, threading, time
r, w = os.pipe()
def interrupt():
    while sys._current_frames()[threading.main_thread().ident].f_lineno != 7: time.sleep(0.01)
    _thread.interrupt_main(); os.write(w, b'x')
threading.Thread(target=interrupt).start()
os.read(r, 1)
"""

_PROGRAMS = r"""
=== atexit_order
import atexit
for n in range(3): atexit.register(print, n)
print('end')
=== atexit_exception
import atexit
atexit.register(print, 'last')
atexit.register(lambda: 1/0)
print('end')
=== atexit_after_exception
import atexit
atexit.register(print, 'ran')
1/0
=== atexit_not_at_os_exit
import atexit, os
atexit.register(print, 'ran', flush=True)
os._exit(0)
=== atexit_registers_more
import atexit
atexit.register(lambda: atexit.register(print, 'second'))
=== atexit_prints_to_stderr
import atexit, sys
atexit.register(lambda: sys.stderr.write('bye\n'))
=== atexit_sees_globals
import atexit
x = [1]
atexit.register(lambda: print(x))
=== excepthook
import sys
sys.excepthook = lambda *a: print('hook', a[0], a[2].tb_lineno)
1/0
=== excepthook_fails
import sys
def hook(*a): raise TypeError('in hook')
sys.excepthook = hook
1/0
=== excepthook_none
import sys
del sys.excepthook
1/0
=== last_exception
import atexit, sys
atexit.register(lambda: print(sys.last_type, sys.last_value, sys.last_traceback.tb_lineno))
1/0
=== traceback_limit
import sys
sys.tracebacklimit = 0
def f(): 1/0
f()
=== del_at_exit
class A:
    def __del__(self): print('deleted')
a = A()
print('end')
=== del_in_cycle_at_exit
class A:
    def __del__(self): print('deleted')
a = A(); a.me = a
print('end')
=== del_in_list_at_exit
class A:
    def __del__(self): print('deleted')
x = [A(), {'k': A()}]
print('end')
=== del_in_class_attribute_at_exit
class A:
    def __del__(self): print('deleted')
class B: held = A()
print('end')
=== del_in_exception_at_exit
class A:
    def __del__(self): print('deleted')
def f():
    a = A(); 1/0
f()
=== del_sees_globals
import sys
name = 'global'
class A:
    def __del__(self): print(name, sys is not None)
a = A()
=== weakref_finalize_at_exit
import weakref
class A: pass
a = A(); weakref.finalize(a, print, 'finalized')
=== generator_closed_at_exit
def g():
    try: yield 1
    finally: print('closed')
x = g(); next(x)
=== file_flushed_at_exit
import subprocess, os
f = open('out', 'w'); f.write('kept')
if os.fork() == 0: raise SystemExit
os.wait(); print(open('out').read())
=== thread_joined
import threading, time
said = threading.Event()
threading.Thread(target=lambda: (said.wait(), time.sleep(0.2), print('thread'))).start()
print('main'); said.set()
=== daemon_not_joined
import threading, time
threading.Thread(target=lambda: (time.sleep(30), print('thread')), daemon=True).start()
print('main')
=== thread_joined_after_exception
import threading, time
threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()
1/0
=== thread_exception
import threading
t = threading.Thread(target=lambda: 1/0, name='worker'); t.start(); t.join(); print('main')
=== thread_system_exit
import sys, threading
t = threading.Thread(target=sys.exit, args=(5,)); t.start(); t.join(); print('main')
=== thread_at_atexit
import atexit, threading, time
atexit.register(print, 'atexit')
threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()
=== thread_register_atexit
import threading
threading._register_atexit(print, 'before threads')
print('main')
=== executor_left_open
from concurrent.futures import ThreadPoolExecutor
import threading, time
said = threading.Event()
p = ThreadPoolExecutor(); p.submit(lambda: (said.wait(), time.sleep(0.2), print('done')))
print('main'); said.set()
=== async_generator_at_exit
import asyncio
async def g():
    try: yield 1
    finally: print('closed')
async def main():
    async for _ in g(): break
asyncio.run(main())
=== unawaited_coroutine
async def f(): pass
f()
print('end')
=== fork_child_ends_normally
import os, atexit
atexit.register(print, 'exit of', 'child' if os.getpid() != 1 else '')
pid = os.fork()
if pid: os.wait(); print('parent')
else: print('child')
=== fork_child_raises
import os, sys
if os.fork() == 0: raise ValueError('child')
_, status = os.wait(); print(os.waitstatus_to_exitcode(status))
=== exec_another
import os, sys
print('lost if not flushed', flush=True)
os.execv(sys.executable, [sys.executable, '-c', 'print(1); exit(8)'])
=== module_state_at_exit
import sys
class A:
    def __del__(self): print(sys.modules is None, sys.is_finalizing())
sys.keep = A()
=== gc_at_exit
import gc
gc.disable()
class A:
    def __del__(self): print('deleted')
for n in range(2):
    a = A(); a.me = a
    del a
print('end')
=== finalizing_flag
import sys, atexit
atexit.register(lambda: print(sys.is_finalizing()))
"""

_SPECIAL = (
    Case(
        "atexit_system_exit",
        """
import atexit, sys
atexit.register(sys.exit, 5)
print('end')
""",
        ignore="Traceback .*\\n  File .*program.py.*\\n",
    ),
    Case(
        "faulthandler",
        "import faulthandler, ctypes; faulthandler.enable(); ctypes.string_at(0)",
        ignore="0x\\w+|Extension modules.*\\n|  File .* in \\w+\\n",
    ),
    Case(
        "faulthandler_dump",
        """
import faulthandler
def f(): faulthandler.dump_traceback()
f()
""",
        ignore="0x\\w+",
    ),
    Case(
        "unraisable",
        """
class A:
    def __del__(self): 1/0
A()
print('goes on')
""",
        ignore="0x\\w+",
    ),
    Case(
        "temporary_directory_at_exit",
        """
import tempfile
d = tempfile.TemporaryDirectory()
print('end')
""",
        ignore="tmp\\w+",
    ),
    Case(
        "main_thread",
        """
import threading, os
t = threading.current_thread()
print(t, t is threading.main_thread(), t.native_id == os.getpid(), threading.enumerate())
""",
        ignore="\\d{9,}",
    ),
)

CASES = (*programs(_PROGRAMS), *_SPECIAL)
SIGNALS = (
    *programs(_SIGNALS),
    Case(
        "signals_of_children",
        """
import subprocess
print(subprocess.run(['grep', '-E', 'Sig(Ign|Blk|Cgt)', '/proc/self/status'], capture_output=True).stdout)
""",
        unlike_landlock="there is no /proc",
    ),
)
