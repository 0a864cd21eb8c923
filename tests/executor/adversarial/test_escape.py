"""Ways out: the host's files, the server, the init, more rights."""

from __future__ import annotations

import pytest

from executor_service import ExecutorClient, FileStatus, InputFile, Limits
from tests.executor.adversarial.attempts import SECRET, possible, printed
from tests.executor.levels import Level
from tests.executor.servers import Server, environment


async def test_files_of_the_host_can_not_be_read(executor: ExecutorClient) -> None:
    code = """
for path in ("/etc/shadow", "/root/.bashrc", "/home", "/var/log", "/run", "/sys/kernel", "/proc/kcore",
             "/proc/kallsyms", "/proc/sys/kernel/random/boot_id", "/dev/mem", "/dev/sda", "/dev/vda", "/boot"):
    attempt(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1))
"""
    assert await possible(executor, code) == set()


async def test_which_files_of_the_host_exist_can_not_be_learned(
    executor: ExecutorClient, level: Level, request: pytest.FixtureRequest
) -> None:
    if level.landlock:
        request.applymarker(pytest.mark.xfail(reason="Landlock does not restrict stat", strict=True))
    assert await possible(executor, "attempt('stat', lambda: os.stat('/etc/shadow'))") == set()


async def test_files_of_the_host_can_not_be_written(executor: ExecutorClient, level: Level) -> None:
    if level.image:
        pytest.skip("these files are the image's, and what is written to them is the program's own")
    code = """
for path in ("/x", "/usr/x", "/usr/bin/x", "/etc/x", "/etc/passwd", "/dev/x", "/var/tmp/x", "/run/x", sys.executable,
             os.__file__, "/proc/sys/kernel/core_pattern", "/proc/1/oom_score_adj", "/sys/x"):
    attempt(path, lambda: open(path, "ab"))
attempt("remove", lambda: os.unlink(os.__file__))
attempt("rename", lambda: os.rename(os.__file__, "/tmp/x"))
attempt("link", lambda: os.link(os.__file__, "x"))
attempt("truncate", lambda: os.truncate(os.__file__, 0))
attempt("mode", lambda: os.chmod("/usr/bin", 0o777))
attempt("attribute", lambda: os.setxattr("/usr/bin", "user.x", b"x"))
attempt("time", lambda: os.utime("/usr/bin"))
"""
    assert await possible(executor, code) == set()


async def test_attributes_of_files_can_not_be_set_by_newer_calls_either(executor: ExecutorClient, level: Level) -> None:
    """Tries the calls of Linux 6.13 and newer: with nothing mounted, files of the host are only a path away."""
    if not level.landlock:
        pytest.skip("programs reach no file of the host at this level")
    code = """
import ctypes, errno, struct
libc = ctypes.CDLL(None, use_errno=True)
open("x", "w").close()
value = ctypes.create_string_buffer(b"v")
args = struct.pack("=QII", ctypes.addressof(value), 1, 0)
def call(number, *words):
    libc.syscall(number, -100, b"x", 0, *words)
    return ctypes.get_errno() == errno.ENOSYS
print(call(463, b"user.a", args, len(args)), call(466, b"user.a"), call(469, args, 16))
"""
    assert (await executor.execute(code)).stdout.text == "True True True\n"


async def test_the_servers_secret_is_nowhere(executor: ExecutorClient, server: Server) -> None:
    assert SECRET.encode() in environment(server.pid)
    half = len(SECRET) // 2
    code = f"""
needle = ({SECRET[:half]!r}, {SECRET[half:]!r})
import gc, glob
def found(data): return any(data[at - 1:at] == b"=" and data[at + len(needle[0]):].startswith(needle[1].encode())
    for at in range(len(data)) if data.startswith(needle[0].encode(), at)) if needle[0].encode() in data else False
for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
    try: print(path) if found(open(path, "rb").read()) else None
    except OSError: pass
regions = [line.split()[:2] for line in open("/proc/self/maps") if "[v" not in line]
for ends, rights in regions:
    start, end = (int(word, 16) for word in ends.split("-"))
    if "r" in rights:
        with open("/proc/self/mem", "rb", 0) as memory:
            memory.seek(start)
            try: print(ends) if found(memory.read(end - start)) else None
            except OSError: pass
print([name for name in os.environ if "TEST" in name or "PYTHONPATH" in name])
"""
    if await printed(executor, "try: print(bool(os.listdir('/proc/self')))\nexcept OSError: print(False)") != "True\n":
        pytest.skip("there is no /proc to look into")
    assert await printed(executor, code, limits=Limits(wall_time_s=60)) == "[]\n"


