"""`fairbox doctor`: what this machine offers to an executor. The executor itself looks, as a process of its own."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Sequence

from fairbox.errors import EXIT_FAILURE

_ELSEWHERE = {
    "question": "kernel",
    "answer": "no",
    "sentence": f"this is {platform.system()}, and an executor needs Linux",
    "remedy": "executor=HOST:PORT of a machine with Linux, or a virtual machine; clients work here",
}


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 if at least one isolation level works, 1 otherwise."""
    if platform.system() == "Linux":
        words = [sys.executable, "-P", "-m", "executor_service.machine.doctor", *argv]
        return subprocess.run(words, check=False).returncode  # noqa: S603 - our own
    if "--json" in argv:
        report = {"works": False, "level": "", "levels": {}, "findings": [_ELSEWHERE], "machine": None}
        print(json.dumps(report))
    else:
        print("{answer} {question}: {sentence}\n  change: {remedy}".format(**_ELSEWHERE))
    return EXIT_FAILURE
