"""`__main__`, imports, tracebacks: what the interpreter shows of the program itself."""

from __future__ import annotations

from executor_service import InputFile
from tests.executor.fidelity.case import Case, programs

_PROGRAMS = r"""
=== main_module
print(__name__, __file__, __spec__, __package__, __doc__, __builtins__, type(__loader__))
=== globals_of_main
print(sorted(globals()))
=== annotations
x: int = 1
print(__annotations__, x)
=== main_is_registered
import sys; x = 5; print(sys.modules['__main__'].x, sys.modules['__main__'].__dict__ is globals())
=== import_main_again
import sys
print(__name__)
if __name__ == '__main__':
    import main
    print(main.__name__, main.__spec__.name)
=== import_dunder_main
import __main__; y = 3; print(__main__.y, __main__.__file__)
=== path
import sys; print(sys.path)
=== import_system
import sys; print(sys.meta_path, [str(hook)[:40] for hook in sys.path_hooks])
=== flags
import sys
print(sys.flags, sys.warnoptions, sys._xoptions, sys.dont_write_bytecode, sys.pycache_prefix)
=== builtins
import builtins; print(dir(builtins), builtins.__import__)
=== no_modules_of_ours
import sys; print([m for m in sys.modules if 'executor' in m or 'fairbox' in m or 'inside' in m])
=== missing_module
import no_such_module_at_all
=== future_annotations
from __future__ import annotations
def f(x: Unknown): pass
print(f.__annotations__)
=== no_future_leaks
def f(x: int): pass
print(f.__annotations__)
print(compile('1', 'x', 'eval').co_flags)
=== code_object
import sys
c = sys._getframe().f_code
print(c.co_name, c.co_filename, c.co_firstlineno, c.co_flags)
=== getsource
import inspect
def f(x):
    return x + 1  # comment
print(inspect.getsource(f), inspect.getsourcefile(f))
=== getsource_of_main
import inspect, sys
print(inspect.getsource(sys.modules['__main__']))
=== stack_of_main
import inspect
def f(): return [(i.function, i.lineno) for i in inspect.stack()][:2]
print(f())
=== print_stack
import traceback
def f(): traceback.print_stack()
f()
=== dataclass
from dataclasses import dataclass
@dataclass
class P:
    x: int
    y: 'int' = 2
print(P(1), P.__module__)
=== pickle_of_main
import pickle
class A:
    pass
print(type(pickle.loads(pickle.dumps(A()))) is A, pickle.dumps(A))
=== enum_and_typing
import typing, enum
class E(enum.Enum):
    A = 'E'
def f(x: 'E'): pass
print(typing.get_type_hints(f), E.A)
=== linecache
import linecache; print(linecache.getline(__file__, 1), linecache.getline('main.py', 1))
=== exec_and_eval
exec('def f(): 1/0')
try: f()
except ZeroDivisionError:
    import traceback; traceback.print_exc()
=== reading_itself
print(open(__file__).read() == open('main.py').read(), len(open(__file__).read()))
=== traceback
def f(x):
    return 1 / x

f(
    0
)
=== traceback_chained
try:
    {}['a']
except KeyError as e:
    raise ValueError('b') from e
=== traceback_context
try:
    1/0
except ZeroDivisionError:
    undefined_name
=== traceback_suppressed
try:
    1/0
except ZeroDivisionError:
    raise ValueError('x') from None
=== traceback_group
raise ExceptionGroup('many', [ValueError(1), TypeError(2)])
=== traceback_note
e = ValueError('x'); e.add_note('a note'); raise e
=== traceback_suggestion
import math; math.sqr(2)
=== traceback_unicode
äö = 1; print('日本'); raise ValueError('日本😀')
=== traceback_from_library
import json; json.loads('{')
=== traceback_edited_file
open('main.py', 'w').write('# changed\n' * 5)

1/0
=== syntax_error
print(1)
x = (1,
     2
=== syntax_error_points
x = 5 +* 3
=== indentation_error
if True:
print(1)
=== encoding_cookie
# coding: latin-1
print(ascii('é'))
=== only_a_comment
# nothing
=== syntax_warning
x = 1
if x is 1: print('\d')
=== deprecation_warning_in_main
import warnings; warnings.warn('old', DeprecationWarning)
=== warning_filters
import warnings; print(warnings.filters, warnings.showwarning)
=== resource_warning_silent
open('/dev/null')
"""

FILES = (
    Case(
        "unknown_encoding",
        """
# coding: no-such-codec
print(1)
""",
        ignore="  File .*\\n|(unknown encoding|encoding problem)",
    ),
    Case(
        "traceback_recursive",
        """
def f(n): return f(n + 1)
f(0)
""",
        ignore="\\d+ more times",
    ),
    Case("docstring", '"""What I am."""\nprint(__doc__)'),
    Case("argv", "import sys; print(sys.argv, sys.orig_argv, sys.executable)", args=("a b", "", "--x", "ü")),
    Case(
        "sibling_files",
        """
import os, helper, package.part
print(helper.VALUE, package.part.__file__, sorted(os.listdir('.')))
""",
        files=(
            InputFile("helper.py", b"VALUE = 4"),
            InputFile("package/part.py", b""),
            InputFile("data.txt", b"x"),
        ),
    ),
    Case("sibling_shadows_stdlib", "import queue; print(queue.MINE)", files=(InputFile("queue.py", b"MINE = 1"),)),
    Case(
        "sibling_latin1",
        "import old; print(ascii(old.X))",
        files=(InputFile("old.py", b"# coding: latin-1\nX = '\xe9'\n"),),
    ),
    Case("bad_sibling", "import broken", files=(InputFile("broken.py", b"def f(:\n"),)),
    Case(
        "doctest",
        'import doctest\ndef f():\n    """\n    >>> f()\n    1\n    """\n    return 1\nprint(doctest.testmod())',
    ),
    Case(
        "unittest_main",
        """
import unittest
class T(unittest.TestCase):
    def test_x(self): self.assertEqual(1, 2)
unittest.main()
""",
        ignore="in [0-9.]+s",
    ),
    Case(
        "runpy", "import runpy; print(runpy.run_path('other.py')['X'])", files=(InputFile("other.py", b"X = __name__"),)
    ),
    Case("tab_error", "if True:\n\tx = 1\n        y = 2"),
    Case("byte_order_mark", "\ufeffprint('bom')"),
    Case("carriage_returns", "x = '''a\r\nb'''\r\nprint(repr(x))\r\n"),
    Case("no_newline_at_end", "print(1)\nif 1:\n    print(2)"),
    Case(
        "deprecation_warning_elsewhere",
        "import helper",
        files=(InputFile("helper.py", b"import warnings; warnings.warn('o', DeprecationWarning)"),),
    ),
)

CASES = programs(_PROGRAMS)
