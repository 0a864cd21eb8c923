"""Repositories to be fixed, as rows of SWE-bench and its like name them: a report, an image, and hidden tests."""

from rollout.envs.swe.checker import RowChecker
from rollout.envs.swe.commands import ReportKind, SuitePlan, plan_of
from rollout.envs.swe.environment import SweConfig, SweEnvironment, row_options
from rollout.envs.swe.grading import RowMismatch
from rollout.envs.swe.programs import RepositoryTests
from rollout.envs.swe.reports import read_report
from rollout.envs.swe.rows import SweRow, read_swe_rows
from rollout.envs.swe.shell import RepositoryShell
from rollout.tools.code.graded import TaskShellConfig

__all__ = [
    "ReportKind",
    "RepositoryShell",
    "RepositoryTests",
    "RowChecker",
    "RowMismatch",
    "SuitePlan",
    "SweConfig",
    "SweEnvironment",
    "SweRow",
    "TaskShellConfig",
    "plan_of",
    "read_report",
    "read_swe_rows",
    "row_options",
]
