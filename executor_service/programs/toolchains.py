"""Finds the tools that languages need on this machine, once, before the first sandbox is made.

Invariants: programs get to see a folder of the host for its toolchain only if the configuration names it, or if the
toolchain itself says that the folder is its home; a tool that programs could not see does not count as found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from executor_service.languages import LanguageSpec
from executor_service.languages.spec import fill
from executor_service.sandbox.host import WORK_FOLDER, Host
from fairbox.errors import ConfigError

_HOME_TIMEOUT_S = 20.0
"""For a command that prints one line; it is started on the host, not in a sandbox."""
_OWN = ("/tmp", "/dev", "/proc", WORK_FOLDER)  # noqa: S108
"""Folders that programs have of their own; they don't see the host's."""
_BIN_FOLDERS = ("bin", "node_modules/.bin", ".")
"""Subfolders of a toolchain folder that hold its commands."""


@dataclass(slots=True)
class _Search:
    """State of the search: what programs see so far, and what was found."""

    host: Host
    folders: list[Path]
    tools: dict[str, str] = field(default_factory=dict)
    binds: list[str] = field(default_factory=list)
    path: list[str] = field(default_factory=list)

    def sees(self, path: Path) -> bool:
        links = (link for link, _ in self.host.links)
        return any(path.is_relative_to(seen) for seen in (*self.host.binds, *links, *self.binds))

    def show(self, path: Path) -> None:
        """Under its own name, and under its real one."""
        for name in (path, path.resolve()):
            if not self.sees(name):
                self.binds.append(str(name))

    def command(self, names: Iterable[str]) -> Path | None:
        """The first command that is there: in the toolchain folders, then on the server's PATH."""
        own = [str(folder / name) for folder in self.folders for name in _BIN_FOLDERS]
        path = os.pathsep.join((*own, os.environ.get("PATH", os.defpath)))
        return next((Path(found) for name in names if (found := shutil.which(name, path=path))), None)


def find_toolchains(specs: Iterable[LanguageSpec], host: Host, folders: Sequence[str]) -> Host:
    """`host` with what the toolchains of languages add to its tools, folders and PATH, and which are missing.

    `folders` are the toolchain folders of the configuration. ConfigError for one that is not acceptable.
    """
    search = _Search(host, [_checked(folder) for folder in folders])
    for folder in search.folders:
        search.show(folder)
        search.path += [str(folder / name) for name in _BIN_FOLDERS[:2] if (folder / name).is_dir()]
    missing = {}
    for spec in specs:
        reason = _find(spec, search)
        if reason:
            missing[spec.name] = reason
        else:
            for path in (path for pattern in spec.binds for path in sorted(Path("/").glob(pattern.lstrip("/")))):
                search.show(path)
    modules = [str(path) for folder in search.folders if (path := folder / "node_modules").is_dir()]
    first, *others = host.path.split(":")  # `python` stays the interpreter for programs
    return replace(
        host,
        binds=(*host.binds, *search.binds),
        path=":".join(dict.fromkeys((first, *search.path, *others))),
        tools=search.tools | {"python": host.python, "node_modules": ":".join(modules)},
        missing=missing,
    )


def _checked(name: str) -> Path:
    folder = Path(name)
    if not folder.is_absolute() or not folder.is_dir() or folder.resolve() == Path("/"):
        raise ConfigError(f"toolchains has {name!r}, must be absolute paths of folders, with ':' between them")
    if any(folder.is_relative_to(own) for own in _OWN):
        raise ConfigError(
            f"toolchains has {name!r}, must be outside {', '.join(_OWN)}, which programs have of their own"
        )
    return folder


def _find(spec: LanguageSpec, search: _Search) -> str:
    """Adds the tools of a language; or says why not, and adds nothing."""
    found: dict[str, str] = {}
    home: Path | None = None
    for name, commands in spec.tools.items():
        tool = search.command(commands)
        if tool is None:
            wanted = " or ".join(commands)
            return f"{wanted} is not in the toolchain folders or on the server's PATH; it comes with {spec.install}"
        if not search.sees(tool.resolve()):
            home = _home(spec, found | {name: str(tool), "python": search.host.python})
            if home is None:
                return f"{tool} is outside what programs can see: add the folder of its toolchain to `toolchains`"
            tool = home / "bin" / tool.name
            if not os.access(tool, os.X_OK):
                return f"{home} is the folder of the toolchain, and has no {tool}"
        found[name] = str(tool)
    if home is not None:
        search.show(home)
    search.tools |= found
    search.path += [str(Path(tool).parent) for tool in found.values()]
    return ""


def _home(spec: LanguageSpec, tools: Mapping[str, str]) -> Path | None:
    """The folder that the toolchain calls its own; None where it does not say."""
    if not spec.home:
        return None
    command = [fill(word, tools) for word in spec.home]
    try:
        answer = subprocess.run(  # noqa: S603
            command, capture_output=True, timeout=_HOME_TIMEOUT_S, check=True, text=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    folder = Path(answer.stdout.strip())
    return folder if folder.is_absolute() and folder.is_dir() and folder.resolve() != Path("/") else None
