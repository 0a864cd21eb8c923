"""Writes a run as a page: `report.html`, and beside it a folder of parts if its bodies are larger than `MAX_INLINE`.

The page holds its program, its style, the figures and an index of all rows; bodies are chunks that a browser unpacks
when a row is opened. Invariants: nothing of a dump is markup or program in the page, because it is base64 there; the
one program that may run is the one whose hash the page's policy names, and what that loads from its folder; the dump is
read once, and memory holds a block of rows and some numbers of each; a page appears whole or not at all.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from fairbox.errors import ConfigError, FairboxError
from rollout.dump import trainer_file
from rollout.metrics import PHASES
from rollout.page.bodies import finite, finite_json, text_body, token_body
from rollout.page.figures import DumpFigures, RunFindings
from rollout.page.parts import BodyPlace, PartWriter, pack
from rollout.page.trained import TrainerLines
from rollout.page.vocabulary import vocabulary_of
from rollout.report import SUMMARY
from rollout.viewer.rows.index import TRAINING, DumpFolder, read_lines
from rollout.viewer.rows.summary import FIELDS, RowSummary, facts_of, parse_line

MAX_INLINE = 48 << 20
"""Bytes of bodies that the page itself holds; a browser reads more only when it is asked for, from the folder."""
_BLOCK = 1000
"""Rows of one chunk of the index."""
_MAX_SPANS = 300
"""Turns of a row in the timeline; later ones are left out."""
_MOST_IDS = 1 << 21
"""No tokenizer has as many: ids beyond are of a dump that is no one's."""
_MAX_SMALL_FILE = 64 << 20
"""Most bytes of a run's figures that are read."""
_PROGRAMS = ("data.js", "filter.js", "charts.js", "lists.js", "run.js", "row.js", "tokens.js", "main.js")
"""Files of the page's program, in their order."""
_ROLLOUTS = "rollouts"
"""Folder in which `fairbox train` keeps its steps, below its own."""
_COLUMNS = {name: each for name, each in FIELDS.items() if each.kind != "read"}


@dataclass
class _Block:
    """Rows of the index that are not written yet, column by column."""

    columns: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in _COLUMNS})
    extras: list[Mapping[str, float | str]] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    started: list[float | None] = field(default_factory=list)
    spans: list[list[list[float]]] = field(default_factory=list)
    phases: list[list[float]] = field(default_factory=list)
    bodies: list[tuple[BodyPlace, BodyPlace] | None] = field(default_factory=list)

    def text(self, step: int) -> bytes:
        """JSON of the block."""
        places = [None if each is None else each[0].fact() + each[1].fact() for each in self.bodies]
        facts = {"step": step, "columns": self.columns, "extras": self.extras, "prompts": self.prompts}
        facts |= {"started": self.started, "spans": self.spans, "phases": self.phases, "places": places}
        return finite_json(facts)