async def test_the_init_can_not_be_touched(executor: ExecutorClient) -> None:
    code = """
parent = os.getppid()
for number in range(1, 65): attempt(f"signal-{number}", lambda: os.kill(parent, number))
attempt("signal-by-pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(parent), 9))
attempt("signal-queued", lambda: call("sigqueue", parent, 10, 0))
attempt("ptrace", lambda: call("ptrace", 16, parent, 0, 0))
attempt("memory", lambda: open(f"/proc/{parent}/mem", "rb"))
attempt("environ", lambda: open(f"/proc/{parent}/environ", "rb").read())
attempt("maps", lambda: open(f"/proc/{parent}/maps").read())
attempt("root", lambda: os.listdir(f"/proc/{parent}/root/"))
attempt("folder", lambda: os.readlink(f"/proc/{parent}/cwd"))
attempt("descriptors", lambda: os.listdir(f"/proc/{parent}/fd"))
attempt("steal", lambda: call(438, os.pidfd_open(parent), 3, 0))
attempt("vm_read", lambda: call(310, parent, 0, 0, 0, 0, 0))
attempt("limit", lambda: resource.prlimit(parent, resource.RLIMIT_NOFILE, (0, 0)))
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, parent, 19))
attempt("affinity", lambda: os.sched_setaffinity(parent, [0]))
attempt("scheduler", lambda: os.sched_setscheduler(parent, os.SCHED_IDLE, os.sched_param(0)))
attempt("io", lambda: call(251, 1, parent, 3 << 13))
attempt("group", lambda: os.setpgid(parent, 0))
attempt("victim", lambda: open(f"/proc/{parent}/oom_score_adj", "w"))
"""
    done = await possible(executor, code)
    # A signal to process 1 of a namespace is sent and dropped: the init has handlers for none of these.
    assert {name for name in done if not name.startswith("signal-")} == set()


async def test_no_rights_can_be_gained(executor: ExecutorClient, level: Level) -> None:
    """In an image a program is the only user that there is, and can become itself."""
    code = """
attempt("setuid", lambda: os.setuid(0))
attempt("setreuid", lambda: os.setreuid(0, 0))
attempt("setgroups", lambda: os.setgroups([0]))
attempt("setgid", lambda: os.setgid(0))
attempt("chroot", lambda: os.chroot("."))
attempt("mknod", lambda: os.mknod("disk", 0o60666, os.makedev(254, 0)))
attempt("chown", lambda: os.chown("main.py", 0, 0))
attempt("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
attempt("realtime", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
attempt("hard_limit", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100_000, 100_000)))
attempt("core", lambda: resource.setrlimit(resource.RLIMIT_CORE, (1, 1)))
attempt("hostname", lambda: socket.sethostname("x"))
attempt("clock", lambda: time.clock_settime(time.CLOCK_REALTIME, 0))
attempt("new_privileges", lambda: call("prctl", 38, 0, 0, 0, 0))
attempt("bounding_set", lambda: call("prctl", 24, 0, 0, 0, 0))
attempt("securebits", lambda: call("prctl", 28, 1, 0, 0, 0))
attempt("no_seccomp", lambda: call("prctl", 22, 0, 0, 0, 0))
"""
    assert await possible(executor, code) == ({"setuid", "setreuid", "setgid", "chown"} if level.image else set())


