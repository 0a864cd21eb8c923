"""The log: one JSON object a line, facts of the task, uncaught exceptions, sentences that end a program."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from opentelemetry.trace import NoOpTracer, use_span

from fairbox.errors import ConfigError
from fairbox.telemetry import logs, tracing
from fairbox.telemetry.program import TelemetrySettings

PROGRAM = textwrap.dedent(
    """
    import logging, sys, threading, warnings
    from fairbox.telemetry import logs
    from fairbox.errors import FairboxError
    from fairbox.net.serving import run_service
    logs.configure("json", "info", service="program")
    async def main(stop):
        if sys.argv[1] == "sentence":
            raise FairboxError("the reason is this")
        if sys.argv[1] == "defect":
            raise RuntimeError("two\\nlines")
        if sys.argv[1] == "thread":
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
        if sys.argv[1] == "warning":
            warnings.warn("careful")
        logging.getLogger("x").debug("not told")
    sys.exit(run_service(main, name="program"))
    """
)


def records(what: str) -> list[dict[str, Any]]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, what], capture_output=True, text=True, timeout=60)
    return [json.loads(line) for line in done.stderr.splitlines()]


@pytest.mark.parametrize(
    ("what", "level", "message"),
    [
        ("sentence", "critical", "the reason is this"),
        ("defect", "critical", "uncaught RuntimeError"),
        ("thread", "critical", "uncaught ZeroDivisionError"),
        ("warning", "warning", "UserWarning: careful"),
    ],
)
def test_whatever_goes_wrong_is_one_object_on_one_line(what: str, level: str, message: str) -> None:
    (record,) = records(what)
    assert (record["level"], record["service"]) == (level, "program")
    assert message in record["message"]
    assert ("Traceback" in record.get("error", "")) is (what in ("defect", "thread"))


def told(formatter: logging.Formatter, message: str, *args: object) -> str:
    return formatter.format(logging.LogRecord("a.b", logging.INFO, "file", 1, message, args, None))


async def test_facts_belong_to_a_task_and_to_those_that_it_starts() -> None:
    formatter = logs.JsonFormatter("executor")

    async def below() -> dict[str, Any]:
        with logs.bound(lease="code/1.2", tenant=""):
            found: dict[str, Any] = json.loads(told(formatter, "run %d", 7))
        return found

    with logs.bound(request_id="r1"):
        record = await asyncio.create_task(below())
        beside = json.loads(told(formatter, "x"))
    assert record["message"] == "run 7"
    assert (record["request_id"], record["lease"]) == ("r1", "code/1.2")
    assert "tenant" not in record
    assert "lease" not in beside
    assert "request_id" not in json.loads(told(formatter, "x"))
    assert list(record)[:5] == ["time", "level", "logger", "message", "service"]


def test_text_has_the_facts_in_brackets() -> None:
    with logs.bound(request_id="r1", trajectory="t"):
        assert told(logs.TextFormatter(), "hello").endswith(" a.b INFO hello [request_id=r1 trajectory=t]")
    assert told(logs.TextFormatter(), "hello").endswith(" a.b INFO hello")


@pytest.mark.parametrize("text", ["a\n2026 root ERROR forged", "a\r\x1b[2J", "a\u2028b", "a\ud800"])
def test_a_fact_is_never_a_line_of_its_own(text: str) -> None:
    with logs.bound(request_id=text, tenant="größe"):
        line = told(logs.TextFormatter(), "hello")
    assert line.isprintable()
    assert line.endswith(" tenant=größe]")


def test_long_messages_are_cut_and_say_so() -> None:
    record = json.loads(told(logs.JsonFormatter(), "x" * 100_000))
    assert len(record["message"]) < 9_000
    assert record["message"].endswith("... (100000 characters)")


def test_traces_are_named_only_while_tracing_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with use_span(tracing.parse(f"00-{'a' * 32}-{'b' * 16}-01")):
        assert "trace_id" not in json.loads(told(logs.JsonFormatter(), "x"))
        monkeypatch.setattr(tracing, "_tracer", NoOpTracer())
        record = json.loads(told(logs.JsonFormatter(), "x"))
        assert (record["trace_id"], record["span_id"]) == ("a" * 32, "b" * 16)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"log_format": "xml"}, "log_format is 'xml', must be one of text, json"),
        ({"log_level": "loud"}, "log_level is 'loud', must be one of debug, info, warning, error"),
        ({"otlp_endpoint": "host:4318"}, "otlp_endpoint is 'host:4318', must be like http://HOST:4318"),
        ({"trace_ratio": 1.5}, "trace_ratio is 1.5, must be from 0 to 1"),
        ({"trace_ratio": float("nan")}, "trace_ratio is nan, must be from 0 to 1"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        TelemetrySettings(**settings).validate_telemetry()


@pytest.mark.parametrize("service", ["limiter", "executor_service"])
def test_what_is_wrong_with_the_settings_is_json_where_they_ask_for_it(service: str) -> None:
    words = [sys.executable, "-m", service, "log_format=json", "listen=nowhere"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    (record,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert "listen is 'nowhere'" in record["message"]
