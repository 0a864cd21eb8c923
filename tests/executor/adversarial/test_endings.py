"""Programs that try to outlive their run, to hold it up, or to end it with a story of their own."""

from __future__ import annotations

import asyncio

import pytest

from executor_service import Cause, ExecutorClient, Limits, Outcome
from tests.executor.adversarial.attempts import LONG, MARKER, possible, printed, table
from tests.executor.levels import Level

ORPHANS = table(r"""
=== holds_stdout
subprocess.Popen(['sleep', '98765.4321'])
=== own_session
subprocess.Popen(['sleep', '98765.4321'], start_new_session=True)
=== double_fork
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: os.execvp('sleep', ['sleep', '98765.4321'])
    os._exit(0)
=== ignores_signals
def deaf():
    for number in range(1, 65):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
subprocess.Popen(['sleep', '98765.4321'], preexec_fn=deaf)
=== stopped
child = subprocess.Popen(['sleep', '98765.4321']); os.kill(child.pid, signal.SIGSTOP)
=== refuses_to_end
code = 'import os, time\nfor _ in range(40):\n if not os.fork(): break\n time.sleep(0.02)\ntime.sleep(98765.4321)'
subprocess.Popen([sys.executable, '-c', code]); time.sleep(0.3)
=== subreaper
libc.prctl(36, 1, 0, 0, 0)
if os.fork() == 0:
    if os.fork() == 0: os.setsid(); os.execvp('sleep', ['sleep', '98765.4321'])
    os._exit(0)
time.sleep(0.2)
=== parent_death_signal
libc.prctl(1, 0, 0, 0, 0); subprocess.Popen(['sleep', '98765.4321'])
=== traps_in_bash
subprocess.Popen(['bash', '-c', 'trap "" TERM HUP INT; while true; do sleep 98765.4321; done'])
=== thread
import threading
threading.Thread(target=lambda: time.sleep(98765.4321), daemon=True).start()
=== chain
code = 'import os, sys, time\nif os.fork(): os._exit(0)\ntime.sleep(0.01); os.execv(sys.executable, sys.orig_argv)'
subprocess.Popen([sys.executable, '-c', code, '98765.4321']); time.sleep(0.3)
""")


@pytest.mark.parametrize("name", ORPHANS)
async def test_no_process_outlives_its_run_or_delays_it(executor: ExecutorClient, name: str) -> None:
    text = await printed(executor, ORPHANS[name] + "\nprint('main is done', flush=True); os._exit(0)", limits=LONG)
    assert text.endswith("main is done\n")
    # A process may be seen for a moment after the result, while the kernel takes its memory apart; not a moment longer
    # than its box is given back, which the fixture waits for.


async def test_every_process_is_dead_when_a_limit_ends_the_run(executor: ExecutorClient) -> None:
    code = f"import os, time\nfor _ in range(4):\n    if os.fork() == 0: os.setsid()\ntime.sleep({MARKER})"
    result = await executor.execute(code, limits=Limits(wall_time_s=1))
    assert (result.outcome, result.cause) == (Outcome.TIME_LIMIT, Cause.POLICY)


async def test_killing_everything_kills_only_the_run(executor: ExecutorClient) -> None:
    code = "child = subprocess.Popen(['sleep', '60']); time.sleep(0.2); os.kill(-1, 9); print(child.wait())"
    assert await printed(executor, code) == "-9\n"


@pytest.mark.parametrize("how", ["os.kill(os.getppid(), 9)", "os.killpg(0, 0); os.kill(os.getppid(), 15)"])
async def test_killing_the_parent_does_nothing(executor: ExecutorClient, how: str) -> None:
    code = f"try: {how}\nexcept OSError: pass\ntime.sleep(0.2); print('goes on')"
    assert await printed(executor, code) == "goes on\n"


async def test_a_program_that_stops_itself_ends_at_its_limit(executor: ExecutorClient) -> None:
    code = "import os, sys\nprint(1, flush=True)\nos.kill(os.getpid(), int(sys.argv[1]))\nprint(2, flush=True)"
    numbers, limits = (19, 20, 21, 22), Limits(wall_time_s=1)
    results = await asyncio.gather(*(executor.execute(code, args=[str(each)], limits=limits) for each in numbers))
    for number, result in zip(numbers, results, strict=True):
        stopped = (Outcome.TIME_LIMIT, b"1\n")
        # The kernel ignores SIGTSTP and its like in process groups without a living parent in the session.
        assert (result.outcome, result.stdout.data) in (stopped, (Outcome.FINISHED, b"1\n2\n")), number
        assert result.cause is Cause.POLICY, number
        assert number != 19 or result.outcome is Outcome.TIME_LIMIT


