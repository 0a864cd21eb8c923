"""From grades to findings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollout.env_check.cheats import Cheat
from rollout.env_check.findings import FindingKind, Seen, report_of, wilson
from rollout.envs.checker import Grade

RIGHT, WRONG = Grade(1.0), Grade(0.0)
SOUND = Seen("task", test_s=60.0, nothing=[WRONG, WRONG], solution=[RIGHT, RIGHT])
CHEAT = Cheat("conftest", "echo", "run them elsewhere")


def kinds(seen: Seen) -> list[FindingKind]:
    return [each.kind for each in report_of(seen).findings]


def test_a_sound_task_has_no_findings() -> None:
    report = report_of(replace(SOUND, cheats=[(CHEAT, WRONG)]))
    assert report.sound
    assert str(report) == "task: solution 1, nothing 0"
    assert str(report_of(replace(SOUND, solution=[]))) == "task: no solution, nothing 0"


NOT_FOUND = Grade(0.0, "a.sh: line 3: jq: command not found\nModuleNotFoundError: No module named 'yaml'")
NO_HOST = Grade(0.0, "E: Temporary failure resolving 'deb.debian.org'")


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        (replace(SOUND, solution=[WRONG, WRONG]), [FindingKind.SOLUTION_FAILS]),
        (replace(SOUND, solution=[Grade(0.5)] * 2), [FindingKind.SOLUTION_FAILS]),
        (replace(SOUND, solution=[NO_HOST] * 2), [FindingKind.SOLUTION_FAILS, FindingKind.NEEDS_NETWORK]),
        (replace(SOUND, solution=[NOT_FOUND] * 2), [FindingKind.SOLUTION_FAILS, *[FindingKind.LACKS_PROGRAM] * 2]),
        (replace(SOUND, nothing=[RIGHT, RIGHT]), [FindingKind.NOTHING_PASSES]),
        (replace(SOUND, nothing=[Grade(-1.0)] * 2), []),
        (replace(SOUND, solution=[RIGHT, WRONG]), [FindingKind.FLAKY]),
        (replace(SOUND, nothing=[RIGHT, WRONG]), [FindingKind.FLAKY]),
        (replace(SOUND, solution=[replace(RIGHT, believed=False)]), [FindingKind.UNBELIEVABLE]),
        (replace(SOUND, cheats=[(CHEAT, Grade(0.5))]), [FindingKind.CHEATED]),
        (replace(SOUND, in_reach=["/opt/a is tests/a"]), [FindingKind.TESTS_IN_REACH]),
        (replace(SOUND, later_commits=3), [FindingKind.LATER_HISTORY]),
        (replace(SOUND, solution=[replace(RIGHT, test_s=31.0)]), [FindingKind.SLOW]),
        (replace(SOUND, problem="there is no image"), [FindingKind.NOT_CHECKED]),
    ],
)
def test_each_defect_is_named(seen: Seen, found: list[FindingKind]) -> None:
    assert kinds(seen) == found
    report = report_of(seen)
    assert report.sound is (not found)
    tree = report.tree()
    assert [each["kind"] for each in tree["findings"]] == found
    assert all(each["advice"] for each in tree["findings"] if each["kind"] != "not_checked")


def test_what_is_flaky_has_a_rate() -> None:
    seen = replace(SOUND, solution=[RIGHT] * 9 + [Grade(0.0, failed=("test_a",))])
    (finding,) = report_of(seen).findings
    assert finding.what == "solution differs in 1 of 10 runs (2% to 40%); failed: test_a"
    assert [round(each, 3) for each in (*wilson(0, 10), *wilson(5, 10))] == [0.0, 0.278, 0.237, 0.763]
