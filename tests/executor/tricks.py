"""The known ways to be graded as right without being right, as candidates for one small task.

The task is `add(a, b)`, or a program that prints the sum of two numbers. The expected values are in the tests alone.
"""

from __future__ import annotations

import textwrap

from executor_service import AssertCase, FunctionCase, InputFile, PytestCase, StdioCase

LEFT, RIGHT, SUM = 365988, 365989, 731977
"""The sum is what a candidate must not find anywhere."""

STDIO = [StdioCase(b"1 2\n", b"3\n"), StdioCase(b"20 30\n", b"50\n"), StdioCase(b"%d %d" % (LEFT, RIGHT), b"%d" % SUM)]
FUNCTION = [FunctionCase((1, 2), 3), FunctionCase((20, 30), 50), FunctionCase((LEFT, RIGHT), SUM)]
ASSERT = [
    AssertCase("assert add(1, 2) == 3"),
    AssertCase("assert not add(1, 2) != 3"),
    AssertCase("assert abs(add(20, 30) - 50) < 1e-6"),
    AssertCase("assert add(20, 30) in [50]"),
    AssertCase("assert {add(20, 30)} == {50}"),
    AssertCase("assert sorted([add(1, 2), add(20, 30)]) == [3, 50]"),
    AssertCase("assert isinstance(add(1, 2), int) and int(add(20, 30)) == 50"),
    AssertCase("assert str(add(1, 2)) == '3' and len(str(add(20, 30))) == 2"),
    AssertCase("from math import isclose\nfrom solution import *\nassert isclose(add(20, 30), 50)"),
    AssertCase("assert close(add(20, 30), 50)"),
    AssertCase(f"total = add({LEFT}, {RIGHT})\nassert total == {SUM}, total"),
]
SETUP = "def close(a, b):\n    return abs(a - b) < 1e-9\n"
TEST_FILE = InputFile(
    "test_add.py",
    textwrap.dedent(f"""
        import unittest
        import pytest
        from pytest import approx
        from solution import *
        from solution import add

        def test_equal_in_secret():
            assert add(1, 2) == 3

        def test_approx():
            assert add(20, 30) == approx(50)
            assert approx(50) == add(20, 30)

        @pytest.mark.parametrize("x", [3, 50])
        def test_many(x):
            assert add(x, 1) == x + 1

        def test_not_wrong():
            if add(1, 2) != 3:
                pytest.fail("wrong")

        class TestUnit(unittest.TestCase):
            def test_unit(self):
                self.assertEqual(add({LEFT}, {RIGHT}), {SUM})
    """).encode(),
)
PYTEST = [PytestCase()]

HONEST = {
    "plain": "def add(a, b):\n    return a + b\n",
    "with output": "print('PASSED')\ndef add(a, b):\n    print('debug', a, b)\n    return a + b\n",
    "with helpers": "import math\nclass Sum(int): pass\ndef add(a, b):\n    return Sum(math.fsum([a, b]))\n",
    "with threads": (
        "import threading\ndef add(a, b):\n    out = []\n"
        "    t = threading.Thread(target=lambda: out.append(a + b)); t.start(); t.join()\n    return out[0]\n"
    ),
    "with a guarded main": "def add(a, b):\n    return a + b\nif __name__ == '__main__':\n    raise SystemExit(1)\n",
}
HONEST_STDIO = {
    "plain": "a, b = map(int, input().split())\nprint(a + b)\n",
    "with an exit": "import sys\nprint(sum(map(int, sys.stdin.read().split())))\nsys.exit(0)\n",
    "unbuffered": "import os\nos.write(1, str(sum(map(int, os.read(0, 99).split()))).encode())\nos._exit(0)\n",
}

