"""`fairbox image`: keeps images for executors. The executor's own command does it, as a process of its own."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Sequence

from fairbox.errors import EXIT_FAILURE


def main(argv: Sequence[str]) -> int:
    """Entry point; the command's exit code."""
    if platform.system() == "Linux":
        words = [sys.executable, "-P", "-m", "executor_service.images.command", *argv]
        return subprocess.run(words, check=False).returncode  # noqa: S603 - our own
    print(f"fairbox image: this is {platform.system()}, and images are kept for executors, which need Linux")
    return EXIT_FAILURE