async def test_namespaces_mounts_and_odd_calls_are_denied(executor: ExecutorClient) -> None:
    code = """
for name, flag in {"user": 0x10000000, "mount": 0x20000, "net": 0x40000000, "pid": 0x20000000, "ipc": 0x08000000,
                   "uts": 0x04000000, "cgroup": 0x02000000, "time": 0x80}.items():
    attempt(f"unshare-{name}", lambda: call("unshare", flag))
    if name != "time": attempt(f"clone-{name}", lambda: os._exit(0) if call(56, flag | 17, 0, 0, 0, 0) == 0 else 0)
numbers = {
           "clone3": 435, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "fsopen": 430,
           "open_tree": 428,
           "move_mount": 429, "bpf": 321, "perf": 298, "keyctl": 250, "add_key": 248, "request_key": 249,
           "userfaultfd": 323, "io_uring": 425, "kexec": 246, "init_module": 175, "finit_module": 313, "reboot": 169,
           "swapon": 167, "acct": 163, "syslog": 103, "ioperm": 173, "iopl": 172, "modify_ldt": 154, "quotactl": 179,
           "open_by_handle": 304, "name_to_handle": 303, "process_madvise": 440, "fanotify": 300, "vhangup": 153,
           "process_vm_writev": 311, "move_pages": 279, "migrate_pages": 256, "mbind": 237, "personality": 135,
           "mount_setattr": 442, "quotactl_fd": 443}
for name, number in numbers.items():
    def denied():
        try: call(number, 0, 0, 0, 0, 0, 0)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOSYS): return "the kernel looked at it"
            raise
    attempt(name, denied)
attempt("tiocsti", lambda: fcntl.ioctl(0, 0x5412, b"x"))
"""
    assert await possible(executor, code) == set()


async def test_a_filter_on_top_of_the_filter_opens_nothing(executor: ExecutorClient) -> None:
    code = """
class Program(ctypes.Structure): _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))
allow = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000))
program = Program(1, ctypes.cast(allow, ctypes.c_void_p))
call("prctl", 22, 2, ctypes.byref(program), 0, 0)
attempt("unshare", lambda: call("unshare", 0x10000000))
attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM))
attempt("keys", lambda: call(250, 0, -4, 1))
"""
    assert await possible(executor, code) == set()


async def test_no_network_is_reached(executor: ExecutorClient, server: Server) -> None:
    port = server.target.rpartition(":")[2]
    code = f"""
for address in (("1.1.1.1", 53), ("127.0.0.1", {port}), ("169.254.169.254", 80), ("10.0.0.1", 443)):
    attempt(f"connect-{{address[0]}}", lambda: socket.create_connection(address, timeout=3))
    attempt(f"send-{{address[0]}}", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", address)
            if address[0] != "127.0.0.1" else 1 / 0)
attempt("ipv6", lambda: socket.create_connection(("2606:4700:4700::1111", 53), timeout=3))
attempt("name", lambda: socket.getaddrinfo("example.org", 80))
for domain in (15, 16, 17, 29, 30, 31, 36, 38, 40, 42, 44):
    attempt(f"domain-{{domain}}", lambda: socket.socket(domain, 3))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("bluetooth", lambda: socket.socket(31, 1))
"""
    assert await possible(executor, code, limits=Limits(wall_time_s=60)) == set()


RETURNED = """
os.symlink("/etc/passwd", "link"); os.mkdir("folder"); os.symlink("/etc", "folder/etc"); os.mkfifo("pipe")
os.symlink("/proc/1/root", "root")
os.link("main.py", "hard")
os.symlink("/proc/self/environ", "environ"); os.symlink("loop", "loop"); os.symlink("/dev/zero", "zero")
with open("sparse", "wb") as file: file.truncate(1 << 30)
with open("fine", "w") as file: file.write("fine")
os.symlink("fine", "inner")
open("closed", "w").close(); os.chmod("closed", 0)
"""


