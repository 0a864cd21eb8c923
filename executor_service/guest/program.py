"""A Python program in an interpreter that was there before it: what `python main.py` does, from first line to exit.

Invariants: `__main__`, sys.argv, sys.path, the environment, signals, standard streams and random seeds are as in a
fresh interpreter; none of our modules is left in sys.modules; the end runs what CPython runs (threads, atexit, names of
`__main__`, flushing) and has its exit codes. Differences that remain: string hashes and addresses are those of the
zygote, modules that the zygote has loaded are in sys.modules, and a walk up the stack finds one frame more.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # without the enums of `signal`, which cost more than the calls
import builtins
import gc
import os
import resource
import sys
import time
import types
from _frozen_importlib_external import SourceFileLoader
from _weakref import ref

from executor_service.guest.walls import syscalls as sys_
from executor_service.guest.walls.tree import stat_fields
from executor_service.guest.warm import seeds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any, NoReturn

    from executor_service.guest.protocol.status_page import StatusPages

_ARG_START = 45
"""Position of the address in /proc/PID/stat, counted from the state."""
_OURS = "executor_service"
_INTERRUPTED = -2
_FLUSH_FAILED = 120
"""CPython's exit code where standard output can't be flushed at the end."""
_environment: dict[str, str] = {}
"""Contents of os.environ."""
_run_exit_functions = __import__("atexit")._run_exitfuncs


def show_as(argv: list[str]) -> None:
    """Makes `argv` what /proc/PID/cmdline shows of this process from now on."""
    if not (fields := stat_fields("self")):
        return  # a level without /proc
    start, end = int(fields[_ARG_START]), int(fields[_ARG_START + 1])
    if 0 < start < end:
        sys_.overwrite(start, end - start, b"\0".join(map(os.fsencode, argv)) + b"\0")


def prepare_interpreter(folder: str, name: str) -> None:
    """Once, in the zygote: makes this interpreter one that is about to run `python name` in `folder`."""
    main = types.ModuleType("__main__")
    path = os.path.join(folder, name)
    main.__dict__.update(
        __file__=path,
        __builtins__=builtins,
        __cached__=None,
        __loader__=SourceFileLoader("__main__", path),
        __annotations__={},
    )
    for each in [each for each in sys.modules if each.partition(".")[0] == _OURS]:
        del sys.modules[each]
    sys.modules["__main__"] = main
    sys.argv[:] = [name]
    sys.orig_argv[:] = [sys.executable, name]
    sys.path[0] = folder
    sys.path_importer_cache.clear()
    if (linecache := sys.modules.get("linecache")) is not None:
        linecache.clearcache()
    show_as(sys.orig_argv)
    _environment.update(os.environ)


def restore_interpreter() -> None:
    """Undoes what zygote and init did to this interpreter. Part of the set-up, ahead of the request."""
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    if (threading := sys.modules.get("threading")) is not None:
        threading.main_thread()._set_native_id()
    seeds.fresh()


class PythonProgram:
    """`exec(program.load(), program.names)`, then `program.end(error)`, which does not return."""

    def __init__(self, argv: list[str], env: dict[str, str], source: bytes, pages: StatusPages) -> None:
        self._argv = argv
        self._env = env
        self._pid = os.getpid()
        self._used_before_s = time.process_time()
        self._source = source
        self._pages = pages
        # A module of its own: that of the zygote is frozen, so a cycle through its names would never be collected.
        main = types.ModuleType("__main__")
        main.__dict__.update(sys.modules["__main__"].__dict__)
        sys.modules["__main__"] = main
        self.names: dict[str, Any] = main.__dict__

    def take_over(self) -> None:
        """Makes arguments and environment those of the program, where they are not what the zygote has."""
        if self._env != _environment:
            os.environ.clear()
            os.environ.update(self._env)
            time.tzset()
        if self._argv != sys.argv:
            sys.argv[:] = self._argv
            sys.orig_argv[1:] = self._argv
            show_as(sys.orig_argv)

    def move(self, folder: str) -> None:
        """Adapts to a work folder that is not the one that the zygote was prepared for."""
        path = os.path.join(folder, os.path.basename(self.names["__file__"]))
        self.names.update(__file__=path, __loader__=SourceFileLoader("__main__", path))
        sys.path[0] = folder

    def load(self) -> CodeType:
        self.take_over()
        return compile(self._source, self.names["__file__"], "exec", dont_inherit=True)

    def rehearse(self) -> None:
        """Does what is done for each program, as far as it can be done without one."""
        code = self.load()
        sink = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - closed below
        out, sys.stdout = sys.stdout, sink
        try:
            exec(code, self.names)  # noqa: S102 - our own text
            _exit_code(None)
            _flush(0)
            _flush_quietly()
        finally:
            sys.stdout = out
            sink.close()
        names, self.names = self.names, {}
        _clear(names)

    def end(self, error: BaseException | None) -> NoReturn:
        """Ends as CPython does after the last line, or once `error` was raised. The program's children end here too."""
        try:
            try:
                code = _exit_code(error)
            except SystemExit as second:  # by the program's excepthook
                code = system_exit(second)
            self._leave(self._finalize(code, error))
        except BaseException as failed:
            sys.__excepthook__(type(failed), failed, failed.__traceback__)
            sys.stderr.flush()
        os._exit(1)  # ending failed itself: the program has taken something away that it needs

    def _leave(self, code: int) -> NoReturn:
        if code == _INTERRUPTED:
            _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
            os.kill(os.getpid(), _signal.SIGINT)
        sys_.flush_c_streams()
        if os.getpid() != self._pid:
            os._exit(code & 0xFF)  # a child: its parent waits for its death
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._pages.end(code, time.process_time() - self._used_before_s + used.ru_utime + used.ru_stime)

    def _finalize(self, code: int, error: BaseException | None) -> int:
        """Threads, exit functions, the streams, `__main__` and what it holds; in CPython's order."""
        try:
            if (threading := sys.modules.get("threading")) is not None:
                threading._shutdown()
        except BaseException as failed:
            sys.__excepthook__(type(failed), failed, failed.__traceback__)
        _run_exit_functions()
        code = _flush(code)
        while error is not None:  # frames of the program hang on it
            error.__traceback__, error = None, error.__cause__ or error.__context__
        sys.last_type = sys.last_value = sys.last_traceback = None
        for name in ("stdout", "stderr"):
            setattr(sys, name, getattr(sys, f"__{name}__"))
        module, names, self.names = sys.modules.pop("__main__", None), self.names, {}
        held = ref(module) if module is not None else _nobody
        del module
        if held() is None:
            del names  # functions may hold it in a cycle: finalizers then find their globals as they were
            gc.collect()
        else:
            gc.collect()
            _clear(names)
        gc.collect(1)
        _flush_quietly()
        return code