class _Reader:
    """Reads steps into chunks, an index and figures."""

    def __init__(self, parts: PartWriter) -> None:
        self.index: list[bytes] = []
        self.steps: list[dict[str, Any]] = []
        self.total, self.findings = DumpFigures(), RunFindings()
        self.models: dict[str, None] = {}
        self.ids: set[int] = set()
        self._parts = parts
        self._rows = 0
        self._prompts: dict[int, int] = {}

    def read(self, step: Path, trainer: Path) -> None:
        """One step, and its logprobs of a trainer. Raises FairboxError if its file can't be read."""
        figures, block, unfinished = DumpFigures(), _Block(), False
        try:
            with step.open("rb") as file, TrainerLines(trainer) as trained:
                for line in read_lines(file):
                    record = f"has {line.size} bytes, too many" if line.data is None else parse_line(line.data)
                    if not line.ended and isinstance(record, str):
                        unfinished = True
                        break
                    if line.data is None or line.data.strip():
                        row = facts_of(record, step, line=line.number, offset=line.offset, size=line.size)
                        if isinstance(record, dict):
                            trained.join(record)
                        self._add(block, figures, row, {} if isinstance(record, str) else record)
                        if len(block.bodies) == _BLOCK:
                            self._flush(block)
                            block = _Block()
        except OSError as error:
            raise FairboxError(f"{step}: {error.strerror or error}") from None
        self._flush(block)
        self.steps.append({"label": step.stem, "unfinished": unfinished, "figures": figures.facts()})

    def _add(self, block: _Block, figures: DumpFigures, row: RowSummary, record: Mapping[str, Any]) -> None:
        for each in (figures, self.total):
            each.add(row, record)
        for name, column in _COLUMNS.items():
            block.columns[name].append(column.get(row))
        block.extras.append(row.extras)
        block.prompts.append(self._prompts.setdefault(row.prompt_key, len(self._prompts)) if row.prompt_key else -1)
        block.started.append(finite(record.get("started_at")))
        block.spans.append(_spans(record.get("turn_records")))
        timings = record.get("timings")
        block.phases.append([_seconds(timings, key) for key in PHASES.values()] if isinstance(timings, dict) else [])
        if row.problem:
            block.bodies.append(None)
        else:
            self.findings.add(self._rows, row, record)
            self._note_tokens(record)
            texts = self._parts.add("texts", text_body(record, row.size))
            block.bodies.append((texts, self._parts.add("tokens", token_body(record))))
        self._rows += 1

    def _note_tokens(self, record: Mapping[str, Any]) -> None:
        if len(self.models) < 16 and isinstance(record.get("model"), str):
            self.models[record["model"]] = None
        earlier = record.get("earlier")
        for part in [record, *(earlier if isinstance(earlier, list) else ())]:
            for key in ("prompt_ids", "response_ids") if isinstance(part, dict) else ():
                if len(self.ids) > _MOST_IDS:
                    return
                try:
                    self.ids.update(part.get(key) or ())
                except TypeError:  # no list, or lists in it: the body says so
                    continue

    def _flush(self, block: _Block) -> None:
        self._parts.drain()
        if block.bodies:
            self.index.append(pack(block.text(len(self.steps))))


def _seconds(values: Mapping[str, Any], key: str) -> float:
    return round(finite(values.get(key)) or 0.0, 4)


def _spans(turns: Any) -> list[list[float]]:
    """Each turn's times: the engine was asked, the turn was there, its calls were answered (0: none were)."""
    known = [each for each in turns if isinstance(each, dict)] if isinstance(turns, list) else []
    return [[_seconds(each, key) for key in ("began_s", "sampled_s", "answered_s")] for each in known[:_MAX_SPANS]]


def files_of(path: Path) -> list[Path]:
    """Files that the page of the run or dump at `path` is made of; some may not exist."""
    folder = _dump_in(path)
    home = _home(folder)
    trained = [trainer_file(home, step.stem) for step in folder.steps]
    return [*folder.steps, *trained, home / TRAINING, home / SUMMARY]


def write_page(path: Path, to: Path | None = None, tokenizer: str | None = None, *, live: str = "") -> Path:
    """Writes the page of the run or dump at `path`; the page's path, which is `report.html` beside the run unless `to`
    names another. Raises ConfigError if there are no steps, and FairboxError if a file can't be read or written.

    `live`: the page will be served, and asks its server's /stamp from time to time; another answer means that there is
    more.
    """
    folder = _dump_in(path)
    if not folder.steps:
        raise ConfigError(f"path is {str(folder.path)!r}, which has no steps yet")
    home = _home(folder)
    to = home / "report.html" if to is None else to
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        unfinished = to.with_name(f".{to.stem}.{os.getpid()}")
        unfinished.mkdir()
        try:
            with PartWriter(unfinished) as parts:
                reader = _Reader(parts)
                for step in folder.steps:
                    reader.read(step, trainer_file(home, step.stem))
                facts = _facts(home, reader, tokenizer) | {"live": live}
                _write(to, unfinished, parts, reader, facts)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise FairboxError(f"{to}: can't be written: {error.strerror or error}") from None
    return to


def _dump_in(path: Path) -> DumpFolder:
    steps = path / _ROLLOUTS  # of a training run, whose evaluations may be newer
    return DumpFolder(steps if steps.is_dir() and (path / TRAINING).is_file() else path)


