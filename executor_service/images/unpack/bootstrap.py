"""Entry point of unpacking: `python -I -S bootstrap.py`, an UnpackTask as JSON on stdin, an UnpackAnswer on stdout.

Imports this package without running `executor_service/__init__.py`, which would load gRPC.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))

if __name__ == "__main__":
    _module = sys.modules["executor_service"] = type(sys)("executor_service")
    _module.__path__ = [os.path.dirname(os.path.dirname(_HERE))]
    from executor_service.images.unpack.main import main

    main()
