"""From a valid request to what a sandbox is given: profile, mode, command, files, environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from executor_service.guest.serve.work_folder import WORKSPACE
from executor_service.guest.warm.packages import THREADS
from executor_service.images.table import HeldImage
from executor_service.languages import LANGUAGES, PYTHON_BASE, LanguageSpec
from executor_service.languages.spec import fill
from executor_service.model import InputFile, Limits, RunRequest
from executor_service.sandbox.host import WORK_FOLDER, Host
from executor_service.sandbox.limits import disk_use
from executor_service.sandbox.report import NO_END_S, Mode, Plan, WorkspaceMount
from executor_service.sandbox.zygote import Profile
from executor_service.wire.sessions import SessionRequest

Hold = Callable[[str, str, Limits], AbstractContextManager[WorkspaceMount | None]]
"""Keeps the workspace of this id where it is, for something of this tenant that has these limits; None for no id."""
_TMP = "/tmp"  # noqa: S108 - the sandbox's own
BESIDE = "beside"
"""Entry that runs a command beside a shell."""
CELLS = "cells"
"""Entry that serves cells in a worker."""
SHELL = "shell"
"""Entry that serves commands of a shell."""
_IMPORT = b"import"
"""Word in every program that imports anything: the statement, `__import__`, or `importlib`."""
_IMAGE_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}
"""Environment of an image's programs, where the image has no other. HOME is that of their user."""
_ONE_THREAD = dict.fromkeys(THREADS, "1")
"""A library that starts threads when it is imported would keep its session from being branched."""


def _read_at_start(name: str) -> bool:
    """Says whether an interpreter reads the variable when it starts: one that already waits would miss it."""
    return name.startswith(("PYTHON", "LC_")) or name in ("LANG", "LANGUAGE")


def minimal_environment(host: Host) -> dict[str, str]:
    """All that a program's environment holds, but for what its request adds."""
    return {"PATH": host.path, "HOME": WORK_FOLDER, "LANG": "C.UTF-8", "TMPDIR": _TMP}


def mounted(plan: Plan, workspace: WorkspaceMount | None, *, read_only: bool = False) -> Plan:
    """The same plan with a workspace, whose folder its environment names."""
    if workspace is None:
        return plan
    return replace(
        plan, workspace=replace(workspace, read_only=read_only), env={**plan.env, WORKSPACE: workspace.target}
    )


