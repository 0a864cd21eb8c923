"""Exit codes and signals that end a program."""

from __future__ import annotations

from tests.executor.fidelity.case import programs

CASES = programs(
    r"""
=== exit_0
import sys, os
print('before')
sys.exit(0)
=== exit_none
import sys, os
print('before')
sys.exit()
=== exit_3
import sys, os
print('before')
sys.exit(3)
=== exit_256
import sys, os
print('before')
sys.exit(256)
=== exit_300
import sys, os
print('before')
sys.exit(300)
=== exit_negative
import sys, os
print('before')
sys.exit(-1)
=== exit_huge
import sys, os
print('before')
sys.exit(10**30)
=== exit_true
import sys, os
print('before')
sys.exit(True)
=== exit_float
import sys, os
print('before')
sys.exit(1.5)
=== exit_string
import sys, os
print('before')
sys.exit('a message')
=== exit_tuple
import sys, os
print('before')
sys.exit((1, 2))
=== exit_raise
import sys, os
print('before')
raise SystemExit(7)
=== exit_raise_class
import sys, os
print('before')
raise SystemExit
=== exit_quit
import sys, os
print('before')
quit()
=== exit_exit_with
import sys, os
print('before')
exit(4)
=== exit_subclass
import sys, os
print('before')
class S(SystemExit): pass
raise S(5)
=== exit_changed_code
import sys, os
print('before')
e = SystemExit(1); e.code = 9; raise e
=== exit_in_finally
import sys, os
print('before')
try: 1/0
finally: sys.exit(2)
=== exit_os_exit
import sys, os
print('before')
sys.stdout.flush(); os._exit(6)
=== exit_os_exit_without_flush
import sys, os
print('before')
os._exit(6)
=== exit_after_exception
import sys, os
print('before')
raise ValueError('x')
=== exit_base_exception
import sys, os
print('before')
raise BaseException('x')
=== exit_generator_exit
import sys, os
print('before')
raise GeneratorExit
=== exit_keyboard_interrupt
import sys, os
print('before')
raise KeyboardInterrupt
=== exit_keyboard_interrupt_with_text
import sys, os
print('before')
raise KeyboardInterrupt('x')
=== exit_bad_str
import sys, os
print('before')
class E(Exception):
    def __str__(self): 1/0
raise E
=== exit_abort
import sys, os
print('before')
os.abort()
=== dies_of_SIGTERM
import os, signal, time
os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)
=== dies_of_SIGKILL
import os, signal, time
os.kill(os.getpid(), signal.SIGKILL); time.sleep(5)
=== dies_of_SIGSEGV
import os, signal, time
os.kill(os.getpid(), signal.SIGSEGV); time.sleep(5)
=== dies_of_SIGALRM
import os, signal, time
os.kill(os.getpid(), signal.SIGALRM); time.sleep(5)
=== dies_of_SIGABRT
import os, signal, time
os.kill(os.getpid(), signal.SIGABRT); time.sleep(5)
=== dies_of_SIGUSR1
import os, signal, time
os.kill(os.getpid(), signal.SIGUSR1); time.sleep(5)
=== dies_of_SIGHUP
import os, signal, time
os.kill(os.getpid(), signal.SIGHUP); time.sleep(5)
=== dies_of_SIGINT
import os, signal, time
os.kill(os.getpid(), signal.SIGINT); time.sleep(5)
=== dies_of_SIGQUIT
import os, signal, time
os.kill(os.getpid(), signal.SIGQUIT); time.sleep(5)
=== dies_of_SIGPIPE
import os, signal, time
os.kill(os.getpid(), signal.SIGPIPE); time.sleep(5)
=== dies_of_SIGXFSZ
import os, signal, time
os.kill(os.getpid(), signal.SIGXFSZ); time.sleep(5)
"""
)
