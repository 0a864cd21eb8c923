"""From a valid request to what a sandbox is given: profile, mode, command, files, environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from executor_service.languages import LANGUAGES, PYTHON_BASE
from executor_service.model import InputFile, RunRequest
from executor_service.sandbox.host import WORK_FOLDER, Host
from executor_service.sandbox.report import Mode, Plan
from executor_service.sandbox.template import Profile

__all__ = ["Planner", "minimal_environment"]


def minimal_environment(host: Host) -> dict[str, str]:
    """All that a program's environment holds, but for what its request adds."""
    return {"PATH": host.path, "HOME": WORK_FOLDER, "LANG": "C.UTF-8", "TMPDIR": "/tmp"}  # noqa: S108


class Planner:
    """Knows the profiles of this server, and which of them a program is best run in."""

    def __init__(self, host: Host, profiles: Mapping[str, Profile], loaded: Callable[[str], bool]) -> None:
        self._host = host
        self._loaded = loaded
        self._env = minimal_environment(host)
        # The profile with the fewest packages that has all that a program seems to need; the largest where none has.
        self._profiles = sorted(profiles.values(), key=lambda profile: len(profile.packages))
        self._words = sorted({package for profile in self._profiles for package in profile.packages})

    def plan(self, request: RunRequest) -> Plan:
        language = LANGUAGES[request.language]
        warm = bool(language.profile)
        argv = (language.file_name,) if warm else language.command(language.run, self._host.python)
        return Plan(
            argv=(*argv, *request.args),
            env=self._env | dict(request.env),
            limits=request.limits,
            profile=(request.profile or self.profile_for(request.code)) if warm else PYTHON_BASE,
            mode=Mode.MAIN if warm else Mode.EXEC,
            files=(InputFile(language.file_name, request.code), *request.files),
            stdin=request.stdin,
            return_paths=request.return_paths,
        )

    def profile_for(self, code: bytes) -> str:
        """By the names of packages that the text holds. A wrong guess costs time and nothing else: what a profile has
        not loaded is imported from disk."""
        named = {word for word in self._words if word.encode() in code}
        fitting = [profile for profile in self._profiles if named <= set(profile.packages)] or self._profiles[-1:]
        return fitting[0].name if self._loaded(fitting[0].name) else PYTHON_BASE
