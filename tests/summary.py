"""Summary that ends `make test`: each part's counts, the reasons for skipped tests, and the tests that failed.

Reads the JUnit files that pytest wrote, one a part: `python -m tests.summary FOLDER PART...`. Exits with 1 if a test
failed or a part left no file."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

WIDTH = 160
"""Characters of a reason that are shown."""


@dataclass
class Part:
    """The results of one run of pytest."""

    name: str
    ran: bool = False
    """True if pytest came to its end and wrote its results."""
    seconds: float = 0.0
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    """Names of the tests that failed or could not be set up."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Tests by the reason they were left out for."""
    expected: int = 0
    """Tests of gaps that are known (xfail)."""


def read(folder: Path, name: str) -> Part:
    """The results of part `name`, from `folder/name.xml`."""
    part = Part(name)
    try:
        root = ET.parse(folder / f"{name}.xml").getroot()
    except (OSError, ET.ParseError):
        return part
    part.ran = True
    part.seconds = sum(float(suite.get("time", "0")) for suite in root.iter("testsuite"))
    for case in root.iter("testcase"):
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            part.failed.append(f"{case.get('classname', '')}::{case.get('name', '')}")
        elif skip is None:
            part.passed += 1
        elif skip.get("type") == "pytest.xfail":
            part.expected += 1
        else:
            part.skipped[" ".join(skip.get("message", "").split())] += 1
    return part


def lines(parts: list[Part]) -> list[str]:
    """The table, the reasons, the failures, and one closing line."""
    written = [f"{'part':<10} {'passed':>7} {'failed':>7} {'skipped':>8} {'xfailed':>8} {'minutes':>8}"]
    for part in parts:
        counts = f"{part.passed:>7} {len(part.failed):>7} {part.skipped.total():>8} {part.expected:>8}"
        written.append(
            f"{part.name:<10} {counts} {part.seconds / 60:>8.1f}" if part.ran else f"{part.name:<10} no result"
        )
    skipped = sum((part.skipped for part in parts), Counter[str]())
    if skipped:
        written += ["", "skipped, and for want of what:"]
        written += [f"{count:>5}  {reason[:WIDTH]}" for reason, count in skipped.most_common()]
    failed = [f"FAILED {name} ({part.name})" for part in parts for name in part.failed]
    failed += [f"FAILED {part.name}: pytest did not come to its end" for part in parts if not part.ran]
    passed = sum(part.passed for part in parts)
    return [*written, "", *failed, f"{passed} passed, {len(failed)} failed, {skipped.total()} skipped"]


def main(words: list[str]) -> int:
    """Prints the summary."""
    parts = [read(Path(words[0]), name) for name in words[1:]]
    sys.stdout.write("\n".join(lines(parts)) + "\n")
    return int(any(part.failed or not part.ran for part in parts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
