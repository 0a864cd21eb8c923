"""An executor that writes down the id of each program right before it may run: `python -m ... FILE COMMAND...`.

COMMAND is how `python -m executor_service` is called. All but the writing is the executor's own.
"""

from __future__ import annotations

import runpy
import sys

from fairbox.net.service_process import prepare_service

if __name__ == "__main__":
    prepare_service()

# isort: split
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from executor_service.runs import queue
from executor_service.runs.backends import Execution


class Counted(Execution):
    """Writes its request's id down."""

    __slots__ = ()
    log: TextIO

    async def begin(self, lost: Callable[[], None] = lambda: None) -> None:
        await super().begin(lost)
        self.log.write(f"{self.request.request_id}\n")


if __name__ == "__main__":
    _, file, *command = sys.argv
    vars(queue)["Execution"] = Counted
    sys.argv = command[command.index("executor_service") :]
    with Path(file).open("a", buffering=1) as Counted.log:
        runpy.run_module("executor_service", run_name="__main__", alter_sys=True)