class Planner:
    """Knows the profiles of this server, and which of them a program is best run in."""

    def __init__(self, host: Host, profiles: Mapping[str, Profile], loaded: Callable[[str], bool]) -> None:
        self._host = host
        self._loaded = loaded
        self._env = minimal_environment(host)
        # The profile with the fewest packages that has all that a program seems to need; the largest where none has.
        self._profiles = sorted(
            (each for each in profiles.values() if not each.lean), key=lambda profile: len(profile.packages)
        )
        self._lean = next((each.name for each in profiles.values() if each.lean and each.ahead), None)
        self._words = sorted({package for profile in self._profiles for package in profile.packages})

    def plan(self, request: RunRequest, made: tuple[InputFile, ...] = ()) -> Plan:
        """Plan that runs a program. `made` is what its compiler made."""
        language = LANGUAGES[request.language]
        if language.profile and not any(map(_read_at_start, request.env)):
            return Plan(
                argv=(language.file_name, *request.args),
                env=self._env | dict(request.env),
                limits=request.limits,
                profile=request.profile or self._program_profile(request.code),
                mode=Mode.MAIN,
                files=(InputFile(language.file_name, request.code), *request.files),
                stdin=request.stdin,
                return_paths=request.return_paths,
            )
        values = self._values(request, request.limits)
        files = (*_files(request), *made)
        return Plan(
            argv=(*(fill(word, values) for word in language.run), *request.args),
            env=self._environment(language, values) | dict(request.env),
            limits=_with_room(request, files),
            profile=self._lean_or_base(),
            files=files,
            stdin=request.stdin,
            return_paths=request.return_paths,
            reserves=language.reserves,
        )

    def image_plan(self, request: RunRequest, held: HeldImage) -> Plan:
        """Plan that runs a program of a language without a compiler in an image, which has to have its interpreter."""
        language, config = LANGUAGES[request.language], held.image.config
        values = {name: commands[0] for name, commands in language.tools.items()}
        values |= {"python": "python3", "memory": str(request.limits.memory_bytes), "tmp": _TMP}
        name = language.program_file(request.code)
        argv = [f"{WORK_FOLDER}/{name}" if word == name else fill(word, values) for word in language.run]
        env = _IMAGE_ENV | dict(config.env) | {key: fill(value, values) for key, value in language.env.items()}
        return Plan(
            argv=(*argv, *request.args),
            env=env | dict(request.env),
            limits=request.limits,
            profile=self._lean_or_base(),
            files=_files(request),
            stdin=request.stdin,
            return_paths=request.return_paths,
            reserves=language.reserves,
            image=held.mount,
            folder=config.working_dir,
            user=request.user or config.user,
        )

    def compilation(self, request: RunRequest, limits: Limits) -> Plan:
        """Plan that compiles its source. Arguments, input and variables of the request are for the program alone."""
        language = LANGUAGES[request.language]
        values = self._values(request, limits)
        return Plan(
            argv=tuple(fill(word, values) for word in language.compile),
            env=self._environment(language, values),
            limits=limits,
            profile=self._lean_or_base(),
            files=_files(request),
            return_paths=language.makes,
            reserves=language.reserves,
        )

    def probe(self, language: LanguageSpec, limits: Limits) -> Plan:
        """Plan that tells whether a language is installed."""
        values = {**self._host.tools, "memory": str(limits.memory_bytes), "tmp": _TMP}
        argv = tuple(fill(word, values) for word in language.probe)
        return Plan(argv, self._environment(language, values), limits, self._lean_or_base(), reserves=language.reserves)

    def preparation(self, program: tuple[InputFile, ...], order: bytes, limits: Limits, entries: int) -> Plan:
        """Something of ours that reads what somebody has sent, and is to be trusted no more than that. It makes a
        folder `made`, of so many files and folders."""
        return Plan(
            argv=(self._host.python, "-I", "-S", f"{WORK_FOLDER}/executor_service/workspaces/prepare/bootstrap.py"),
            env=self._env,
            limits=limits,
            profile=self._lean_or_base(),
            files=program,
            stdin=order,
            return_paths=("made",),
            entries=entries,
        )

    def _values(self, request: RunRequest, limits: Limits) -> dict[str, str]:
        """Values of `{...}` in the entry of the request's language."""
        name = LANGUAGES[request.language].program_name(request.code)
        return {**self._host.tools, "name": name, "memory": str(limits.memory_bytes), "tmp": _TMP}

    def _environment(self, language: LanguageSpec, values: Mapping[str, str]) -> dict[str, str]:
        return self._env | {name: fill(value, values) for name, value in language.env.items()}

    def session_plan(self, request: SessionRequest, profile: str) -> Plan:
        """An interpreter that serves cells. Its time is that of each cell."""
        return Plan(
            argv=("",),
            env=self._env | _ONE_THREAD | dict(request.env),
            limits=replace(request.limits, wall_time_s=NO_END_S, cpu_time_s=NO_END_S),
            profile=profile,
            mode=Mode.SERVE,
            files=request.files,
            entry=CELLS,
        )

    def shell_plan(self, request: SessionRequest, held: HeldImage | None) -> Plan:
        """A shell that serves commands, in an image if there is one. Its time is that of each command."""
        if held is None:
            env = self._environment(LANGUAGES[request.language], self._host.tools)
        else:
            env = _IMAGE_ENV | dict(held.image.config.env)
        return Plan(
            argv=(request.language, "" if held is None else held.image.config.working_dir),
            env=env | dict(request.env),
            limits=replace(request.limits, wall_time_s=NO_END_S, cpu_time_s=NO_END_S),
            profile=self._lean_or_base(),
            mode=Mode.SERVE,
            files=request.files,
            entry=SHELL,
            image=None if held is None else held.mount,
            user="" if held is None else request.user or held.image.config.user,
        )

    def cell_plan(self, request: RunRequest) -> Plan:
        """The program of a request, served as a cell. Its limits of time begin with the cell: a start that they cut off
        would be a failure of ours."""
        plan = self.plan(request)
        profile = self.profile_for(request.code) if plan.profile == self._lean else plan.profile
        limits = replace(plan.limits, wall_time_s=NO_END_S, cpu_time_s=NO_END_S)
        return replace(plan, limits=limits, profile=profile, mode=Mode.SERVE, entry=CELLS, stdin=b"", return_paths=())

    def notebook_plan(self, request: RunRequest) -> Plan:
        """An interpreter for the cells of one request, whose `code` is theirs. Its files are read at its end."""
        plan = self.cell_plan(request)
        return replace(plan, argv=("",), files=request.files, return_paths=request.return_paths)

    def session_profile(self) -> str:
        """For sessions whose code is not known yet: the one with the most packages of those that are always loaded."""
        ahead = [profile.name for profile in reversed(self._profiles) if profile.ahead and self._loaded(profile.name)]
        return ahead[0] if ahead else PYTHON_BASE

    def _program_profile(self, code: bytes) -> str:
        return self._lean_or_base() if _IMPORT not in code else self.profile_for(code)

    def _lean_or_base(self) -> str:
        """For what needs no modules: what is forked from less costs less."""
        return self._lean if self._lean is not None and self._loaded(self._lean) else PYTHON_BASE

    def profile_for(self, code: bytes) -> str:
        """By the names of packages that the text holds. A wrong guess costs time and nothing else: what a profile has
        not loaded is imported from disk."""
        named = {word for word in self._words if word.encode() in code}
        best, *others = [each for each in self._profiles if named <= set(each.packages)] or self._profiles[-1:]
        if self._loaded(best.name):
            return best.name
        # Asking for one that is not to be loaded ahead would load it.
        return next((each.name for each in others if each.ahead and self._loaded(each.name)), PYTHON_BASE)


def _with_room(request: RunRequest, files: tuple[InputFile, ...]) -> Limits:
    """The limits of a request, raised by what `files` hold beyond what it brings: that is charged to nobody."""
    brought = disk_use((InputFile("", request.code), *request.files))
    size = max(disk_use(files) - brought, 0)
    limits = request.limits
    return replace(limits, disk_bytes=limits.disk_bytes + size, memory_bytes=limits.memory_bytes + size)


def _files(request: RunRequest) -> tuple[InputFile, ...]:
    """The program, the files of the request, and those of its language that the request does not bring."""
    language = LANGUAGES[request.language]
    brought = {file.path for file in request.files}
    beside = [InputFile(path, text.encode()) for path, text in language.files.items() if path not in brought]
    program = InputFile(language.program_file(request.code), language.source(request.code))
    return (program, *request.files, *beside)
