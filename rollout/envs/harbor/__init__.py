"""Task folders in Harbor's format: an instruction, an image, and tests that grade what an agent leaves in it."""

from rollout.envs.harbor.environment import HarborConfig, HarborEnvironment, task_options
from rollout.envs.harbor.folder import HarborTask, read_files, read_task, read_tasks
from rollout.envs.harbor.shell import TaskCheck, TaskShell, TaskTests, check_task
from rollout.envs.harbor.task_file import UnsupportedTask
from rollout.tools.code.graded import TaskShellConfig

__all__ = [
    "HarborConfig",
    "HarborEnvironment",
    "HarborTask",
    "TaskCheck",
    "TaskShell",
    "TaskShellConfig",
    "TaskTests",
    "UnsupportedTask",
    "check_task",
    "read_files",
    "read_task",
    "read_tasks",
    "task_options",
]
