"""The languages that programs may be written in: each one small declarative entry.

Invariants: an entry says everything about a language; nothing else in fairbox tests for a language's name. Only what is
declared here is offered, and of that only what answers its probe inside the sandbox when the server starts. The names
are SandboxFusion's, and `c`.
"""

from __future__ import annotations

from executor_service.languages.native import NATIVE
from executor_service.languages.scripting import SCRIPTING
from executor_service.languages.spec import PYTHON_BASE, PYTHON_LEAN, PYTHON_SCIENCE, LanguageSpec, Needs
from executor_service.languages.suites import JVM, SUITES, WEB

__all__ = [
    "LANGUAGES",
    "PYTHON_BASE",
    "PYTHON_LEAN",
    "PYTHON_SCIENCE",
    "LanguageSpec",
    "Needs",
    "canonical",
]

LANGUAGES: dict[str, LanguageSpec] = {
    spec.name: spec
    for spec in sorted((*SCRIPTING, *NATIVE, *JVM, *WEB, *SUITES), key=lambda spec: (spec.name.lower(), spec.name))
}
"""By name."""
_ALIASES = {
    "": "python",
    "c#": "csharp",
    "c++": "cpp",
    "cs": "csharp",
    "golang": "go",
    "javascript": "nodejs",
    "js": "nodejs",
    "kotlin": "kotlin_script",
    "node": "nodejs",
    "pl": "perl",
    "py": "python",
    "python3": "python",
    "r": "R",
    "rb": "ruby",
    "rs": "rust",
    "sh": "bash",
    "shell": "bash",
    "sqlite": "sql",
    "ts": "typescript",
    "txt": "text",
}


def canonical(name: str) -> str:
    """The name of a language that people, and models, call otherwise; another name as it is. Empty: python."""
    return name if name in LANGUAGES else _ALIASES.get(name.lower(), name)
