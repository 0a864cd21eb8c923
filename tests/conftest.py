"""Generated examples are the same in every run of `make test`, so that a run says something about a change; `make soak`
looks for new ones. No deadline for a single example: nothing is timed in tests. What fails is written at once.

torch has one thread: several parts of the suite run beside each other, and threads of OpenMP wait for each other by
spinning, which took five times as long. Ray's workers have the priority of all else: by themselves they take the
lowest, and on a busy machine no more than what is left.

Executors that tests start know Python and bash alone, and import no scientific package before anybody asks, unless the
test says otherwise: by themselves they take four times the processor time to start."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("EXECUTOR_LANGUAGES", "bash,python")
for _package in ("NUMPY", "SYMPY", "PANDAS", "SCIENCE"):
    os.environ.setdefault(f"EXECUTOR_PROFILES__PYTHON_{_package}__AHEAD", "false")

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("explore" if os.environ.get("FAIRBOX_EXPLORE") else "steady")


class _FailuresAtOnce:
    """Names a failed test and its error while the others run on; tracebacks come at the end, as ever."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._plugins.get_plugin("terminalreporter")
        if reporter is None or not report.failed:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        reporter.ensure_newline()
        reporter.write_line(f"failed: {report.nodeid}: {'' if crash is None else crash.message}", flush=True)


def pytest_configure(config: pytest.Config) -> None:
    """Registers what writes failures."""
    config.pluginmanager.register(_FailuresAtOnce(config))
