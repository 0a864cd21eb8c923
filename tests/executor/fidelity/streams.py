"""Standard streams and descriptors."""

from __future__ import annotations

from tests.executor.fidelity.case import Case, programs

_PROGRAMS = r"""
=== streams
import sys
for s in (sys.stdin, sys.stdout, sys.stderr):
    print([s.name, s.mode, s.encoding, s.errors, s.newlines, s.line_buffering, s.write_through, s.isatty(), s.fileno()])
=== buffers
import sys
for s in (sys.stdin, sys.stdout, sys.stderr):
    print(type(s), type(s.buffer), s.buffer.name, s.buffer.raw.mode, s.buffer.raw.closefd)
=== streams_are_the_original
import sys
print(sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__)
=== input_without_stdin
input()
=== stdout_binary
import sys; sys.stdout.buffer.write(bytes(range(256)))
=== stdout_surrogates
print('\udcff')
=== stdout_surrogates_in_stderr
import sys; print('\udcff \u20ac', file=sys.stderr)
=== stdout_non_ascii
print('é日😀')
=== stdout_order
import sys
for i in range(3): print(i); print(i, file=sys.stderr)
sys.stdout.flush(); import os; os.write(1, b'raw\n'); print('end')
=== stdout_mixed_with_children
import os, subprocess
print('first'); subprocess.run(['echo', 'child']); os.system('echo shell'); print('last')
=== stdout_large
print('x' * 900_000); import sys; sys.stderr.write('y' * 300_000)
=== stdout_many_lines
for i in range(20_000): print(i)
=== stdout_closed
import sys; print('kept'); sys.stdout.close()
=== stdout_closed_then_print
import sys; sys.stdout.close(); print('x')
=== stdout_descriptor_closed
import os; print('lost'); os.close(1)
=== stdout_descriptor_closed_empty
import os; os.close(1)
=== stderr_descriptor_closed
import os; os.close(2); 1/0
=== stdout_none
import sys; sys.stdout = None; print('x'); sys.exit(3)
=== stdout_deleted
import sys; del sys.stdout
print('x')
=== stdout_replaced
import io, sys; sys.stdout = io.StringIO(); print('lost'); sys.__stdout__.write('kept')
=== stdout_flush_fails
import sys
class S:
    def write(self, t): pass
    def flush(self): raise OSError('no')
sys.stdout = S()
=== stdout_broken_at_exit
import os
r, w = os.pipe(); os.close(r); print('x'); os.dup2(w, 1)
=== stdout_reconfigured
import sys; sys.stdout.reconfigure(encoding='latin-1', errors='replace'); print('é日')
=== stdout_detached
import sys; b = sys.stdout.detach(); b.write(b'raw\n'); b.flush(); print('x')
=== redirect_stdout
import contextlib, io
with contextlib.redirect_stdout(io.StringIO()) as s: print('x')
print(repr(s.getvalue()))
=== dup_and_restore
import os
print('a', flush=True); saved = os.dup(1); n = os.open('f', os.O_CREAT | os.O_WRONLY); os.dup2(n, 1)
os.system('echo hidden'); os.dup2(saved, 1); print(open('f').read(), saved)
=== open_gives_three
f = open('main.py'); print(f.fileno())
=== descriptors_by_trying
import os
def is_open(n):
    try: os.fstat(n); return True
    except OSError: return False
print([n for n in range(256) if is_open(n)])
=== descriptor_flags
import os, fcntl
for n in (0, 1, 2):
    print(os.get_inheritable(n), os.get_blocking(n), fcntl.fcntl(n, fcntl.F_GETFL) & 3)
=== closerange
import os
os.closerange(3, 256); print('alive'); os.closerange(0, 256)
=== closerange_all_then_code
import os
os.closerange(0, 256); os._exit(5)
=== dup2_over_everything
import os
n = os.open('/dev/null', os.O_RDWR)
for i in range(3, 250): os.dup2(n, i)
print('alive')
=== pipe_size
import fcntl; print(fcntl.fcntl(1, 1032))
=== print_to_a_file
import sys
with open('o', 'w') as f: print('x', file=f)
print(open('o').read(), end='')
=== displayhook
import sys
print(sys.displayhook is sys.__displayhook__, hasattr(sys, 'ps1'), hasattr(sys, 'last_value'))
"""

_SPECIAL = (
    Case(
        "input",
        """
a = input(); b = input('prompt> '); print([a, b])
input()
""",
        stdin=b"one\ntwo",
    ),
    Case(
        "stdin_lines",
        """
import sys
for line in sys.stdin: print(repr(line))
""",
        stdin=b"a\r\nb\n\nc",
    ),
    Case(
        "stdin_binary",
        "import sys; d = sys.stdin.buffer.read(); print(len(d), d[:300])",
        stdin=bytes(range(256)) * 3,
    ),
    Case("stdin_not_utf8", "import sys; print(ascii(sys.stdin.read()))", stdin=b"a\xff\xfe"),
    Case(
        "stdin_huge",
        "import sys, hashlib; print(hashlib.md5(sys.stdin.buffer.read()).hexdigest())",
        stdin=b"0123456789" * 500_000,
    ),
    Case(
        "stdin_facts",
        """
import os, stat, sys
s = os.fstat(0)
print(stat.S_ISREG(s.st_mode), s.st_size, sys.stdin.seekable(), sys.stdin.writable())
""",
        stdin=b"12345",
    ),
    Case("stdin_seek", "import sys; print(sys.stdin.read(), sys.stdin.seek(0), sys.stdin.read())", stdin=b"again"),
    Case(
        "stdin_read_only",
        """
import os
try: os.write(0, b'x')
except OSError as e: print(e.strerror)
""",
        stdin=b"x",
        unlike_landlock="the descriptor is sealed, not opened for reading",
    ),
    Case(
        "stdin_partly_by_a_child",
        """
import os, subprocess
print(os.read(0, 4)); print(subprocess.run(['cat'], capture_output=True).stdout)
""",
        stdin=b"one two",
    ),
    Case("stdin_select", "import select, sys; print(len(select.select([sys.stdin], [], [], 5)[0]))", stdin=b"x"),
    Case(
        "stdin_fileinput",
        """
import fileinput
for line in fileinput.input(): print(fileinput.lineno(), line.strip())
""",
        stdin=b"a\nb\n",
    ),
    Case(
        "stdout_by_name",
        "import sys; open('/dev/stdout', 'w').write('by name\\n'); print(1)",
        unlike_landlock="/dev/stdout leads to /proc",
    ),
    Case("descriptors", "import os; print(sorted(os.listdir('/proc/self/fd')))", unlike_landlock="there is no /proc"),
    Case(
        "descriptors_of_children",
        "import subprocess; print(subprocess.run(['ls', '/proc/self/fd'], capture_output=True).stdout)",
        unlike_landlock="there is no /proc",
    ),
)

CASES = (*programs(_PROGRAMS), *_SPECIAL)