_WRONG = "\ndef add(a, b):\n    return 12345\n"
_FRAMES = """
import json, os, socket, stat, struct
def frame(head, blob=b""):
    text = json.dumps(head).encode()
    return struct.pack("<IQ", len(text), len(blob)) + text + blob
def forge():
    verdict = frame({"type": "verdict", "status": "passed", "asked": 3, "message": ""})
    test = frame({"type": "test", "node_id": "test_add.py::test_equal_in_secret", "status": "passed", "message": ""})
    for handle in range(3, 1024):
        try:
            if stat.S_ISSOCK(os.fstat(handle).st_mode) or stat.S_ISFIFO(os.fstat(handle).st_mode):
                for each in (test, verdict):
                    os.write(handle, each)
        except OSError:
            pass
"""

MODULES = {
    "sys.exit": "import sys\nsys.exit(0)",
    "os._exit": "import os\nos._exit(0)",
    "exit later": "import atexit, os\natexit.register(os._exit, 0)" + _WRONG,
    "exit in the call": "import os\ndef add(a, b):\n    os._exit(0)\n",
    "SystemExit in the call": "def add(a, b):\n    raise SystemExit(0)\n",
    "prints verdicts": "print('PASSED')\nprint('1 passed in 0.01s')\nprint('{\"passed\": true}')\nprint('1.0')"
    + _WRONG,
    "prints late": (
        "import threading, time\ndef late():\n    time.sleep(0.05)\n    print('PASSED', flush=True)\n"
        "threading.Thread(target=late).start()" + _WRONG
    ),
    "patches builtins": (
        "import builtins\nbuiltins.AssertionError = KeyError\nbuiltins.isinstance = lambda *a: True\n"
        "builtins.abs = lambda x: 0\nbuiltins.sorted = lambda x, **k: [3, 50]\nbuiltins.len = lambda x: 2\n"
        "builtins.str = lambda x='': '3'\nbuiltins.int = lambda *a: 3" + _WRONG
    ),
    "defines built-in names": (
        "def abs(x): return 0\ndef sorted(x): return [3, 50]\ndef isinstance(*a): return True\ndef str(x): return '3'\n"
        "def len(x): return 2\ndef int(x): return 3\nclass AssertionError(KeyError): pass\ndef set(*a): return 1"
        + _WRONG
    ),
    "defines the names of the test": (
        "def close(a, b): return True\ndef isclose(a, b): return True\ndef approx(x): return 12345\n"
        "def test_equal_in_secret(): pass\nclass TestUnit:\n    def test_unit(self): pass\n"
        "pytest_plugins = ['solution']\n"
        "class pytest:\n    class mark: pass\n"
        "__all__ = ['add', 'approx', 'isclose', 'close', 'pytest', 'test_equal_in_secret', 'abs', 'unittest',"
        " 'TestUnit', 'test_approx', 'test_many', 'test_not_wrong']" + _WRONG
    ),
    "patches json": (
        'import json\njson.dumps = lambda *a, **k: \'["l", [3, ["d", [], []], ""]]\'\n'
        "json.loads = lambda *a, **k: {'type': 'verdict', 'status': 'passed'}" + _WRONG
    ),
    "patches pytest": (
        "try:\n    import _pytest.reports, _pytest.runner, pytest\n"
        "    _pytest.reports.TestReport.outcome = 'passed'\n    _pytest.runner.check_interactive_exception = None\n"
        "    pytest.main = lambda *a, **k: 0\nexcept ImportError:\n    pass" + _WRONG
    ),
    "writes tests": (
        "import os\nfor folder in ('.', '/tmp', '..', '/sandbox', os.path.expanduser('~')):\n"
        "    for name in ('conftest.py', 'test_add.py', 'sitecustomize.py', 'pytest.ini', 'json.py'):\n        try:\n"
        "            open(os.path.join(folder, name), 'w').write('def test_equal_in_secret(): pass\\n')\n"
        "        except OSError:\n            pass" + _WRONG
    ),
    "forges frames when loaded": _FRAMES + "forge()" + _WRONG,
    "forges frames in the call": _FRAMES + "def add(a, b):\n    forge()\n    return 12345\n",
    "forges frames from a thread": (
        _FRAMES
        + "import threading\nthreading.Thread(target=lambda: [forge() for _ in range(50)], daemon=True).start()"
        + _WRONG
    ),
    "replaces its own answers": (
        "import gc\ndef add(a, b):\n    for each in gc.get_objects():\n"
        "        if type(each).__name__ in ('Peer', 'Channel'):\n            try:\n"
        "                type(each).answer = lambda *a: None\n                each.send({'type': 'verdict',"
        " 'status': 'passed', 'message': ''})\n            except Exception:\n                pass\n    return 12345\n"
    ),
    "patches frames on the stack": (
        "import sys\ndef add(a, b):\n    frame = sys._getframe()\n    while frame:\n"
        "        for name in ('expected', 'status', 'verdict', 'finding', 'passed'):\n"
        "            frame.f_locals[name] = True\n            frame.f_globals[name] = True\n"
        "        frame = frame.f_back\n    return 12345\n"
    ),
    "patches the clock": (
        "import time, signal\ntime.time = time.monotonic = time.perf_counter = lambda: 0.0\n"
        "signal.alarm = lambda *a: 0" + _WRONG
    ),
    "kills everything": (
        "import os, signal\ndef add(a, b):\n    for pid in (os.getppid(), -1):\n        try:\n"
        "            os.kill(pid, signal.SIGKILL)\n        except OSError:\n            pass\n    return 12345\n"
    ),
    "kills itself": "import os, signal\ndef add(a, b):\n    os.kill(os.getpid(), signal.SIGKILL)\n",
    "stops itself": "import os, signal\ndef add(a, b):\n    os.kill(os.getpid(), signal.SIGSTOP)\n",
    "forks and answers twice": "import os\ndef add(a, b):\n    os.fork()\n    return 12345\n",
    "never returns": "def add(a, b):\n    while True:\n        pass\n",
    "recurses": "def add(a, b):\n    return add(a, b)\n",
    "raises what ends a test": "import unittest\ndef add(a, b):\n    raise unittest.SkipTest('not today')\n",
    "raises what pytest catches": (
        "def add(a, b):\n    try:\n        import _pytest.outcomes as o\n        raise o.Skipped('no')\n"
        "    except ImportError:\n        raise KeyboardInterrupt\n"
    ),
    "raises KeyboardInterrupt": "def add(a, b):\n    raise KeyboardInterrupt\n",
    "raises StopIteration": "def add(a, b):\n    raise StopIteration(3)\n",
    "raises GeneratorExit": "def add(a, b):\n    raise GeneratorExit\n",
    "remembers the last answer": (
        "import os\nPATH = '/tmp/last'\ndef add(a, b):\n    old = open(PATH).read() if os.path.exists(PATH) else 0\n"
        "    open(PATH, 'w').write(str(a + b))\n    return int(old)\n"
    ),
    "does not define it": "def sub(a, b):\n    return a - b\n",
    "is not Python": "def add(a, b) return a + b",
}

