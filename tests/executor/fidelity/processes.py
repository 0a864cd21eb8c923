"""Children: multiprocessing, subprocess, asyncio."""

from __future__ import annotations

from dataclasses import replace

from tests.executor.fidelity.case import Case, programs

_PROGRAMS = r"""
=== multiprocessing_not_joined
import multiprocessing as mp, time
def f(said): said.recv(); time.sleep(0.3); print('child', flush=True)
if __name__ == '__main__':
    said, say = mp.Pipe(duplex=False)
    mp.Process(target=f, args=(said,)).start(); print('main', flush=True); say.send(1)
=== multiprocessing_daemon
import multiprocessing as mp, time
if __name__ == '__main__':
    mp.Process(target=time.sleep, args=(60,), daemon=True).start(); print('main')
=== subprocess
import subprocess, sys
code = 'import sys; print(sys.argv, __name__); sys.exit(3)'
print(subprocess.run([sys.executable, '-c', code, 'a'], capture_output=True))
=== subprocess_main
import subprocess, sys
if len(sys.argv) > 1: print('child', __name__)
else: print(subprocess.run([sys.executable, __file__, 'x'], capture_output=True, text=True).stdout)
=== subprocess_session
import subprocess
p = subprocess.Popen(['sleep', '60'], start_new_session=True)
p.terminate()
print(p.wait())
=== subprocess_timeout
import subprocess
try: subprocess.run(['sleep', '60'], timeout=0.2)
except subprocess.TimeoutExpired as e: print(type(e))
=== subprocess_shell
import subprocess; print(subprocess.getstatusoutput('echo $0 $HOME; exit 4'))
=== asyncio_subprocess
import asyncio
async def main():
    p = await asyncio.create_subprocess_exec('echo', 'hi', stdout=-1)
    print(await p.communicate(), p.returncode)
asyncio.run(main())
=== asyncio
import asyncio
async def f(x): await asyncio.sleep(0.01); return x
async def main(): print(await asyncio.gather(*map(f, range(3))))
asyncio.run(main())
=== asyncio_state
import asyncio
print(asyncio._get_running_loop(), type(asyncio.get_event_loop_policy()), asyncio.get_event_loop_policy()._local._loop)
=== asyncio_signal_handler
import asyncio, os, signal
async def main():
    e = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, e.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await e.wait()
    print('ok')
asyncio.run(main())
=== process_facts
import os
print(os.getsid(0) == os.getpid() == os.getpgid(0) == os.getpgrp(), os.getppid() != os.getpid(), os.getpid() != 1)
=== no_children
import os
try: print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError as e: print(e)
"""

_SHARED_MEMORY = r"""
=== multiprocessing_manager
import multiprocessing as mp
if __name__ == '__main__':
    with mp.Manager() as m:
        d = m.dict(a=1); l = m.list([1]); d['b'] = 2; l.append(d['b']); print(dict(d), list(l))
=== multiprocessing_primitives
import multiprocessing as mp
if __name__ == '__main__':
    v = mp.Value('i', 1)
    a = mp.Array('d', 2)
    l = mp.Lock()
    r, w = mp.Pipe()
    w.send(1)
    print(v.value, a[:], r.recv())
=== shared_memory
from multiprocessing import shared_memory as s
m = s.SharedMemory(create=True, size=8)
n = s.SharedMemory(m.name)
m.buf[0] = 9
print(n.buf[0])
n.close()
m.close()
m.unlink()
=== process_pool
from concurrent.futures import ProcessPoolExecutor
import os
def f(x): return x + 1
if __name__ == '__main__':
    with ProcessPoolExecutor(2) as p:
        print(list(p.map(f, range(4))), p.submit(os.getpid).result() != os.getpid())
=== process_pool_broken
from concurrent.futures import ProcessPoolExecutor
import os
if __name__ == '__main__':
    with ProcessPoolExecutor(1) as p:
        try: p.submit(os._exit, 1).result()
        except Exception as e: print(type(e))
"""
_METHOD = """
import multiprocessing as mp, sys
def work(x): return x * x
class Thing:
    def __init__(self, x): self.x = x
def send(queue): queue.put(Thing(3))
if __name__ == "__main__":
    context = mp.get_context("METHOD")
    with context.Pool(2) as pool: print(pool.map(work, range(5)))
    queue = context.Queue(); child = context.Process(target=send, args=(queue,)); child.start()
    print(queue.get().x); child.join(); print(child.exitcode)
"""
_CLOSED = "/dev/shm is closed, and with it locks and shared memory"

CASES = (
    *programs(_PROGRAMS),
    *(replace(case, unlike_landlock=_CLOSED) for case in programs(_SHARED_MEMORY)),
    *(
        Case(f"multiprocessing_{method}", _METHOD.replace("METHOD", method), unlike_landlock=_CLOSED)
        for method in ("fork", "spawn", "forkserver")
    ),
    Case(
        "unix_sockets",
        r"""
import socket
a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1))
s = socket.socket(socket.AF_UNIX)
s.bind('sock')
s.listen()
c = socket.socket(socket.AF_UNIX)
c.connect('sock')
print('ok')
""",
        unlike_landlock="only pairs of connected sockets can be made",
    ),
)