async def test_a_program_stopped_by_its_child_ends_at_its_limit(executor: ExecutorClient) -> None:
    code = "import os\nif os.fork() == 0: os.kill(os.getppid(), 19); os._exit(0)\nos.wait(); print('on')"
    result = await executor.execute(code, limits=Limits(wall_time_s=1))
    assert (result.outcome, result.cause) == (Outcome.TIME_LIMIT, Cause.POLICY)


async def test_a_program_stopped_and_continued_goes_on(executor: ExecutorClient) -> None:
    code = """
me = os.getpid()
if os.fork() == 0:
    while True: time.sleep(0.3); os.kill(me, 18)
os.kill(me, 19); print(1)
"""
    assert await printed(executor, code, limits=LONG) == "1\n"


FORGERIES = table(r"""
=== writes_to_every_descriptor
for number in range(3, 1024):
    for data in (b"S", b"E", b'{"type":"ended","code":0}', struct.pack("<IQ", 30, 0) + b'{"type": "ended", "code": 0}'):
        try: os.write(number, data)
        except OSError: pass
=== finds_shared_memory
try: lines = list(open("/proc/self/maps"))
except OSError: lines = []
for line in lines:
    ends, rights = line.split()[:2]
    if "s" in rights and "w" in rights:
        start, end = (int(word, 16) for word in ends.split("-"))
        ctypes.memmove(start, b"\1\0", 2)
=== closes_everything
os.closerange(3, 65536)
=== leaves_through_exec
os.execv('/bin/sh', ['sh', '-c', 'exit 7'])
""")


@pytest.mark.parametrize("name", FORGERIES)
async def test_a_forged_end_is_no_more_than_an_exit_code(executor: ExecutorClient, name: str) -> None:
    """Whatever a program says of its end, it is as if it had chosen its exit code: the outcome is the policy's."""
    code = "import ctypes, os, struct, time\n" + FORGERIES[name] + "\nos._exit(7)"
    result = await executor.execute(code, limits=LONG)
    assert (result.outcome, result.exit_code) in ((Outcome.NONZERO_EXIT, 7), (Outcome.FINISHED, 0)), result
    assert result.cause is Cause.POLICY
    assert result.exit_code == 7 or name == "finds_shared_memory"


async def test_a_forged_end_does_not_leave_the_program_running(executor: ExecutorClient) -> None:
    code = FORGERIES["finds_shared_memory"].replace("print", "")
    code = f"import ctypes, os, time\n{code}\nos.kill(os.getpid(), 19)\ntime.sleep({MARKER})"
    result = await executor.execute(code, limits=Limits(wall_time_s=1))
    assert result.cause is Cause.POLICY
    assert result.outcome in (Outcome.TIME_LIMIT, Outcome.FINISHED)


async def test_descriptors_of_ours_can_not_be_found_or_kept(executor: ExecutorClient) -> None:
    code = """
found = []
for number in range(3, 2048):
    try: found.append((number, os.fstat(number).st_mode))
    except OSError: pass
print(found)
"""
    assert await printed(executor, code) == "[]\n"


async def test_output_after_the_end_of_main_is_not_waited_for(executor: ExecutorClient) -> None:
    code = """
if os.fork() == 0:
    os.setsid()
    while True: os.write(1, b"later\\n"); time.sleep(0.05)
print("main", flush=True); os._exit(0)
"""
    assert "main\n" in await printed(executor, code, limits=LONG)


async def test_death_signals_and_names_of_its_own_change_nothing(executor: ExecutorClient) -> None:
    code = """
attempt("pdeathsig", lambda: call("prctl", 1, 9, 0, 0, 0))
attempt("name", lambda: call("prctl", 15, b"fairbox-init", 0, 0, 0))
attempt("undumpable", lambda: call("prctl", 4, 0, 0, 0, 0))
attempt("timer_slack", lambda: call("prctl", 29, 1, 0, 0, 0))
attempt("robust_list", lambda: call(273, ctypes.create_string_buffer(24), 24))
attempt("oom", lambda: open("/proc/self/oom_score_adj", "w").write("1000"))
"""
    assert {"pdeathsig", "name", "undumpable"} <= await possible(executor, code)


async def test_a_program_that_can_not_be_dumped_still_ends_in_time(executor: ExecutorClient) -> None:
    code = f"import ctypes, time\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\ntime.sleep({MARKER})"
    result = await executor.execute(code, limits=Limits(wall_time_s=1))
    assert result.outcome is Outcome.TIME_LIMIT


async def test_a_result_says_the_level_it_ran_under(executor: ExecutorClient, level: Level) -> None:
    assert (await executor.execute("1")).isolation_level.value == level.name
