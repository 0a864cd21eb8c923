"""Entry point of a preparation: `python -I -S bootstrap.py`, a Spec as JSON on stdin, an Answer as JSON on stdout.

Imports this package without running `executor_service/__init__.py`, which would load gRPC.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))

if __name__ == "__main__":
    _TOP = os.path.dirname(_HERE)
    for _name in ("", ".workspaces", ".sandbox", ".sandbox.inside"):
        _name = f"executor_service{_name}"
        _module = type(sys)(_name)
        _module.__path__ = [os.path.join(_TOP, *_name.split(".")[1:])]
        sys.modules[_name] = _module
    from executor_service.workspaces.prepare import main

    main()