async def test_only_plain_files_of_the_work_folder_are_returned(executor: ExecutorClient) -> None:
    asked = ["link", "folder", "folder/etc/passwd", "root/etc/passwd", "pipe", "environ", "loop", "zero", "sparse"]
    asked += ["inner", "fine", "no"]
    limits = Limits(return_bytes=1 << 20, file_bytes=1 << 30)
    code = "import os, socket\n" + RETURNED
    result = await executor.execute(code, return_paths=asked, limits=limits)
    assert result.ok, result
    statuses = {file.path: file.status for file in result.files}
    assert {path for path, status in statuses.items() if status is FileStatus.RETURNED} == {"fine"}
    assert statuses["sparse"] is FileStatus.TOO_LARGE
    assert statuses["no"] is FileStatus.MISSING
    assert {statuses[name] for name in ("link", "folder", "pipe", "environ", "loop", "zero", "inner")} == {
        FileStatus.NOT_REGULAR
    }


async def test_a_file_that_changes_while_it_is_asked_for_is_whole_or_nothing(executor: ExecutorClient) -> None:
    code = '''
import os, subprocess, sys
swap = """
import os
while True:
    os.symlink('/etc/passwd', 'n'); os.replace('n', 'x')
    open('n', 'w').write('mine'); os.replace('n', 'x')
"""
subprocess.Popen([sys.executable, "-c", swap]); import time; time.sleep(0.3)
'''
    for _ in range(3):
        (file,) = (await executor.execute(code, return_paths=["x"])).files
        assert file.content in (b"mine", b"")


async def test_input_files_do_not_follow_what_the_request_put_there(executor: ExecutorClient) -> None:
    result = await executor.execute("print(open('a/b/c').read())", files=[InputFile("a/b/c", b"content")])
    assert result.stdout.data == b"content\n"


async def test_clocks_can_not_be_moved_and_games_with_them_change_nothing(executor: ExecutorClient) -> None:
    code = """
attempt("set", lambda: time.clock_settime(time.CLOCK_REALTIME, 0))
attempt("adjust", lambda: call("adjtimex", ctypes.create_string_buffer(b"\\1" + bytes(400))))
attempt("settimeofday", lambda: call("settimeofday", ctypes.create_string_buffer(16), 0))
attempt("offset", lambda: os.write(os.open("/proc/self/timens_offsets", os.O_WRONLY), b"1 1000 0"))
"""
    assert await possible(executor, code) == set()


async def test_what_a_level_shows_of_processes(executor: ExecutorClient, level: Level) -> None:
    code = """
try: print(sorted(int(name) for name in os.listdir("/proc") if name.isdigit()) == [1, os.getpid()])
except OSError: print("none")
"""
    assert await printed(executor, code) == ("none\n" if level.landlock else "True\n")


async def test_processes_of_the_host_can_not_be_timed(executor: ExecutorClient) -> None:
    code = """
def any_of(name):
    def attempts():
        room = ctypes.create_string_buffer(16)
        for pid in {*range(3, 2**16)} - {os.getpid()}:
            try: call(name, ~pid << 3 | 2, room)
            except OSError: continue
            return
        raise OSError("none")
    return attempts
attempt("cpu_time", any_of("clock_gettime"))
attempt("resolution", any_of("clock_getres"))
"""
    assert await possible(executor, code) == set()


async def test_processes_of_the_host_can_not_be_counted(
    executor: ExecutorClient, level: Level, request: pytest.FixtureRequest
) -> None:
    if level.landlock:
        reason = "a signal that is refused tells that there is somebody, and so does stat"
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    code = """
def exists(pid):
    try: os.kill(pid, 0)
    except OSError as error: return error.errno != errno.ESRCH
    return True
others = (pid for pid in range(3, 2**16) if pid != os.getpid())
print(next((pid for pid in others if exists(pid) or os.path.exists(f"/proc/{pid}/stat")), "none"))
"""
    assert await printed(executor, code) == "none\n"


async def test_a_program_can_not_spare_itself_when_memory_runs_out(executor: ExecutorClient) -> None:
    code = """
for score in (b"-1000", b"0", b"999"):
    attempt(score.decode(), lambda: os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), score))
attempt("init", lambda: os.write(os.open("/proc/1/oom_score_adj", os.O_WRONLY), b"0"))
"""
    assert await possible(executor, code) == set()
