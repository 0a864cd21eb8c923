"""Entry point of a preparation: `python -I -S bootstrap.py`, a Spec as JSON on stdin, an Answer as JSON on stdout.

Imports this package without running `executor_service/__init__.py`, which would load gRPC.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))

if __name__ == "__main__":
    _module = sys.modules["executor_service"] = type(sys)("executor_service")
    _module.__path__ = [os.path.dirname(os.path.dirname(_HERE))]
    from executor_service.workspaces.prepare.prepare import main

    main()
