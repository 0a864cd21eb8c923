"""Starts the processes that handle layers, and takes their answers. It blocks: call it from a thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from executor_service.images.errors import LayerTimeout

_PROGRAM = Path(__file__).parent / "layers" / "bootstrap.py"


def answer_of(
    verb: Literal["unpack", "pack"], task: Mapping[str, Any], name: str, timeout_s: float, handles: Sequence[int] = ()
) -> Any:
    """The answer of the process to its task. `handles`: descriptors that the task names. Raises LayerTimeout, and
    OSError if it ended without an answer."""
    try:
        done = subprocess.run(  # noqa: S603 - our own
            (os.path.realpath(sys.executable), "-I", "-S", str(_PROGRAM), verb, str(os.getpid())),
            input=json.dumps(task).encode(),
            capture_output=True,
            timeout=timeout_s,
            check=False,
            pass_fds=handles,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
        )
    except subprocess.TimeoutExpired:
        raise LayerTimeout(f"{name}: to {verb} it took longer than {timeout_s:g} s") from None
    try:
        return json.loads(done.stdout)
    except ValueError:
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise OSError(f"{name}: the process to {verb} it ended with {done.returncode}: {last}") from None
