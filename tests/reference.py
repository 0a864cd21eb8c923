"""Writes docs/reference from the code and the protos: `python -m tests.reference`, or `make docs`.

The pages hold nothing of the machine: a default that differs from machine to machine is a sentence of its setting.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import enum
import importlib
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from prometheus_client.metrics_core import Metric

import executor_service.errors
import executor_service.rpc.service
import fairbox.net.metrics
import rollout.cli
import rollout.cli.data.command
from executor_service import Cause, ExecutionResult, Outcome
from executor_service.config import ExecutorConfig
from executor_service.machine.doctor import DoctorConfig
from executor_service.rpc.metrics import executor_metrics
from executor_service.runs.tally import RunTally
from executor_service.sandbox.shelf import PoolStatistics
from executor_service.v1.executor_pb2 import GetStatusResponse
from fairbox.security.server import security_metrics
from fairbox.settings import Leaf, leaves
from fairbox.telemetry.tracing import TracingStatistics
from fairbox.v1.common_pb2 import SecurityStatus
from limiter.config import BucketConfig, LimiterConfig
from limiter.core import LimiterCore, RejectReason
from limiter.server.metrics import limiter_metrics
from limiter.server.service import _STATUS
from rollout.engines.base import EngineStatistics
from rollout.envs.registry import _BUILT_IN, find_environment
from rollout.figures import outcome_metrics, progress_metrics, service_metrics
from rollout.loop.runner import RunnerStatistics
from rollout.metrics import RolloutMetrics
from rollout.service.config import ServiceConfig
from rollout.tools.statistics import ToolStatistics
from rollout.training.run.metrics import trainer_metrics

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
PROTOS = ("executor_service/v1/executor", "limiter/v1/limiter", "rollout/v1/rollout", "fairbox/v1/common")
TOOLS = ("code.CodeInterpreter", "code.BashTool", "gsm8k_reward.Gsm8kRewardTool")
_TYPES = {str: "text", int: "whole number", float: "number", bool: "true or false"}
_SETTINGS = """# Settings

Made by `make docs` from the declarations of the settings, which `--help` of each program lists too.

A setting is a flag (`--max-queued 5` or `max_queued=5`), an environment variable (prefix and name in upper case, `__`
for a dot: `EXECUTOR_LIMITS__PROCESSES=32`), and a key of `--config FILE` (YAML or TOML). Flags win over variables, and
variables over files. You choose what stands for NAME. `fairbox exec` has options instead: `fairbox exec --help`."""
_METRICS = """# Metrics

