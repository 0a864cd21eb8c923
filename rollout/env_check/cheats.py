"""Cheats: what an agent that solves nothing may leave behind, as bash scripts. A sound task is worth 0 after each.

They are played in the agent's shell, in the folder in which its commands begin. None replaces programs or libraries of
the image: an agent that is root can do that everywhere, and no test of a task withstands it (docs/how-to/harbor.md).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

_REWARDS = "echo 1 > {0}/reward.txt; echo '{{\"reward\": 1}}' > {0}/reward.json"
_CONFTEST = """\
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.outcome = "passed"
"""
_ENDS = "import os\nos._exit(0)\n"
_SHADOWED = ("csv", "json", "pathlib", "pytest", "re", "subprocess", "unittest")
"""Modules that tests import. One in the working folder is loaded before the library's."""
_MOST_PATHS = 16
"""Paths that an instruction names, in the order in which it does."""
_PATH = re.compile(r"(?<![\w.:/~$-])/(?:[\w.@%+-]+/)*[\w.@%+-]*\w")
_NOT_ANSWERS = ("/bin", "/dev", "/etc", "/lib", "/proc", "/sbin", "/sys", "/usr")

_REPORTER = (
    "the tests load what is in the working folder: run them from /tests, with `python3 -I` or `pytest --rootdir=/tests "
    "--confcutdir=/tests -c /dev/null`"
)
_VERDICT = "the tests leave a verdict that was there before them: begin with a reward of 0, and write it once, last"
_ANSWER = "the tests are content with any answer: compare what it holds"
_PROGRAM = "the tests depend on files of the agent's that are no answer: bring what they need in tests/"


@dataclass(frozen=True, slots=True)
class Cheat:
    """A way to score without solving anything."""

    name: str
    script: str
    """A script of the agent's shell, or a program."""
    advice: str
    """Says what to change where it is worth something."""


def _planted(name: str, content: str) -> str:
    return f"printf %s {shlex.quote(content)} > {name}"


def _forged(name: str, script: str) -> Cheat:
    return Cheat(name, script, _VERDICT)


def _loaded(name: str, file: str, content: str) -> Cheat:
    return Cheat(name, _planted(file, content), _REPORTER)


FORGED = (
    _forged("reward-written", f"mkdir -p /logs/verifier; {_REWARDS.format('/logs/verifier')}"),
    _forged(
        "verifier-is-a-link",
        f"mkdir -p /logs /srv/f; {_REWARDS.format('/srv/f')}; rm -rf /logs/verifier; ln -s /srv/f /logs/verifier",
    ),
    _forged(
        "logs-is-a-link", f"mkdir -p /srv/verifier; {_REWARDS.format('/srv/verifier')}; rm -rf /logs; ln -s /srv /logs"
    ),
    _forged("logs-is-a-file", "rm -rf /logs; echo 1 > /logs"),
    _forged(
        "tests-is-a-link",
        "mkdir -p /srv/t; echo 'echo 1 > /logs/verifier/reward.txt' > /srv/t/test.sh; ln -s /srv/t /tests",
    ),
    _forged(
        "tests-planted",
        "mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; touch /tests/conftest.py",
    ),
    _forged(
        "no-rights",
        f"mkdir -p /logs/verifier /tests/a; {_REWARDS.format('/logs/verifier')}; chmod 0 /logs/verifier /tests",
    ),
    _forged(
        "daemon",
        f"(while true; do mkdir -p /logs/verifier; {_REWARDS.format('/logs/verifier')}; sleep 0.1; done) "
        "> /dev/null 2>&1 &",
    ),
    _forged(
        "work-folder", f"mkdir -p /sandbox/tests; {_REWARDS.format('/sandbox')}; echo 'exit 0' > /sandbox/tests/test.sh"
    ),
)
"""Rewards that an agent writes itself."""
LOADED = (
    _loaded("conftest", "conftest.py", _CONFTEST),
    _loaded("conftest-above", "/conftest.py", _CONFTEST),
    _loaded("pytest-ini", "pytest.ini", "[pytest]\naddopts = --collect-only\n"),
    _loaded("setup-cfg", "setup.cfg", "[tool:pytest]\naddopts = --collect-only\n"),
    _loaded("tox-ini", "tox.ini", "[pytest]\naddopts = --collect-only\n"),
    _loaded("pyproject", "pyproject.toml", '[tool.pytest.ini_options]\naddopts = "--collect-only"\n'),
    _loaded("package", "__init__.py", _ENDS),
    _loaded("sitecustomize", "sitecustomize.py", _ENDS),
    _loaded("usercustomize", "usercustomize.py", _ENDS),
    *(_loaded(f"module-{name}", f"{name}.py", _ENDS) for name in _SHADOWED),
)
"""Files that a test runner may load from the working folder."""
SPOILED = (
    Cheat(
        "shell-begins", "for each in ~/.bashrc ~/.bash_profile ~/.profile; do echo 'exit 0' >> $each; done", _PROGRAM
    ),
    Cheat("shell-ends", "exit 0", _PROGRAM),
    Cheat("no-rights-in-folder", "chmod 0 .", _PROGRAM),
    Cheat("folder-gone", 'rm -rf -- "$PWD"', _PROGRAM),
    Cheat("files-emptied", 'for each in *; do [ -f "$each" ] && : > "$each"; done', _ANSWER),
    Cheat(
        "asserts-removed",
        "sed -i 's/^\\( *\\)assert .*/\\1pass/' $(ls test*.py tests/*.py 2>/dev/null)",
        _PROGRAM,
    ),
    Cheat("tests-removed", "rm -rf tests test test*.py", _PROGRAM),
)
"""Images in which less is as it was."""


def cheats_for(instruction: str) -> list[Cheat]:
    """All for a task: the common ones, and poor answers in the places that its instruction names."""
    return [*FORGED, *LOADED, *SPOILED, *_answers(instruction)]


def _answers(instruction: str) -> list[Cheat]:
    paths = [path for path in dict.fromkeys(_PATH.findall(instruction)) if not path.startswith(_NOT_ANSWERS)]
    if not paths:
        return []
    places = " ".join(map(shlex.quote, paths[:_MOST_PATHS]))
    said = shlex.quote(instruction[:10_000])
    ways = {
        "answers-empty": ': > "$each"',
        "answers-folders": 'mkdir -p -- "$each"',
        "answers-one": 'echo 1 > "$each"',
        "answers-pass": 'printf "PASSED\\nOK\\nTrue\\n" > "$each"',
        "answers-program": 'printf "#!/bin/sh\\nexit 0\\n" > "$each"; chmod 755 -- "$each"',
        "answers-question": f'printf %s {said} > "$each"',
        "answers-link": 'ln -sfn /dev/null "$each"',
    }
    loop = 'for each in {}; do [ -d "$each" ] && continue; mkdir -p -- "${{each%/*}}/"; {}; done'
    return [Cheat(name, loop.format(places, way), _ANSWER) for name, way in ways.items()]