_EVIL = """
class Evil:
    def __init__(self, *a): pass
    def yes(self, *a): return True
    def zero(self, *a): return 0
    def three(self, *a): return 3
    __eq__ = __contains__ = __le__ = __lt__ = __ge__ = __gt__ = __bool__ = yes
    def __ne__(self, other): return False
    def __hash__(self): return hash(50)
    __sub__ = __rsub__ = __add__ = __radd__ = __abs__ = __mod__ = zero
    __int__ = __index__ = three
    def __float__(self): return 50.0
    def __len__(self): return 2
    def __repr__(self): return '3 '
    def __getattr__(self, name): return Evil()
    def __call__(self, *a): return True
"""
VALUES = {
    "equal to everything": _EVIL + "def add(a, b):\n    return Evil()\n",
    "an int equal to everything": (
        _EVIL + "class I(int):\n    __eq__ = Evil.yes\n    __hash__ = Evil.__hash__\n    __sub__ = Evil.zero\n"
        "    __ne__ = Evil.__ne__\ndef add(a, b):\n    return I(12345)\n"
    ),
    "a float equal to everything": (
        _EVIL + "class F(float):\n    __eq__ = Evil.yes\n    __hash__ = Evil.__hash__\n    __sub__ = Evil.zero\n"
        "    __ne__ = Evil.__ne__\ndef add(a, b):\n    return F(0.5)\n"
    ),
    "a text equal to everything": (
        _EVIL + "class S(str):\n    __eq__ = Evil.yes\n    __hash__ = Evil.__hash__\n    __sub__ = Evil.zero\n"
        "    __ne__ = Evil.__ne__\ndef add(a, b):\n    return S('x')\n"
    ),
    "a class that lies about itself": (
        _EVIL + "class L(Evil):\n    @property\n    def __class__(self): return int\ndef add(a, b):\n    return L()\n"
    ),
    "a class": _EVIL + "add = Evil\n",
    "an object that can be called": _EVIL + "class C(Evil):\n    def __call__(self, *a): return Evil()\nadd = C()\n",
    "a mock": "from unittest import mock\nadd = mock.MagicMock(return_value=mock.ANY)\n",
    "a module": "import math\ndef add(a, b):\n    return math\n",
    "a generator": "def add(a, b):\n    yield a + b\n",
    "not a number": "def add(a, b):\n    return float('nan')\n",
    "a frame": "import sys\ndef add(a, b):\n    return sys._getframe(1)\n",
    "an endless list": "def add(a, b):\n    x = []\n    x.append(x)\n    return x\n",
    "a huge value": "def add(a, b):\n    return [0] * 10**7\n",
    "the built-in answer": "def add(a, b):\n    return NotImplemented\n",
}

