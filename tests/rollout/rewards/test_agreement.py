"""Agreement of tests: shares by group, and the tests that may be wrong."""

from __future__ import annotations

from rollout.rewards.agreement import CaseAgreement, is_case


def test_parts_that_are_about_a_test() -> None:
    assert [is_case(name) for name in ("case/0", "code_tests/case/x", "code_tests/cases", "suitcase/1", "passed")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_shares_are_means_over_groups() -> None:
    tests = CaseAgreement()
    assert not tests.flat()
    assert not tests.suspects()
    for answers in ((1, 1, 0, 0), (1, 0, 0, 0)):
        tests.add("one", {f"case/{index}": float(passed) for index, passed in enumerate(answers)} | {"passed": 0.5})
    tests.add("two", {"case/0": 0.0, "case/1": 0.0})
    assert tests.flat() == {
        "tests/separating": (0.25 + 0) / 2,
        "tests/all_pass": (0.25 + 0) / 2,
        "tests/none_passes": (0.5 + 1) / 2,
        "tests/suspect": (0.5 + 0) / 2,
    }
    assert tests.suspects() == {"one": ["case/2", "case/3"]}
