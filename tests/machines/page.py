"""Writes docs/reference/machines.md from what `make test-machines` found: `python -m tests.machines.page`.

A place that was not asked has no row; the page says of how many there are answers."""

from __future__ import annotations

import json
import platform
import sys

from tests.executor.servers import ROOT
from tests.machines.places import places

ROWS = ROOT / ".tests-machines"
PAGE = ROOT / "docs" / "reference" / "machines.md"
QUESTIONS = (
    *("starts", "level", "memory bomb", "fork bomb", "disk bomb", "escape suite", "sessions"),
    "make run",
)
HEAD = """\
# Where the executor was tried

Each row is a machine or a container in which `make test-machines` started an executor, and asked eight questions: does
it start, at which [level](../explanation/security.md), do bombs of memory, processes and files end with the right
verdict while a neighbour goes on, do the suites of escapes and of sessions pass, do the trajectories of `make run` run
their programs. A cell is "yes" or the sentence that a user gets.

"""
TAIL = """
Made on Linux {kernel} (x86-64) with Python {python}, as root, with containers of podman over this machine's files under
Docker's or podman's own seccomp profile. "Linux 5.13 to 5.18" and the like are rulesets of Landlock cut to what those
kernels know. Programs of the tests have the interpreter /usr/bin/python3 where the server is an ordinary user.

Kernels of their own, with control groups of version 2 (root, a user with a delegated group, a user without one, no user
namespaces, no CAP_SYS_ADMIN), are started by `make test-kernel`, which runs the suites of limits, escapes and sessions
there; so is Debian 12's own, Linux 6.1 with version 2 of Landlock, for a user without namespaces. `fairbox doctor` says
for your machine what holds and what to change.
"""


def main() -> int:
    """Writes the page."""
    found = [(each, ROWS / f"{each.name}.json") for each in places()]
    rows = [json.loads(path.read_text()) for _, path in found if path.is_file()]
    lines = [f"| environment | {' | '.join(QUESTIONS)} |", f"| --- |{' --- |' * len(QUESTIONS)}"]
    for row in rows:
        cells = [" ".join(str(row.get(question, "")).split()).replace("|", "\\|") for question in QUESTIONS]
        lines.append(f"| {row['what']} | {' | '.join(cells)} |")
    PAGE.parent.mkdir(exist_ok=True)
    tail = TAIL.format(kernel=platform.release().partition("-")[0], python=platform.python_version())
    PAGE.write_text(HEAD + "\n".join(lines) + "\n" + tail)
    sys.stdout.write(f"{PAGE}: {len(rows)} of {len(found)} places\n")
    return int(len(rows) < len(found))


if __name__ == "__main__":
    sys.exit(main())