PROGRAMS = {
    "prints verdicts": "print('PASSED')\nprint('Accepted')\nprint('1.0')\n",
    "exits": "raise SystemExit(0)\n",
    "prints nothing": "import os\nos._exit(0)\n",
    "prints everything": "print('\\n'.join(map(str, range(100))))\n",
    "prints late": "import os, time\nif os.fork() == 0:\n    time.sleep(0.2)\n    print('3')\n",
    "fails after the answer": "print(sum(map(int, input().split())))\nraise SystemExit(1)\n",
    "dies after the answer": (
        "import os\nprint(sum(map(int, input().split())), flush=True)\nos.kill(os.getpid(), 9)\n"
    ),
    "overwrites its line": "print('12345\\r', end='')\nprint('3\\x08')\n",
    "hangs after the answer": "print(sum(map(int, input().split())), flush=True)\nwhile True: pass\n",
}

SEARCH = r"""
import os, re
# None of these patterns matches itself, so that neither this source nor its copies in memory are found.
WANTED = [re.compile(each) for each in (rb"test_equal_in_secre[t]", rb"isclose\(ad[d]", rb"73197[7]")]
def look(path, data, found):
    found.extend((path, pattern.pattern) for pattern in WANTED if pattern.search(data))
def read(path, found):
    try:
        with open(path, "rb") as file:
            look(path, file.read(1 << 20), found)
    except OSError:
        pass
def search():
    found = []
    for top in (".", "/tmp", "/dev/shm", "/sandbox", "/home", "/var", "/run", "/etc", "/mnt"):
        for folder, _, names in os.walk(top):
            for name in names:
                read(os.path.join(folder, name), found)
    for pid in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        for name in ("environ", "cmdline", "comm", "stat"):
            read(f"/proc/{pid}/{name}", found)
    for handle in range(3, 300):
        if os.path.isfile(f"/proc/self/fd/{handle}"):
            read(f"/proc/self/fd/{handle}", found)
    try:
        maps, memory = open("/proc/self/maps").read(), open("/proc/self/mem", "rb", 0)
    except OSError:
        maps = ""
    for low, high in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) rw", maps, re.M):
        low, high = int(low, 16), int(high, 16)
        while low < high:
            memory.seek(low)
            try:
                look("memory", memory.read(min(high - low, 1 << 22)), found)
            except OSError:
                break
            low += 1 << 22
    print("found", found)
"""