Made by `make docs` from the metrics themselves; [Operations](../how-to/operations.md#figures) says which to watch. They
are at `/metrics` of `metrics_listen`, with the `process_*` metrics of prometheus-client. A histogram has `_bucket` with
the label `le`, `_sum` and `_count`. `*_spans_total` are there while tracing is on, and metrics by tenant with
`metrics_tenants`. A limiter that does not lead has the first three and the last three. `fairbox train` has the metrics
of training, and those of a rollout's endpoint, engine, tools and spans; over Ray the last three are not there."""
_API = """# Services

Made by `make docs` from the files in `proto/`, which say the same."""
_OUTCOMES = """# Outcomes

Made by `make docs` from the code. More is said of [programs](results.md#outcomes), [grading](../how-to/grading.md) and
[trajectories](../how-to/rollout.md#causes-and-masks). The cause is TASK, not POLICY, if a limit is reached before the
first turn, or if the program that fails is a case's own. The reason beside a status is the reason of
`google.rpc.ErrorInfo`, with RESOURCE_EXHAUSTED the subject of `google.rpc.QuotaFailure`; the error is the one that
`ExecutorClient` raises."""
_ENUMS = {
    "Causes": "executor_service:Cause",
    "Programs": "executor_service:Outcome",
    "Cases of grading": "executor_service.grading.model:Verdict",
    "Why a trajectory stopped": "rollout.loop.limits:StopReason",
    "States of a trajectory": "rollout.loop.state:RequestState",
    "Tool calls": "rollout.tools.base:ToolOutcome",
    "Groups of training": "rollout.training.rollouts.staleness:GroupEnd",
    "Requests that an executor refused": "executor_service.runs.tally:Refusal",
    "Calls refused for their token": "fairbox.security.server:Denial",
}


def text(prose: str) -> str:
    """Prose as Markdown: nothing in it is taken for a mark, but for code in backticks."""
    parts = re.split(r"(`[^`]*`)", " ".join(prose.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([*<])", r"\\\1", part) for part in parts)


def table(head: str, rows: Iterable[Sequence[str]]) -> str:
    """A table, one line for each row. `head`: its columns, with commas between."""
    columns = head.split(", ")
    lines = [columns, ["---"] * len(columns), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(re.sub(r"\|  (?=\|)", "| ", f"| {' | '.join(line)} |") for line in lines)


def anchor(heading: str) -> str:
    """Anchor that links use for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def page(intro: str, sections: Mapping[str, str]) -> str:
    """A page of sections, with links to them."""
    links = "\n".join(f"- [{heading}](#{anchor(heading)})" for heading in sections)
    return "\n\n".join([intro, links, *(f"## {heading}\n\n{each}" for heading, each in sections.items())]) + "\n"


Program = tuple[str, str, list[Leaf], str]
"""Purpose of a program, the prefix of its variables, its settings, and another program whose settings it shares."""


def commands(prog: str, known: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, Program]]:
    """The commands of a table, with what `--help` of each would list."""
    for word, (module, does) in known.items():
        if word == "data":
            yield from commands(f"{prog} data", rollout.cli.data.command._COMMANDS)
        elif word == "doctor":  # the executor's, in a process of its own
            yield f"{prog} {word}", (does, "EXECUTOR", list(leaves(DoctorConfig)), "executor_service")
        elif word not in ("exec", "image"):  # have no settings
            with patch("fairbox.config._help", side_effect=SystemExit) as asked, contextlib.suppress(SystemExit):
                importlib.import_module(module).main(["--help"])
            listed, prefix, *_ = asked.call_args.args
            own = [leaf for leaf in listed if not leaf.path.startswith("env_config.")]
            yield f"{prog} {word}", (does, prefix, own, f"{prog} rollout" if word == "train" else "")


def allowed(leaf: Leaf) -> str:
    """Type and bounds of a setting."""
    kind, parts = _TYPES.get(leaf.type, ""), typing.get_args(leaf.type)
    if parts:
        kind = f"list of {_TYPES[parts[0]]}s" if len(parts) == 1 else f"{_TYPES[parts[1]]}s by name"
    elif isinstance(leaf.type, type) and issubclass(leaf.type, enum.Enum):
        kind = f"one of: {', '.join(leaf.type.__members__)}"
    bounds = leaf.allowed.replace("a finite number", "")
    words = bounds if bounds.startswith("one of") else f"{kind}, {bounds}".removesuffix(", ")
    return f"{words}; or none" if leaf.optional else words


def default(leaf: Leaf) -> str:
    """A setting's default, in words if it is not the same on every machine."""
    value = leaf.default
    if value is dataclasses.MISSING or leaf.shown:
        return leaf.shown or "required"
    if value in ("", [], {}):
        return "empty"
    if value is None or isinstance(value, bool):
        return f"`{value}`".lower()
    shown = f"[{', '.join(value)}]" if isinstance(value, list) else getattr(value, "name", str(value))
    size = f" ({value >> 20} MiB)" if leaf.type is int and value and not value % (1 << 20) else ""
    return f"`{shown.removesuffix('.0')}`{size}"


def settings_table(known: Iterable[Leaf]) -> str:
    """The settings, in the order of `--help`."""
    rows = ([f"`{leaf.path.replace('*', 'NAME')}`", allowed(leaf), default(leaf), text(leaf.help)] for leaf in known)
    return table("setting, value, default, meaning", rows)


def settings() -> str:
    """docs/reference/settings.md."""
    programs = {
        "executor_service": ("`python -m executor_service`", "EXECUTOR", list(leaves(ExecutorConfig)), ""),
        "limiter": ("`python -m limiter`", "LIMITER", list(leaves(LimiterConfig)), ""),
        "rollout": ("`python -m rollout`", "ROLLOUT", list(leaves(ServiceConfig)), "fairbox rollout"),
        **dict(commands("fairbox", rollout.cli._COMMANDS)),
    }
    found = {}
    for name, (does, prefix, own, other) in programs.items():
        about = f"{does[0].upper()}{does[1:]}. Variables: `{prefix}_*`."
        if other:
            own = [leaf for leaf in own if leaf not in programs[other][2]]
            about += f" Beside these it has the settings of [`{other}`](#{anchor(other)})."
        found[f"`{name}`"] = f"{about}\n\n{settings_table(own)}"
    for name in _BUILT_IN:
        rows = settings_table(leaves(find_environment(name).config_type, "env_config."))
        found[f"Environment `{name}`"] = f"Settings of a run with `env={name}`.\n\n{rows}"
    for name in (f"rollout.tools.{tool}" for tool in TOOLS):
        rows = settings_table(leaves(resolve_name(name).config_type))
        found[f"Tool `{name.rpartition('.')[2]}`"] = f"Keys of `config` of `class_name: {name}`.\n\n{rows}"
    return page(_SETTINGS, found)


def metrics_table(name: str, found: Iterable[Metric]) -> str:
    """The metrics of a tier; with those of its endpoint, which training shares with rollouts."""
    metrics, loop = list(found), SimpleNamespace(call_soon_threadsafe=lambda answer: answer())
    if name != "training":
        metrics = list(
            fairbox.net.metrics._Figures(metrics.copy, f"fairbox_{name}", typing.cast("Any", loop)).collect()
        )
    rows = []
    for metric in metrics:
        labels = dict.fromkeys(f"`{label}`" for sample in metric.samples for label in sample.labels if label != "le")
        shown = f"`{metric.name}_total`" if metric.type == "counter" else f"`{metric.name}`"
        rows.append([shown, metric.type, ", ".join(labels), text(metric.documentation)])
    return table("metric, type, labels, meaning", rows)


@patch("fairbox.telemetry.tracing.statistics", return_value=TracingStatistics(0, 0, 0, 0))
def metrics(_: object) -> str:
    """docs/reference/metrics.md."""
    fake: Any = SimpleNamespace
    tally, boxes = RunTally(max_tenants=1), fake(statistics=lambda: {"NAME": PoolStatistics(0, 0, 0, 0, 0)})
    tally.ended(ExecutionResult(Outcome.FINISHED, Cause.POLICY), "NAME")
    core = LimiterCore(1, [BucketConfig().limits("NAME")], now=0.0)
    term = fake(leads=True, runner=fake(core=core, clock=fake(now=lambda: 0.0)))
    run = [*progress_metrics(RunnerStatistics(0, 0, 0, 0, 0, 0, 0, 0)), *outcome_metrics(RolloutMetrics())]
    found: dict[str, list[Metric]] = {
        "executor": [*executor_metrics(GetStatusResponse, tally, fake(live={}, made=0), boxes)],
        "limiter": [*limiter_metrics(term)],
        "rollout": [*run, *service_metrics(EngineStatistics(), {"NAME": ToolStatistics()})],
        "training": [*trainer_metrics(step=0, steps=0, saved=0, figures={"NAME": 0})],
    }
    for name in ("executor", "limiter"):
        found[name] += security_metrics(f"fairbox_{name}", SecurityStatus())
    return page(_METRICS, {name.title(): metrics_table(name, each) for name, each in found.items()})


class Declared(NamedTuple):
    """Declaration in a .proto file, from a service to a value of an enum: its words, and the lines above them."""

    words: str
    comment: list[str]
    members: list[Any]

    @property
    def name(self) -> str:
        return re.sub(r"^rpc |[=(].*", "", self.words).split()[-1]

    @property
    def meaning(self) -> str:
        return text(" ".join(self.comment))


def declarations(source: str) -> list[Declared]:
    """Everything that a .proto file declares, in its order."""
    found: list[list[Declared]] = [[]]
    comment, words = list[str](), ""
    for line in map(str.strip, source.replace("{}", "{\n}").splitlines()):
        if line.startswith("//"):
            comment.append(line[2:].removeprefix(" "))
            continue
        words = f"{words} {line}".strip()
        if words.endswith(("}", "{", ";")):
            if words == "}":
                found.pop()
            else:
                found[-1].append(Declared(words[:-1].strip(), comment, []))
            if words.endswith("{"):
                found.append(found[-1][-1].members)
            comment, words = [], ""
    return found[0]


def rows_of(each: Declared, link: Callable[[str], str], note: str = "") -> Iterator[list[str]]:
    """A row for each member: call, request, answer; or field, type; or value, number; and what it means."""
    for member in each.members:
        if member.words.startswith("oneof"):
            yield from rows_of(member, link, f"one of `{member.name}`: ")
        elif member.words.startswith("rpc"):
            types = re.findall(r"\((stream )?(\w+)\)", member.words)
            yield [f"`{member.name}`", *(stream + link(kind) for stream, kind in types), member.meaning]
        elif each.words.startswith("enum"):
            yield [f"`{member.name}`", member.words.rpartition(" ")[2], member.meaning]
        else:
            label, kind = re.findall(r"^(repeated |optional )?(map<.*>|\S+)", member.words)[0]
            yield [f"`{member.name}`", note + label + link(kind), member.meaning]


def api() -> str:
    """docs/reference/api.md."""
    packages, sections = {}, {}
    for path in PROTOS:
        found = declarations((ROOT / "proto" / f"{path}.proto").read_text(encoding="utf-8"))
        syntax, package, *found = [each for each in found if not each.words.startswith("import")]
        packages[package.name] = "\n".join(syntax.comment), found
    known = {f"{package}.{each.name}" for package, (_, found) in packages.items() for each in found}
    heads = {"service": "call, request, answer, meaning", "message": "field, type, meaning"}

    def link(kind: str) -> str:
        short, full = kind.rpartition(".")[2], kind if kind in known else f"{package_name}.{kind}"
        return f"[`{short}`](#{anchor(full)})" if full in known else f"`{short}`"

    for package_name, (about, found) in packages.items():
        parts = [re.sub(r"(?m)^  (.*)$", r"```\n\1\n```", about)]
        for each in found:
            rows = list(rows_of(each, link))
            body = table(heads.get(each.words.split()[0], "value, number, meaning"), rows)
            parts.append(f"### {package_name}.{each.name}\n\n{each.meaning}\n\n{body if rows else 'It has no fields.'}")
        sections[package_name] = "\n\n".join(parts)
    return page(_API, sections)


def member_texts(kind: type[Any]) -> dict[str, str]:
    """Name of each member of an enum -> the text below it."""
    (defined,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(defined, ast.ClassDef)
    pairs = zip(defined.body, defined.body[1:], strict=False)
    return {
        ast.unparse(node.targets[0]): str(below.value.value)
        for node, below in pairs
        if isinstance(node, ast.Assign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }


def problem_rows() -> Iterator[list[str]]:
    """Each reason for which an executor gives no result: as the server says it, and what the client makes of it."""
    kinds = executor_service.errors.ExecutorError.__subclasses__()
    for kind in kinds:
        kinds += kind.__subclasses__()
        client: Any = next(each for each in kind.__mro__ if each.__module__ == executor_service.errors.__name__)
        reason = kind.reason or getattr(kind, "subject", "")
        meaning = text((inspect.getdoc(kind) or "").partition("\n\n")[0])
        yield [kind.code.name, reason and f"`{reason}`", f"`{client.__name__}`", client.cause.value, meaning]


def outcomes() -> str:
    """docs/reference/outcomes.md."""
    found = {}
    for heading, name in _ENUMS.items():
        kind = resolve_name(name)
        rows = [[f"`{kind[member].value}`", text(meaning)] for member, meaning in member_texts(kind).items()]
        if any("cause is" in meaning for _, meaning in rows):  # else the code could have caused it
            causes = [re.search(r"cause is ([^.,;:]+)", meaning) for _, meaning in rows]
            rows = [[row[0], cause[1] if cause else "POLICY", row[1]] for row, cause in zip(rows, causes, strict=True)]
        found[heading] = table("value, cause, meaning" if len(rows[0]) == 3 else "value, meaning", rows)
    found["Calls without a result"] = table("status, reason, error, cause, meaning", sorted(problem_rows()))
    codes = {"QUEUE_FULL": "RESOURCE_EXHAUSTED", "INVALID": "INVALID_ARGUMENT"}
    codes |= {reason.name: code.name for reason, code in _STATUS.items()}
    reasons = ([f"`{each.lower()}`", codes[each], text(what)] for each, what in member_texts(RejectReason).items())
    found["Acquires without a lease"] = table("reason, status of `AcquireToken`, meaning", reasons)
    return page(_OUTCOMES, found)


PAGES = {"settings": settings, "metrics": metrics, "api": api, "outcomes": outcomes}


if __name__ == "__main__":
    for name, write in PAGES.items():
        (FOLDER / f"{name}.md").write_text(write(), encoding="utf-8")
