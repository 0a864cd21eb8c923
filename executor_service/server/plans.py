"""From a valid request to what a sandbox is given: command, files, environment."""

from __future__ import annotations

from executor_service.languages import LANGUAGES
from executor_service.model import InputFile, RunRequest
from executor_service.sandbox.host import WORK_FOLDER, Host
from executor_service.sandbox.report import Plan

__all__ = ["minimal_environment", "plan_of", "profile_of"]


def minimal_environment(host: Host) -> dict[str, str]:
    """All that a program's environment holds, but for what its request adds."""
    return {"PATH": host.path, "HOME": WORK_FOLDER, "LANG": "C.UTF-8", "TMPDIR": "/tmp"}  # noqa: S108


def plan_of(request: RunRequest, host: Host) -> Plan:
    language = LANGUAGES[request.language]
    return Plan(
        argv=(*language.command(language.run, host.python), *request.args),
        env=minimal_environment(host) | dict(request.env),
        limits=request.limits,
        files=(InputFile(language.file_name, request.code), *request.files),
        stdin=request.stdin,
        return_paths=request.return_paths,
    )


def profile_of(request: RunRequest) -> str:
    return LANGUAGES[request.language].profile
