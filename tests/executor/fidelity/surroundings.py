"""Processes, environment, interpreter state: what a program finds around it."""

from __future__ import annotations

from tests.executor.fidelity.case import Case, programs

_PROGRAMS = r"""
=== sqlite
import sqlite3
c = sqlite3.connect('db')
c.execute('create table t(x)')
c.execute('insert into t values (1)')
c.commit()
print(c.execute('select * from t').fetchall())
=== umask
import os
m = os.umask(0)
os.umask(m)
print(oct(m))
open('f', 'w').close()
os.mkdir('d')
print(oct(os.stat('f').st_mode), oct(os.stat('d').st_mode))
=== working_folder
import os, pathlib
print(os.getcwd(), os.environ.get('PWD'), pathlib.Path.home(), os.path.expanduser('~'))
=== environment_of_children
import subprocess
print(sorted(subprocess.run(['env'], capture_output=True, text=True).stdout.split()))
=== locale
import locale, sys
print(locale.getlocale(), locale.setlocale(locale.LC_ALL))
print(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors(), locale.getpreferredencoding())
=== default_encoding_of_files
open('f', 'w').write('é'); print(open('f', 'rb').read(), open('f').encoding)
=== time_zone
import time, datetime; print(time.tzname, time.timezone, datetime.datetime.fromtimestamp(0))
=== clocks
import time
print(time.process_time() < 5, time.thread_time() < 5, time.perf_counter() > 0)
print(abs(time.time() - time.clock_gettime(0)) < 5)
=== temporary_files
import tempfile, os
print(tempfile.gettempdir(), os.access(tempfile.gettempdir(), 7))
f = tempfile.NamedTemporaryFile()
f.write(b'x')
=== recursion_limit
import sys
def f(n):
    try: return f(n + 1)
    except RecursionError: return n
print(sys.getrecursionlimit(), round(f(0), -2))
=== recursion_on_the_c_stack
import sys; sys.setrecursionlimit(10**6)
def f(n): return n and max([n], key=lambda x: f(x - 1))
try: print(f(5000))
except RecursionError: print('too deep')  # from Python 3.12 on
=== recursion_to_the_end_of_the_stack
import sys; sys.setrecursionlimit(10**8)
def f(n): return max([n], key=lambda x: f(x - 1))
try: f(10**8)
except RecursionError: print('too deep')
=== stack_size
import resource, threading; print(resource.getrlimit(resource.RLIMIT_STACK), threading.stack_size())
=== memory_error
try: bytes(10**15)
except MemoryError as e: print(repr(e))
=== gc
import gc; print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks, gc.garbage)
=== gc_collects
import gc, weakref
class A: pass
a = A(); a.me = a; r = weakref.ref(a); del a
print(gc.collect() > 0, r())
=== gc_by_itself
import gc, weakref
class A: pass
a = A(); a.me = a; r = weakref.ref(a); del a
x = [[] for _ in range(100_000)]
print(r())
=== tracemalloc
import tracemalloc
print(tracemalloc.is_tracing())
tracemalloc.start()
x = bytes(10**6)
print(tracemalloc.take_snapshot().statistics('lineno')[0].traceback)
=== settrace
import sys
print(sys.gettrace(), sys.getprofile())
seen = []
sys.settrace(lambda f, e, a: seen.append((f.f_code.co_name, e)))
def f(): pass
f(); sys.settrace(None); print(seen)
=== trace_is_off_at_exit
import sys
def t(f, e, a): return t
sys.settrace(t)
print(1)
=== hooks
import sys, threading
print(sys.excepthook is sys.__excepthook__, sys.unraisablehook is sys.__unraisablehook__)
print(threading.excepthook is threading.__excepthook__, sys.breakpointhook is sys.__breakpointhook__)
print(sys.get_asyncgen_hooks())
=== interpreter_settings
import sys
print(sys.getswitchinterval(), sys.get_int_max_str_digits())
print(sys.get_coroutine_origin_tracking_depth(), sys.implementation.name, sys.byteorder, sys.hash_info)
=== logging
import logging
print(logging.root.handlers, logging.root.level, logging.root.disabled, logging._handlers.valuerefs())
logging.warning('w')
logging.info('i')
logging.basicConfig(level=10)
logging.debug('d')
=== logging_named
import logging
print(sorted(logging.root.manager.loggerDict)[:0])
logging.getLogger('x').error('e', exc_info=True)
=== library_state
import decimal, socket, random, locale, mimetypes
print(decimal.getcontext(), socket.getdefaulttimeout(), mimetypes.guess_type('a.csv'))
=== random_seeded
import random; random.seed(1); print(random.random(), random.choices('abc', k=9))
=== ctypes
import ctypes, os
libc = ctypes.CDLL(None)
print(libc.getpid() == os.getpid(), libc.abs(-3))
libc.printf(b'from C\n')
libc.fflush(None)
=== ctypes_unflushed_stdio
import ctypes; ctypes.CDLL(None).printf(b'at exit\n'); print('python')
=== limits_can_be_lowered
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
print(resource.getrlimit(resource.RLIMIT_NOFILE))
try: [open('/dev/null') for _ in range(30)]
except OSError as e: print(e.strerror)
=== scheduling
import os; print(os.sched_getscheduler(0), len(os.sched_getaffinity(0)))
=== timers_of_others
import signal, time
print(signal.alarm(0), signal.getitimer(signal.ITIMER_VIRTUAL), signal.getitimer(signal.ITIMER_PROF))
=== files_as_given
import os, stat; print([(n, stat.filemode(os.stat(n).st_mode)) for n in sorted(os.listdir('.'))])
=== compileall
import py_compile, os; py_compile.compile('main.py'); print(os.listdir('__pycache__'))
=== venv_facts
import sys, site, sysconfig
print(sys.prefix, sys.base_prefix, site.ENABLE_USER_SITE, site.getsitepackages(), sysconfig.get_paths()['purelib'])
=== site_helpers
print(exit, quit, copyright is not None, help)
"""