def _write(to: Path, unfinished: Path, parts: PartWriter, reader: _Reader, facts: dict[str, Any]) -> None:
    inside = parts.size <= MAX_INLINE
    beside = to.with_name(f"{to.stem}-parts")
    facts |= {"parts": None if inside else beside.name}
    page = unfinished / "page.html"
    title = f"{to.parent.resolve().name}: fairbox report".encode("utf-8", "replace").decode()
    parts.close()
    texts = parts.texts() if inside else None
    with page.open("w", encoding="utf-8", newline="") as file:
        file.writelines(_rendered(title, facts, reader.index, texts))
    if beside.is_dir():
        if foreign := [each.name for each in beside.iterdir() if each.suffix != ".js" or not each.stem.isdigit()]:
            raise FairboxError(f"{beside}: holds {foreign[0]}, which is no part of a page; set to to another file")
        shutil.rmtree(beside)
    if not inside:
        page = page.rename(to.with_name(unfinished.name + ".html"))
        unfinished.rename(beside)
    page.replace(to)


def _rendered(title: str, facts: Mapping[str, Any], index: list[bytes], texts: Iterator[str] | None) -> Iterator[str]:
    """The page, piece by piece. `texts` are those of its parts; None: it loads them."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    files = {name: _file(name) for name in ("page.html", "page.css", *_PROGRAMS)}
    program = '"use strict";\n(() => {\n' + "".join(files[name] for name in _PROGRAMS) + "})();\n"
    return environment.from_string(files["page.html"]).generate(
        title=title,
        style=files["page.css"],
        style_hash=_hash(files["page.css"]),
        program=program,
        # A program that ours adds may run if there are parts to load; any other may not, in no case.
        program_hash=_hash(program) + ("" if texts is not None else " 'strict-dynamic'"),
        live=bool(facts["live"]),
        facts=pack(finite_json(facts)).decode("ascii"),
        index=(each.decode("ascii") for each in index),
        parts=texts or (),
    )


def _facts(home: Path, reader: _Reader, tokenizer: str | None) -> dict[str, Any]:
    training = _lines(home / TRAINING)
    summary = _object(home / SUMMARY)
    names = [tokenizer] if tokenizer else [*filter(None, reader.models), *map(str, _trained(home))]
    try:
        known = vocabulary_of(names, reader.ids)
        vocabulary: dict[str, Any] = {"ids": list(known), "bytes": list(known.values()), "problem": ""}
    except FairboxError as error:
        vocabulary = {"ids": [], "bytes": [], "problem": str(error)}
    fields = [
        {"name": name, "title": each.title, "kind": each.kind, "help": each.help, "width": each.width}
        for name, each in FIELDS.items()
    ]
    return {
        "figures": reader.total.facts(),
        "steps": reader.steps,
        "findings": reader.findings.facts(),
        "summary": summary,
        "training": training,
        "unfinished": _unfinished(home, summary, training, reader),
        "fields": fields,
        "vocabulary": vocabulary,
        "phases": list(PHASES),
    }


def _unfinished(home: Path, summary: Any, training: list[Any], reader: _Reader) -> str:
    """Why the run is not whole; empty if it is, or if nobody can know."""
    if broken := [step["label"] for step in reader.steps if step["unfinished"]]:
        return f"The last line of step {broken[-1]} is not whole: the run was cut off, or still goes on."
    if training:
        return "" if (home / "model").is_dir() else "The run has no trained model: it was cut off, or still goes on."
    if summary is None:
        return f"The run has no {SUMMARY}: it was cut off, or still goes on, or another program wrote it."
    if summary.get("complete") is False:
        return "The run was interrupted: what had ended is here."
    return ""


def _home(folder: DumpFolder) -> Path:
    """The folder of the run: of a training run the one above its steps. Its evaluations are a run for themselves."""
    path = folder.path if folder.path.is_dir() else folder.path.parent
    above = path.resolve().parent
    return above if path.resolve().name == _ROLLOUTS and (above / TRAINING).is_file() else path


def _trained(home: Path) -> list[Path]:
    """The tokenizer of a training run."""
    return [path for path in (home / "model",) if (path / "tokenizer.json").is_file()]


def _object(path: Path) -> dict[str, Any] | None:
    found = parse_line(_small(path))
    return found if isinstance(found, dict) else None


def _lines(path: Path) -> list[dict[str, Any]]:
    found = [parse_line(line) for line in _small(path).splitlines()]
    return [each for each in found if isinstance(each, dict)]


def _small(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_SMALL_FILE)
    except OSError:
        return b""


def _file(name: str) -> str:
    return (resources.files("rollout.page") / "static" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
