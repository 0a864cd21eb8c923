"""docs/how-to/operations.md against the code: the words of faults, the headings that alerts name, the settings."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from executor_service.config import ExecutorConfig
from fairbox.settings import leaves
from fairbox.telemetry.program import TelemetrySettings
from limiter.config import LimiterConfig
from rollout.config import RolloutConfig

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "how-to" / "operations.md").read_text(encoding="utf-8")
MONITORING = ROOT / "deploy" / "monitoring"
SHORTEST = 6
"""Characters of a piece of a message that are looked for: shorter ones are everywhere."""


def code() -> str:
    """All of it, with strings that go over several lines put together."""
    texts = [
        path.read_text(encoding="utf-8")
        for tier in ("fairbox", "limiter", "executor_service", "rollout")
        for path in sorted((ROOT / tier).rglob("*.py"))
    ]
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(texts))


def test_the_words_of_every_fault_are_those_of_the_code() -> None:
    source = code()
    blocks = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    messages = [line for block in blocks for line in block.splitlines()]
    assert len(messages) > 25
    missing = []
    for message in messages:
        pieces = [piece.strip() for piece in message.split("...")]
        found = [piece in source for piece in pieces if len(piece) >= SHORTEST]
        if not found or not all(found):
            missing.append(message)
    # `run ...: ...` is too short to be looked for as it stands.
    assert missing == ["run ...: ..."]
    assert '_log.error("run %d: %s"' in source


def test_every_alert_names_a_heading_that_is_there() -> None:
    headings = {heading.lower().replace(" ", "-").replace(",", "") for heading in re.findall(r"^#+ (.+)$", PAGE, re.M)}
    rules = [
        rule for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
    ]
    assert len(rules) > 15
    for rule in rules:
        page, _, heading = rule["annotations"]["runbook"].partition("#")
        assert page == "docs/how-to/operations.md"
        assert heading in headings, rule["alert"]
        assert rule["for"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_the_settings_are_listed_and_the_same_everywhere() -> None:
    names = [leaf.path for leaf in leaves(TelemetrySettings)]
    table = PAGE.partition("## Settings")[2].partition("## Log")[0]
    for name in (*names, "metrics_listen", "metrics_tenants"):
        assert f"| `{name}` |" in table
    for config in (LimiterConfig, ExecutorConfig, RolloutConfig):
        assert {*names, "metrics_listen"} <= {leaf.path for leaf in leaves(config)}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
@pytest.mark.parametrize(
    "words",
    [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"], ["check", "config", "prometheus.yaml"]],
)
def test_promtool_accepts_what_is_shipped(words: list[str]) -> None:
    done = subprocess.run(["promtool", *words], cwd=MONITORING, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
