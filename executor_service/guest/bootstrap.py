"""Entry point of a zygote: `python bootstrap.py CONTROL_FD [bare-]root|[bare-|mapped-]user`.

Imports this package without running `executor_service/__init__.py`, which would load gRPC into every program. A worker
comes back here: the frame below is the only one of ours under a program's own.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))

if __name__ == "__main__":
    _module = sys.modules["executor_service"] = type(sys)("executor_service")
    _module.__path__ = [os.path.dirname(_HERE)]
    from executor_service.guest.zygote import main

    _how, _, _who = sys.argv[2].rpartition("-")
    _program = main(int(sys.argv[1]), privileged=_who == "root", bare=_how == "bare", mapped=_how == "mapped")
    # From here on this is a worker, confined, and about to be the program.
    _error = None
    try:
        exec(_program.load(), _program.names)  # noqa: S102
    except BaseException as _raised:
        _error = _raised
    # Outside the handler: nothing that is raised at the end has the program's own exception as its context.
    _program.end(globals().pop("_error"))
