"""The table: what is sent, by name. Nothing is made before it is sent, since some of it is large.

A line is `name | where to | what`, or a name and a program. Where to: an RPC, whose message is given as protobuf's text
format; `Session`, with messages as JSON, ` ; ` between them; a path of the gateway with its body, after `gzip ` or
`deflate ` one that says that it is compressed. `<<9*x>>` stands for nine times x, `<<9#x%d>>` for x0 to x8. A line that
ends with a backslash goes on.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import json_format, message_factory, text_format
from google.protobuf.message import Message

from executor_service.v1 import executor_pb2 as pb
from limiter.v1 import limiter_pb2
from limiter.wire import session_of
from tests.hostile.capture import CAPTURED
from tests.hostile.frames import LONG_FRAMES
from tests.hostile.services import RPCS

_BRIEF = pb.Limits(wall_time_s=3)


@dataclass(frozen=True)
class Input:
    """Input that `make` returns, for an RPC or a path of the gateway; `cells`: for a new session."""

    to: str
    make: Callable[[], list[Message | bytes]]
    headers: dict[str, str] = field(default_factory=dict)
    large: bool = False
    """It is sent for its size: memory is looked at after it alone."""


FORGE = """
import json, os, socket, stat, struct
def forge(head, blob=b"", size=None):
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    raw(struct.pack("<IQ", len(text), len(blob) if size is None else size) + text + blob)
def raw(data):
    for handle in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(handle).st_mode):
                socket.socket(fileno=os.dup(handle)).sendall(data)
        except OSError:
            pass
DONE = {"type": "done", "cell": 1, "exit_code": 0, "displays": [], "files": [], "cpu_s": 0.1, "peak_bytes": 1,
    "resident_bytes": 2}