_SPECIAL = (
    Case(
        "host_name",
        r"""
import socket; print(socket.gethostbyname('localhost'))
""",
        unlike_landlock="there are no sockets",
    ),
    Case(
        "multiprocessing_context",
        """
import multiprocessing as mp
print(mp.get_start_method(), mp.current_process(), mp.active_children(), mp.parent_process())
""",
        ignore="pid=\\d+",
    ),
    Case(
        "loopback_server",
        """
import socket, threading
s = socket.create_server(('127.0.0.1', 0))
threading.Thread(target=lambda: s.accept()[0].sendall(b'hi')).start()
print(socket.create_connection(s.getsockname()).recv(9))
""",
        unlike_landlock="there is no loopback",
    ),
    Case(
        "own_name",
        "print(open('/proc/self/comm').read(), open('/proc/self/cmdline').read().rstrip('\\0').split('\\0')[1:])",
        unlike_landlock="there is no /proc",
    ),
    Case(
        "environment",
        "import os; print(sorted(os.environ.items()), os.environb.get(b'X'))",
        env={"X": "y", "EMPTY": ""},
    ),
    Case(
        "environment_in_libc",
        """
import ctypes, os
libc = ctypes.CDLL(None); libc.getenv.restype = ctypes.c_char_p
print(libc.getenv(b'LANG'), libc.getenv(b'X')); os.environ['X'] = '2'; print(libc.getenv(b'X'))
""",
        env={"X": "1"},
    ),
    Case(
        "environment_python",
        "import sys; print(sys.flags, sys.pycache_prefix)",
        env={"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/tmp/c"},
        unlike_landlock="the work folder has another name",
    ),
    Case("environment_hash_seed", "print(hash('abc'))", env={"PYTHONHASHSEED": "7"}),
    Case(
        "environment_unbuffered",
        "import sys, os; sys.stdout.write('a'); os.write(1, b'b'); print(sys.stdout.write_through)",
        env={"PYTHONUNBUFFERED": "1"},
    ),
    Case("environment_io_encoding", "import sys; print(sys.stdout.encoding, 'é')", env={"PYTHONIOENCODING": "latin-1"}),
    Case(
        "environment_path",
        "import sys; print(sys.path)",
        env={"PYTHONPATH": "/sandbox/lib:/x"},
        unlike_landlock="the work folder has another name",
    ),
    Case(
        "environment_warnings",
        "import sys, warnings; print(sys.warnoptions); warnings.warn('x')",
        env={"PYTHONWARNINGS": "error"},
    ),
    Case(
        "environment_time_zone",
        "import time, datetime; print(time.tzname, datetime.datetime.fromtimestamp(0))",
        env={"TZ": "Asia/Tokyo"},
    ),
    Case(
        "environment_locale",
        """
import locale, sys
print(locale.getlocale(), sys.getfilesystemencoding(), locale.getpreferredencoding())
""",
        env={"LC_ALL": "C"},
    ),
    Case("environment_threads", "import os; print(os.environ.get('OMP_NUM_THREADS'))", env={"OMP_NUM_THREADS": "2"}),
    Case("profile", "import cProfile; cProfile.run('sum(range(10))')", ignore="[0-9.]+ seconds|\\d+\\.\\d{3}"),
    Case(
        "numpy_state",
        """
import numpy as np
print(np.geterr(), np.get_printoptions())
np.random.seed(0)
print(np.random.rand(2))
print(np.array([1.0]) / 0)
""",
        needs="numpy",
    ),
    Case(
        "numpy_linear_algebra",
        """
import numpy as np
a = np.arange(9.0).reshape(3, 3) + np.eye(3)
print(np.linalg.inv(a).round(6), np.linalg.svd(a)[1].round(6))
""",
        needs="numpy",
    ),
    Case(
        "numpy_in_children",
        """
import numpy as np, multiprocessing as mp
def f(n): return float((np.ones((n, n)) @ np.ones((n, n))).sum())
if __name__ == '__main__':
    with mp.Pool(2) as p: print(p.map(f, [3, 300]))
""",
        needs="numpy",
        unlike_landlock="/dev/shm is closed, and with it pools",
    ),
    Case(
        "sympy",
        """
from sympy import *
x = symbols('x')
print(integrate(exp(-x**2), (x, -oo, oo)), solve(x**2 - 2), latex(sqrt(x)))
""",
        needs="sympy",
    ),
    Case(
        "pandas",
        """
import pandas as pd
print(pd.DataFrame({'a': [1, 2, 2], 'b': [3., 4., 5.]}).groupby('a').sum(), pd.get_option('display.max_rows'))
""",
        needs="pandas",
    ),
    Case(
        "scipy",
        """
from scipy import stats, optimize
print(round(stats.norm.cdf(1), 6), round(optimize.brentq(lambda x: x * x - 2, 0, 2), 6))
""",
        needs="scipy",
    ),
    Case(
        "http_server",
        """
import http.server, threading, urllib.request
s = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=s.handle_request).start()
print(urllib.request.urlopen(f'http://127.0.0.1:{s.server_port}/main.py').status)
""",
        ignore="\\[.*?\\]",
        unlike_landlock="there is no loopback",
    ),
)

CASES = (*programs(_PROGRAMS), *_SPECIAL)
