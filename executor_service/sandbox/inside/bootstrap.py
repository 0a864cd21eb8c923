"""Entry point of a template: `python bootstrap.py CONTROL_FD [bare-]root|[bare-]user`.

Imports this package without running `executor_service/__init__.py`, which would load gRPC into every program. A worker
comes back here: the frame below is the only one of ours under a program's own.
"""

import os
import sys

_INSIDE = os.path.dirname(os.path.abspath(__file__))
_SANDBOX = os.path.dirname(_INSIDE)

if __name__ == "__main__":
    for _name, _folder in (
        ("executor_service", os.path.dirname(_SANDBOX)),
        ("executor_service.sandbox", _SANDBOX),
    ):
        _module = type(sys)(_name)
        _module.__path__ = [_folder]
        sys.modules[_name] = _module
    from executor_service.sandbox.inside.template import main

    _program = main(int(sys.argv[1]), privileged=sys.argv[2].endswith("root"), bare=sys.argv[2].startswith("bare-"))
    # From here on this is a worker, confined, and about to be the program.
    _error = None
    try:
        exec(_program.load(), _program.names)  # noqa: S102
    except BaseException as _raised:
        _error = _raised
    # Outside the handler: nothing that is raised at the end has the program's own exception as its context.
    _program.end(globals().pop("_error"))
