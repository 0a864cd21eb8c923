"""Entry point of the processes that write layers and read them: `python -I -S bootstrap.py unpack|pack PARENT`, a task
as JSON on stdin, its answer on stdout. PARENT is the pid of the process that starts it, with which it ends.

Imports this package without running `executor_service/__init__.py`, which would load gRPC.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))

if __name__ == "__main__":
    _module = sys.modules["executor_service"] = type(sys)("executor_service")
    _module.__path__ = [os.path.dirname(os.path.dirname(_HERE))]
    if sys.argv[1] == "pack":
        from executor_service.images.layers.pack import main
    else:
        from executor_service.images.layers.unpack import main

    main(int(sys.argv[2]))