text = json.dumps(DONE).encode()
"""
"""Code with which a program can claim, on every socket it holds, to be us."""
FRAMES = """
a time beyond all numbers | forge(text.replace(b'"cpu_s": 0.1', b'"cpu_s": 1' + b"0" * 400))
an infinite time | forge(DONE | {"cpu_s": float("inf")})
a deep error | forge(text[:-1] + b', "error": ' + b"[" * 980 + b"]" * 980 + b"}")
a deep head | forge(b"[" * 100000)
a head that is no object | forge(b"[1]")
a head that is no JSON | forge(b"{" * 999)
a head that is no text | forge(b'{"type": "\\xff\\xfe"}')
no type | forge({})
a type that is no text | forge({"type": {"done": 1}})
a number of 100,000 digits | forge(b'{"type": "done", "cell": ' + b"9" * 100000 + b"}")
a pid that is none | forge({"type": "ready", "pid": 2**31}); forge({"type": "forked", "pid": 2**31})
a pid of somebody else | forge({"type": "ready", "pid": 1}); forge({"type": "forked", "pid": -1})
a large head | forge(b'{"type": "done", "x": [' + b"0," * 1900000 + b"0]}")
a head of many names | forge(("{" + ",".join(f'"{i}":0' for i in range(300000)) + "}").encode())
large heads, again and again | for i in range(20): forge(b'{"type": "done", "x": [' + b"[]," * 1000000 + b"0]}")
a frame of 160 MiB | raw(struct.pack("<IQ", 2, 160 << 20) + b"{}" + bytes(60 << 20))
a frame of 2**64 - 1 bytes | raw(struct.pack("<IQ", 2, 2**64 - 1) + b"{}")
half a frame | raw(b"\\x05\\0\\0")
no frames at all | raw(os.urandom(1 << 20))
a thousand ends | for i in range(1000): forge(DONE)
verdicts | forge({"type": "verdict", "status": "passed", "asked": 3, "message": ""})
displays that are not there | forge(DONE | {"displays": [{"sizes": {"text/plain": 1 << 40}, "truncated": False}] * \\
1000})
files that are not there | forge(DONE | {"files": [{"path": "../a", "status": "returned", "size": 1 << 50}]})
values of other types | for name in DONE: forge(DONE | {name: [{"a": None}]})
"""
VALUES = """
a frozenset of 20 levels | for i in range(20): x = frozenset({x})
a frozenset of 60 levels | for i in range(60): x = frozenset({x})
sets of two | for i in range(18): x = frozenset({x, frozenset({x})})
a list of 900 levels | for i in range(900): x = [x]
a tuple of 100,000 levels | for i in range(100000): x = (x,)
a list in itself | x = []; x.append(x)
a map in itself | x = {}; x[0] = x
a million lists | x = [[] for i in range(10**6)]
a number of a million digits | x = 1 << 3000000
a text of 30 MB | x = "x" * 30_000_000
a lone surrogate | x = chr(0xd800)
numbers that are equal to many | x = {float("nan"): 1, float("inf"): 2, -0.0: 3}
a map of 300,000 names | x = {str(i): i for i in range(300000)}
a set whose items collide | x = {i * (2**61 - 1) for i in range(2000)}
a set of 300,000 sets | x = {frozenset({i}) for i in range(300000)}
a class that lies about itself | x = type("L", (), {"__class__": property(lambda s: list), "__iter__": lambda s: \\
iter(int, 1)})()
a list without an end | x = type("L", (list,), {"__iter__": lambda self: iter(int, 1)})()
an exception | x = RecursionError()
a file | x = open("/dev/zero", "rb")
"""
ASSERTED = """
an exception of its own | E = type("Mine", (Exception,), {"__str__": lambda self: 1 / 0}); f = lambda: (_ for _ in \\
()).throw(E())
a class that is no class | E = type("E" * 100000, (BaseException,), {"__module__": 7}); f = lambda: (_ for _ in \\
()).throw(E(E))
a coroutine | import asyncio; f = lambda: asyncio.sleep(0)
StopIteration | f = lambda: next(iter(()))
an exit | import os; f = lambda: os._exit(0)
an exit of its thread | f = exit
a group of exceptions | f = lambda: exec("raise BaseExceptionGroup('x', [SystemExit(i) for i in range(1000)])")
"""
PRINTED = """
numbers of a thousand digits | for i in range(900): print("9" * 1000)
numbers in words | print("nan inf -inf 1e400 1e-400 0x1 1_0 \\u0661 " * 10000)
half a million numbers | print("1 " * 500000)
bytes that are no text | import os; os.write(1, bytes(range(256)) * 4000)
white space of all kinds | print("\\u2028\\u0085\\x1c \\x0b" * 100000)
"""
PROGRAMS = """
forks | import os; [os.fork() for i in range(10**6)]
threads | import threading; [threading.Thread(target=threading.Event().wait).start() for i in range(10**6)]
eats memory | x = [bytearray(1 << 20) for i in range(10**6)]
fails to find 200,000 files | import os; [os.path.exists(f"/tmp/{i:0200}") for i in range(200000)]
many files | [open(f"{i}", "w").close() for i in range(10**5)]
deep folders | import os; [(os.mkdir("d"), os.chdir("d")) for i in range(3000)]
closed folders | import os; os.makedirs("a/b/c"); os.chmod("a/b", 0); os.chmod("a", 0)
closes everything | import os; os.closerange(0, 4096)
kills everything | import os, signal; signal.signal(15, signal.SIG_IGN); os.kill(-1, 9); os.kill(1, 9)
stops itself | import os; os.kill(os.getpid(), 19)
floods | [print("x" * 100000) for i in range(10**6)]
leaves a process that floods | import os; os.fork() or [os.setsid()] and [os.write(2, b"x" * 65536) for i in \\
range(10**6)]
memory without pages | import os; [os.pwrite(os.memfd_create("x"), bytes(8 << 20), 0) for i in range(200)]
pipes | import fcntl, os; [fcntl.fcntl(os.pipe()[1], 1031, 1 << 20) for i in range(10**6)]
recursion in C | import re; re.match("(a?" * 25 + ")" * 25 + "a" * 25, "a" * 25); eval("(" * 190 + ")" * 190)
writes what is no text | import sys; sys.stdout.buffer.write(b"\\xff\\xfe\\0"); \\
sys.stderr.buffer.write(b"\\x1b]0;x\\x07" * 1000)
prints a traceback | import sys; sys.stderr.write("Traceback (most recent call last):\\n")
"""
REQUESTS = """
expected: 30 MB | VerifyCode | style: 2 code: '1' entry_point: 'f' cases { function { expected: \\
'["l",[<<9999999*0,>>0]]' } }
expected: 300,000 sets | VerifyCode | style: 2 code: 'def f(): return {frozenset({i}) for i in range(300000)}' \\
entry_point: 'f' cases { function { expected: '["e",[<<300000#["z",[%d]],>>["z",[-1]]]]' } }
expected: 900 levels | VerifyCode | style: 2 code: '1' entry_point: 'f' cases { function { expected: \\
'<<900*["l",[>>' } }
expected: 100,000 levels | VerifyCode | style: 2 code: '1' entry_point: 'f' cases { function { expected: \\
'<<99999*[>>' } }
expected: many digits | VerifyCode | style: 2 code: '1' entry_point: 'f' cases { function { expected: '<<99999*9>>' } }
expected: not JSON | VerifyCode | style: 2 code: '1' entry_point: 'f' cases { function { expected: '{1: 2}' } }
expected: unknown | VerifyCode | style: 2 code: '1' entry_point: 'f' cases { function { expected: '["__import__", \\
["os"]]' } }
an entry point that is code | VerifyCode | style: 2 code: '1' entry_point: 'f(); import os' cases { function { \\
expected: '1' } }
a checker that is left | VerifyCode | style: 1 code: '1' cases { stdio { } } checker { code: 'import os; os._exit(0)' }
a checker that is deep | VerifyCode | style: 1 code: '1' cases { stdio { } } checker { code: '<<5000*(>>' }
a large name of a case | VerifyCode | style: 1 code: '1' cases { case_id: '<<999999*x>>' stdio { } }
100,000 cases | VerifyCode | style: 1 code: '1' <<99999*cases { stdio { } } >>
no wall time | ExecuteCode | code: '1' limits { wall_time_s: nan }
wall time without end | ExecuteCode | code: '1' limits { wall_time_s: inf }
wall time below all | ExecuteCode | code: '1' limits { wall_time_s: 5e-324 }
no time, displayed | ExecuteCode | code: '1' display: true limits { wall_time_s: 0.01 }
no CPU time | ExecuteCode | code: '1' limits { cpu_time_s: -inf }
a byte of memory | ExecuteCode | code: '1' limits { memory_bytes: 1 }
memory without end | ExecuteCode | code: '1' limits { memory_bytes: 18446744073709551615 }
processes without number | ExecuteCode | code: '1' limits { processes: 4294967295 }
one open file | ExecuteCode | code: '1' limits { open_files: 1 }
a session of few open files | CreateSession | limits { open_files: 100 }
output without end | ExecuteCode | code: '1' limits { output_bytes: 18446744073709551615 }
a byte of disk | ExecuteCode | code: '1' limits { disk_bytes: 1 }
a file of the host | ExecuteCode | code: '1' files { path: '/etc/passwd' }
a file above | ExecuteCode | code: '1' files { path: 'a/../../x' }
a file with a null | ExecuteCode | code: '1' files { path: 'a\\0b' }
a file of a long name | ExecuteCode | code: '1' files { path: '<<5000*x>>' }
a file deep down | ExecuteCode | code: '1' files { path: '<<2000*a/>>x' }
a file in the program | ExecuteCode | code: '1' files { path: 'main.py/x' }
files in each other | ExecuteCode | code: '1' files { path: 'a' } files { path: 'a/b' } files { path: './a' }
a mode of devices | ExecuteCode | code: '1' files { path: 'a' mode: 4294967295 }
half a million files | ExecuteCode | code: '1' <<500000#files { path: '%d' }>>
variables of the loader | ExecuteCode | code: '1' env { key: 'LD_PRELOAD' value: '/x' } env { key: 'PYTHONHOME' \\
value: '/x' }
a variable with = | ExecuteCode | code: '1' env { key: 'a=b' }
a variable with a null | ExecuteCode | code: '1' env { key: 'a' value: 'b\\0c' }
an argument with a null | ExecuteCode | code: '1' args: 'a\\0b'
code with nulls | ExecuteCode | code: '<<1000*\\0>>'
code of 10,000 brackets | ExecuteCode | code: '<<10000*(>>'
code of 20,000 signs | ExecuteCode | code: '<<20000*->>1'
code of a deep name | ExecuteCode | code: 'a<<50000*.a>>'
code of 8 MiB | ExecuteCode | code: '<<1400000*x=1\\n>>'
a coding that is odd | ExecuteCode | code: '# -*- coding: rot13 -*-\\nprint(1)'
input of 60 MiB | ExecuteCode | code: '1' stdin: '<<62914560*x>>'
an unknown language | ExecuteCode | code: '1' language: '../python'
an unknown profile | ExecuteCode | code: '1' profile: 'python-base\\0'
a request's name of 1 MB | ExecuteCode | code: '1' request_id: '<<999999*x>>'
a tenant of 1 MB | ExecuteCode | code: '1' tenant: '<<999999*x>>'
a tenant of control characters | ExecuteCode | code: '1' tenant: '\\033[2J\\n'
a session of somebody | ExecuteCode | code: '1' session_id: '../../1'
a workspace of nobody | ExecuteCode | code: '1' workspace_id: '../../etc'
a lease that is made up | ExecuteCode | code: '1' lease { bucket: 'code' epoch: 18446744073709551615 seq: 1 }
returned from the host | ExecuteCode | code: 'import os; os.symlink("/", "a"); os.mkfifo("b")' return_paths: \\
['a/etc/passwd', 'b']
a stream of nothing | StreamExecution |
a verification of nothing | StreamVerification |
a stream that floods | StreamExecution | execution { code: 'while 1: print("x" * 9999)' limits { wall_time_s: 3 } }
a session that never rests | CreateSession | idle_ttl_s: nan
a session of no language | CreateSession | language: '<<999999*x>>'
branches without number | BranchSession | session_id: 'x' count: 4294967295
a page of nowhere | ListSessions | page_token: '\\001\\0' page_size: 4294967295
a snapshot of an interpreter | SnapshotSession | session_id: '<<999999*x>>'
a session to delete | DeleteSession | session_id: '<<999999*x>>'
an image of a file | PrepareImage | reference: 'oci:/etc'
an image of an option | PrepareImage | reference: 'docker://--help'
an image of no end | PrepareImage | reference: 'docker://<<999999*x>>'
a workspace of the host | PrepareWorkspace | local_path: '/proc/1/root'
a workspace of a file | PrepareWorkspace | remote_url: 'file:///etc'
a workspace of a command | PrepareWorkspace | remote_url: 'ext::sh -c id'
a workspace of an option | PrepareWorkspace | remote_url: 'ssh://-oProxyCommand=id/x'
an empty pack | PrepareWorkspace | bundle: '# v2 git bundle\\n\\nPACK'
a pack of 2**32 | PrepareWorkspace | bundle: '# v2 git bundle\\n<<40*0>> HEAD\\n\\nPACK\\0\\0\\0\\2\\377\\377\\377\\377'
a bundle of nulls | PrepareWorkspace | bundle: '<<30000000*\\0>>'
a commit that is an option | PrepareWorkspace | bundle: '# v2 git bundle\\n\\nPACK' commit: '--exec=id'
a place of the host | PrepareWorkspace | bundle: '# v2 git bundle\\n\\nPACK' mount_path: '/usr/../etc'
no JSON | /run_code | {
no object | /run_code | [1]
100,000 levels | /run_code | <<99999*[>>
levels in a field | /get_prompts | {"config": {"extra": <<900*{"a":>>1<<902*}>>
a number of a million digits | /run_code | {"code": "1", "run_timeout": <<999999*9>>}
numbers that are none | /run_code | {"code": "1", "run_timeout": NaN, "compile_timeout": -Infinity}
31 MiB of small lists | /run_code | [<<10485760*[],>>0]
a million names | /run_code | {"code": "1", "files": {<<999999#"%d":"",>>"x":""}}
40 MB | /run_code | <<40000000* >>
what is no gzip | /run_code | gzip xxxx
what is no deflate | /run_code | deflate xxxx
a bomb of gzip | /run_code | gzip <<400000000*x>>
a bomb of deflate | /run_code | deflate <<400000000*x>>
surrogates | /run_code | {"code": "\\ud800", "language": "\\udfff"}
no base64 | /run_code | {"code": "1", "files": {"a": "%%%", "/etc/x": "AA==", "../b": "AA==", "\\u0000": "AA=="}}
times beyond all | /run_code | {"code": "1", "run_timeout": 1e308, "compile_timeout": -1e308, "memory_limit_MB": \\
9223372036854775808}
an unknown language there | /run_code | {"code": "1", "language": "<<999999*x>>"}
ten thousand cells | /run_jupyter | {"cells": [<<9999*"",>>""], "total_timeout": 3}
no time for cells | /run_jupyter | {"cells": [], "total_timeout": 1e-9}
a cell that is left | /run_jupyter | {"cells": ["import os; os._exit(0)", "1"], "total_timeout": 5}
an unknown set | /submit | {"dataset": "<<99999*x>>", "id": 1, "completion": "", "config": {}}
a row of other types | /submit | {"dataset": "humaneval_python", "id": <<400*9>>, "completion": "x", "config": \\
{"provided_data": {"test": []}}}
fences in fences | /submit | {"dataset": "code_contests", "id": 1, "completion": "<<200000*```\\n>>", "config": \\
{"language": "python", \\
"provided_data": {"id": 1, "test": [{"input": {"stdin": ""}, "output": {"stdout": ""}}]}}}
logic that is left | /submit | {"dataset": "code_contests", "id": 1, "completion": "x", "config": {"language": \\
"python", \\
"custom_extract_logic": "import os; open('blocks.json', 'w').write('[' * 99999); os._exit(0)", \\
"provided_data": {"id": 1, "test": [{"input": {"stdin": ""}, "output": {"stdout": ""}}]}}}
no hello | Session | {"acquires": [ASK]}
two hellos | Session | {"hello": HELLO} ; {"hello": HELLO}
a hello of no kind | Session | {"hello": {MYSELF}}
a client's name of 1 MB | Session | {"hello": {MYSELF, "kind": 1, "connection": 1, "name": "<<999999*x>>"}}
holds that are made up | Session | {"hello": {MYSELF, "kind": 1, "connection": 1, "held": [ \\
<<3#{"lease": {"bucket": "code", "epoch": 1, "seq": %d, "client_session_id": "x"}, "tokens": 1000000},>> ]}}
20,000 holds of an executor | Session | {"hello": {MYSELF, "kind": 2, "connection": 1, "held": [ \\
<<20000#{"lease": {"bucket": "code", "epoch": 1, "seq": %d, "client_session_id": "x"}, "tokens": 1},>> ]}}
a ticket that is made up | Session | {"hello": {MYSELF, "kind": 1, "connection": 1, "queued": [ \\
{"request_id": "1", "bucket": "code", "tokens": 1, "ticket": {"epoch": 1, "seq": 1}}]}}
20,000 that wait | Session | {"hello": {MYSELF, "kind": 1, "connection": 1, "queued": [ \\
<<20000#{"request_id": "%d", "bucket": "code", "tokens": 1},>> ]}}
20,000 at once | Session | {"hello": HELLO} ; {"acquires": [<<20000#{"request_id": "%d", "bucket": "code", "tokens": \\
1},>>]}
the same again | Session | {"hello": HELLO} ; {"acquires": [<<9999*ASK,>>]}
90,000 of nothing | Session | {"hello": HELLO} ; {"releases": [<<30000*{},>>], "cancels": [<<30000*{},>>], "binds": \\
[<<30000*{},>>]}
releases what is another's | Session | {"hello": HELLO} ; {"releases": [<<100*{"lease": LEASE},>>]}
binds as a client | Session | {"hello": HELLO} ; {"binds": [{"lease": LEASE, "run_id": "<<99999*x>>"}]}
a heart that runs | Session | {"hello": HELLO}<<2000* ; {"heartbeat": "18446744073709551615"}>>
tokens without number | Session | {"hello": HELLO} ; {"acquires": [{"request_id": "1", "bucket": "code", "tokens": \\
4294967295}]}
no time to wait | Session | {"hello": HELLO} ; {"acquires": [{"request_id": "1", "bucket": "code", \\
"queue_timeout_s": "NaN"}]}
holds for ever | Session | {"hello": HELLO} ; {"acquires": [{"request_id": "1", "bucket": "code", "hold_s": \\
"Infinity"}]}
nobody asks for all | AcquireToken | bucket: 'code' client_id: 'x' request_id: '1' tokens: 4294967295
asks for no time | AcquireToken | bucket: 'code' queue_timeout_s: nan unbound_ttl_s: -inf hold_s: 1e308
a client of 1 MB | AcquireToken | bucket: 'code' client_id: '<<999999*x>>'
gives back what it never had | ReleaseToken | lease { bucket: 'code' epoch: 1 seq: 1 } client_id: 'x' request_id: '1'
a bucket of no numbers | AdminConfigureBucket | config { name: 'code' rate_per_s: nan start_by_s: inf max_hold_s: -1 }
leases of nowhere | AdminListLeases | page_token: '\\001\\0' page_size: 4294967295
revokes what is not there | AdminRevokeLease | lease { bucket: 'code' epoch: 1 seq: 1 } force: true reason: \\
'<<99999*x>>'
"""
_SECRET = "s" * 32
_MYSELF = f'"session_id": "{session_of(_SECRET)}", "secret": "{_SECRET}"'
_WORDS = {
    "MYSELF": _MYSELF,
    "HELLO": f'{{{_MYSELF}, "kind": 1, "connection": 1}}',
    "ASK": '{"request_id": "1", "bucket": "code", "tokens": 1}',
    "CHAT": "/t/x/v1/chat/completions",
    "MODEL": '"model":"scripted"',
    "USER": '{"role":"user","content":',
    "LEASE": '{"bucket": "code", "epoch": 1, "seq": 1, "client_session_id": "x"}',
}


def _lines(text: str) -> dict[str, str]:
    parts = (line.partition(" | ") for line in text.replace("\\\n", "").strip().split("\n"))
    return {name: rest for name, _, rest in parts}


def _large(text: str) -> str:
    """With what `<<` and `>>` stand for."""

    def written(found: re.Match[str]) -> str:
        count, text = int(found[1]), found[3]
        return text * count if found[2] == "*" else "".join(text.replace("%d", str(i)) for i in range(count))

    return re.sub(r"<<(\d+)([*#])(.*?)>>", written, text)


def _request(line: str) -> Input:
    to, _, text = re.sub("CHAT|MODEL|USER", lambda found: _WORDS[found[0]], line).partition(" |")
    text = text.strip() if to.startswith("/") else text
    large = any(int(count) >= 50_000 for count in re.findall(r"<<(\d+)", text))
    if to.startswith("/"):
        coding, _, rest = text.partition(" ")
        if coding not in ("gzip", "deflate"):
            return Input(f"POST {to}", lambda: [_large(text).encode()], large=large)
        pack = gzip.compress if coding == "gzip" else zlib.compress
        return Input(
            f"POST {to}",
            lambda: [pack(_large(rest).encode()) if "<<" in rest else rest.encode()],
            {"Content-Encoding": coding},
            large,
        )
    if to == "Session":
        words = re.sub("MYSELF|HELLO|ASK|LEASE", lambda found: _WORDS[found[0]], text)
        return Input(to, lambda: [_said(each) for each in _large(words).split(" ; ")], large=large)
    kind = message_factory.GetMessageClass(RPCS[to].input_type)
    return Input(to, lambda: [_written(text, kind)], large=large)


_LONG_FIELD = re.compile(r"(\w+): '<<(\d+)\*(.*?)>>'$")
_MANY_FIELDS = re.compile(r" ?<<(\d+)[*#](\w+(?:: '| \{).*)>>$")


def _written(text: str, kind: type[Message]) -> Message | bytes:
    """A message, or its bytes if it ends with very many fields: to parse each of those takes seconds. So does a string
    of megabytes, which is parsed once for what it repeats."""
    if long := _LONG_FIELD.search(text):
        name, count, piece = long.groups()
        message = text_format.Parse(f"{_large(text[: long.start()])}{name}: '{piece}'", kind())
        setattr(message, name, getattr(message, name) * int(count))
        return message
    if many := _MANY_FIELDS.search(text):
        first = text_format.Parse(_large(text[: many.start()]), kind())
        return first.SerializeToString() + _fields(int(many[1]), many[2], kind)
    return text_format.Parse(_large(text), kind())


def _fields(count: int, text: str, kind: type[Message]) -> bytes:
    """Bytes of so many fields, with the number of each for `%d`."""
    if "%d" not in text:
        return text_format.Parse(text, kind()).SerializeToString() * count
    parts: list[bytes] = []
    for digits in range(1, len(str(count - 1)) + 1):  # those of one length differ in their digits alone
        stand_in = "~" * digits
        field = text_format.Parse(text.replace("%d", stand_in), kind()).SerializeToString()
        before, after = field.split(stand_in.encode())
        numbers = range(10 ** (digits - 1) if digits > 1 else 0, min(10**digits, count))
        parts += [b"%b%d%b" % (before, number, after) for number in numbers]
    return b"".join(parts)


def _said(text: str) -> Message:
    return json_format.ParseDict(json.loads(re.sub(r",\s*\]", "]", text)), limiter_pb2.SessionRequest())


def _verify(code: str, style: int, **case: Any) -> Input:
    request: dict[str, Any] = {"code": code, "style": style, "limits": _BRIEF, "comparison": 3 if style == 1 else 0}
    request |= {"entry_point": "f"} if style == 2 else {}
    return Input("VerifyCode", lambda: [pb.VerifyCodeRequest(cases=[pb.VerifyCase(**case)], **request)])


_SETS = pb.FunctionCase(expected='["z",[' * 20 + '["l",[]]' + "]]" * 20)
_NUMBERS = pb.StdioCase(expected_stdout=b"1 " * 500000)
_RAW = {"no message": b"\xff" * 100, "half a message": b"\x0a\xff\x01x", "groups in groups": b"\x7b" * 100000,
    "8 MB of unknown fields": b"\xf8\x3f\x01" * (8 << 20 // 3)}  # fmt: skip


def _program(code: str) -> Input:
    return Input("ExecuteCode", lambda: [pb.ExecuteCodeRequest(code=code, limits=_BRIEF)])


def _cells(code: str) -> Input:
    return Input("cells", lambda: [pb.ExecuteCodeRequest(code=each) for each in (FORGE + code, "1")])


def _candidate(code: str) -> Input:
    source = f"{FORGE}\ndef f():\n    exec({code!r}, globals())\n    return 1"
    return _verify(source, 3, assertion=pb.AssertCase(source="assert f() == 2"))


def _raw(to: str, data: bytes) -> Input:
    return Input(to, lambda: [data], large=len(data) > 1 << 20)


INPUTS = {
    **{f"program: {name}": _program(code) for name, code in _lines(PROGRAMS).items()},
    **{f"cell: {name}": _cells(code) for name, code in _lines(FRAMES).items()},
    **{f"candidate: {name}": _candidate(code) for name, code in _lines(FRAMES).items()},
    **{
        f"value: {name}": _verify(f"x = frozenset()\n{code}\ndef f(): return x", 2, function=_SETS)
        for name, code in _lines(VALUES).items()
    },
    **{
        f"asserted: {name}": _verify(
            code, 3, assertion=pb.AssertCase(source="assert all(map(lambda _: f(), [1])) is 0")
        )
        for name, code in _lines(ASSERTED).items()
    },
    **{f"printed: {name}": _verify(code, 1, stdio=_NUMBERS) for name, code in _lines(PRINTED).items()},
    **{name: _request(line) for name, line in _lines(REQUESTS + CAPTURED.lstrip()).items()},
    **{name: Input("Session", make, large=True) for name, make in LONG_FRAMES.items()},
    **{
        f"{to}: {name}": _raw(to, data)
        for to in ("ExecuteCode", "VerifyCode", "PrepareWorkspace", "Session", "AcquireToken")
        for name, data in _RAW.items()
    },
}
