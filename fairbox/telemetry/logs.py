"""Writes a program's log, in one place: lines for people, or one JSON object a line.

Every record of a task, and of tasks that it starts, has the facts that are bound (`bound(request_id=...)`).
Invariants: a record is one line in JSON, tracebacks and uncaught exceptions included; nobody logs code, what programs
printed, or tokens. The C core of gRPC writes to stderr by itself and knows none of this: GRPC_VERBOSITY=NONE quiets it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from fairbox.telemetry import tracing

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
_TEXT = "%(asctime)s %(name)s %(levelname)s %(message)s"
_LONGEST = 8_192
"""Characters of a message; whoever reads logs cuts longer ones itself, and then in the middle of the object."""
_LONGEST_TRACEBACK = 16_384
_FACTS: ContextVar[Mapping[str, str]] = ContextVar("facts of the log", default={})  # noqa: B039 - never written to
_in_json = False
"""True if this process writes JSON."""


@contextlib.contextmanager
def bound(**facts: str) -> Iterator[None]:
    """Tells the facts that are not empty with every record of the block, beside those of blocks around it."""
    before = _FACTS.get()
    bind(**facts)
    try:
        yield
    finally:
        _FACTS.set(before)


def bind(**facts: str) -> None:
    """The same for the rest of this task, or of the block around it: what comes is the end of a call that failed."""
    _FACTS.set({**_FACTS.get(), **{name: fact for name, fact in facts.items() if fact}})


class JsonFormatter(logging.Formatter):
    """`{"time", "level", "logger", "message", "service"}`, then the facts that are bound, `trace_id` and `span_id`
    where there is a trace, and `error` with the traceback where there is one."""

    def __init__(self, service: str = "") -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        told: dict[str, str] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage(), _LONGEST),
        }
        if self._service:
            told["service"] = self._service
        told |= {name: fact for name, fact in _FACTS.get().items() if name not in told}
        if (ids := tracing.current_ids()) is not None:
            told["trace_id"], told["span_id"] = ids
        if record.exc_info and record.exc_info[0] is not None:
            told["error"] = _cut(self.formatException(record.exc_info), _LONGEST_TRACEBACK)
        elif record.stack_info:
            told["error"] = _cut(record.stack_info, _LONGEST_TRACEBACK)
        return json.dumps(told, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """Time, logger, level, message, and the facts that are bound, in brackets. Clients choose some of them: what could
    end a line, or move a cursor, is escaped."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line, without a traceback."""
        line = super().formatMessage(record)
        facts = _FACTS.get()
        return f"{line} [{' '.join(f'{name}={_visible(fact)}' for name, fact in facts.items())}]" if facts else line


def configure(log_format: str = "text", log_level: str = "info", *, service: str = "") -> None:
    """Sends the log of this process to stderr. The last call wins. `log_format` and `log_level` are of FORMATS and
    LEVELS. With JSON, uncaught exceptions and warnings become records too."""
    global _in_json
    _in_json = log_format == "json"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service) if _in_json else TextFormatter())
    logging.basicConfig(level=log_level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(_in_json)
    sys.excepthook = _uncaught if _in_json else sys.__excepthook__
    threading.excepthook = _uncaught_in_thread if _in_json else threading.__excepthook__


def say(program: str, sentence: str) -> None:
    """A sentence for whoever started the program, such as why it can't go on: to stderr, as the log is written."""
    if _in_json:
        logging.getLogger(program).critical("%s", sentence)
    else:
        print(f"{program}: {sentence}", file=sys.stderr)  # noqa: T201


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger("fairbox").critical("uncaught %s", kind.__name__, exc_info=(kind, error, trace))


def _uncaught_in_thread(args: Any) -> None:
    if args.exc_value is not None:
        _uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def _visible(text: str) -> str:
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"
