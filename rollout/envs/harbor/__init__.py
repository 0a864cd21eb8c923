"""Task folders in Harbor's format: an instruction, an image, and tests that grade what an agent leaves in it."""

from rollout.envs.harbor.checker import HarborChecker
from rollout.envs.harbor.environment import HarborConfig, HarborEnvironment, task_options
from rollout.envs.harbor.folder import HarborTask, read_files, read_task, read_tasks
from rollout.envs.harbor.shell import TaskShell, TaskTests
from rollout.envs.harbor.task_file import UnsupportedTask
from rollout.tools.code.graded import TaskShellConfig

__all__ = [
    "HarborChecker",
    "HarborConfig",
    "HarborEnvironment",
    "HarborTask",
    "TaskShell",
    "TaskShellConfig",
    "TaskTests",
    "UnsupportedTask",
    "read_files",
    "read_task",
    "read_tasks",
    "task_options",
]
