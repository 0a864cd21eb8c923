"""Prompts of code search, from Jinja2 templates that are checked when they are loaded.

A template sees `instance` (the row's columns, without those that hold the answer), `working_dir`, `max_turns` (None: no
limit), `max_parallel_calls`, `tools` (their names), and `answer_format`, which says how to answer in the run's dialect.
Invariants: a template with a syntax error or another variable does not load, and the error names its file and line;
nothing undefined becomes empty text; a prompt is a function of these values alone, so that all trajectories of a task
have the same bytes. Values are never templates themselves: `{{` in a problem statement stays what it is.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
import jinja2.nodes
import jinja2.sandbox

from fairbox.errors import ConfigError
from rollout.rewards.localization.dialects import Dialect
from rollout.tokens.tokenizer import Message

HIDDEN_COLUMNS = frozenset(
    ("patch", "test_patch", "target", "file_changes", "prompt", "FAIL_TO_PASS", "PASS_TO_PASS", "reward_model")
)
"""Columns that hold the answer, or another prompt: no template sees them."""
_SHIPPED = "rollout.envs.code_search"


@dataclass(frozen=True, slots=True)
class PromptContext:
    """Values of a run that every prompt may use."""

    working_dir: str
    max_turns: int | None
    max_parallel_calls: int
    tools: list[str]


_VARIABLES = frozenset((*PromptContext.__dataclass_fields__, "instance", "answer_format"))


@dataclass(frozen=True, slots=True)
class _Template:
    name: str
    template: jinja2.Template

    def render(self, values: Mapping[str, Any]) -> str:
        """Raises ConfigError with the template's name and line."""
        try:
            return self.template.render(values).strip("\n")
        except (jinja2.TemplateError, ArithmeticError, TypeError, ValueError, LookupError) as error:
            raise ConfigError(f"{self.name}:{_line(error)}: {error}") from None


class Prompts:
    """The system and the user turn in one dialect. `system` and `user` are paths of one's own templates; None: ours.

    Raises ConfigError.
    """

    def __init__(self, dialect: Dialect, *, system: Path | None = None, user: Path | None = None) -> None:
        self._environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
        )
        self._answer = self._shipped(f"answer_{dialect}.j2", frozenset())
        self._system = self._own(system) if system is not None else self._shipped("system.j2", _VARIABLES)
        self._user = self._own(user) if user is not None else self._shipped("user.j2", _VARIABLES)

    def render(self, instance: Mapping[str, Any], context: PromptContext) -> tuple[Message, ...]:
        """The prompt's two turns. Raises ConfigError for a value that a template needs and does not get."""
        shown = {name: value for name, value in instance.items() if name not in HIDDEN_COLUMNS}
        values = {**asdict(context), "instance": shown, "answer_format": self._answer.render({})}
        return (
            {"role": "system", "content": self._system.render(values)},
            {"role": "user", "content": self._user.render(values)},
        )

    def _shipped(self, name: str, known: frozenset[str]) -> _Template:
        text = importlib.resources.files(_SHIPPED).joinpath("templates", name).read_text(encoding="utf-8")
        return self._checked(name, text, known)

    def _own(self, path: Path) -> _Template:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: can't be read: {error}") from None
        return self._checked(str(path), text, _VARIABLES)

    def _checked(self, name: str, text: str, known: frozenset[str]) -> _Template:
        try:
            tree = self._environment.parse(text)
            unknown = jinja2.meta.find_undeclared_variables(tree) - known
            compiled = self._environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"{name}:{error.lineno}: {error.message}") from None
        if unknown:
            used = [node for node in tree.find_all(jinja2.nodes.Name) if node.name in unknown]
            first = min(used, key=lambda node: node.lineno)
            raise ConfigError(
                f"{name}:{first.lineno}: {first.name} is not a variable; there is: {', '.join(sorted(known))}"
            )
        return _Template(name, compiled)


def _line(error: BaseException) -> int:
    """The line of the template that raised; templates are the last frames that have no file."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