def _exit_code(error: BaseException | None) -> int:
    """The exit code for what came out of the program, after saying what there is to say."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        return system_exit(error)
    if error.__traceback__ is not None:
        error.__traceback__ = _without_ours(error.__traceback__)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    _call_hook(error)
    return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def _without_ours(trace: types.TracebackType) -> types.TracebackType | None:
    """The outermost frame is the entry point's; where the program could not be compiled, all are ours."""
    left: types.TracebackType | None = trace.tb_next
    while left is not None and _OURS in left.tb_frame.f_globals.get("__name__", ""):
        left = left.tb_next
    return left


def _call_hook(error: BaseException) -> None:
    hook = getattr(sys, "excepthook", None)
    try:
        if hook is None:
            sys.stderr.write("sys.excepthook is missing\n")
            sys.__excepthook__(type(error), error, error.__traceback__)
        else:
            hook(type(error), error, error.__traceback__)
    except SystemExit:
        raise
    except BaseException as second:
        second.__traceback__ = second.__traceback__.tb_next if second.__traceback__ else None
        second.__context__ = None
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(second), second, second.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)


def system_exit(error: SystemExit) -> int:
    """The exit code, after saying on stderr what else it was raised with. As CPython."""
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF
    try:
        sys.stderr.write(f"{code}\n")
    except Exception:  # noqa: S110 - as CPython: the exit code says enough
        pass
    return 1


def _nobody() -> None:
    """In the place of a reference to a module that is not there."""


def _clear(names: dict[str, Any]) -> None:
    """As the end of a module that somebody still holds: private names first, then all others but the builtins."""
    for private in (True, False):
        for name in list(names):
            if name != "__builtins__" and (name[:1] == "_" and name[:2] != "__") == private:
                names[name] = None


def _flush(code: int) -> int:
    """A stream that can't be flushed makes the exit code 120, whatever it was."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name, None)
        try:
            if stream is not None and not _closed(stream):
                stream.flush()
        except BaseException as error:
            code = _FLUSH_FAILED
            if name == "stdout":
                _ignored(stream, error)
    return code


def _closed(stream: Any) -> bool:
    try:
        return bool(stream.closed)
    except Exception:
        return False


def _ignored(stream: Any, error: BaseException) -> None:
    """In the words of this version. From 3.13 on the places within lines are not marked where C prints."""
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    minor = sys.version_info.minor
    where = f"in: {stream!r}" if minor < 13 else f"{'on' if minor == 13 else 'while'} flushing sys.stdout:"
    try:
        sys.stderr.write(f"Exception ignored {where}\n")
        import traceback  # here, because few programs need it

        frames = traceback.extract_tb(trace)
        if minor >= 13:
            frames = traceback.StackSummary.from_list([(each[0], each[1], each[2], each[3]) for each in frames])
        said = ["Traceback (most recent call last):\n"] if frames else []
        sys.stderr.write("".join([*said, *frames.format(), *traceback.format_exception_only(type(error), error)]))
    except BaseException:  # noqa: S110 - nobody is left to be told
        pass


def _flush_quietly() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # noqa: S110 - said before
            pass
