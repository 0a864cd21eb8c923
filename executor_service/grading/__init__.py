"""Grading of candidates: cases and verdicts, plain values, comparison, and the rules for verdicts.

Pure, and shared by server and client. What runs is in `verification`, `guest.serve.candidate` and
`guest.serve.checker`.
"""

from executor_service.grading.model import (
    AssertCase,
    Case,
    CaseResult,
    Checker,
    CheckerConvention,
    Comparison,
    FunctionCase,
    PytestCase,
    StdioCase,
    Tolerance,
    Verdict,
    VerifyResult,
    VerifyStyle,
)

__all__ = [
    "AssertCase",
    "Case",
    "CaseResult",
    "Checker",
    "CheckerConvention",
    "Comparison",
    "FunctionCase",
    "PytestCase",
    "StdioCase",
    "Tolerance",
    "Verdict",
    "VerifyResult",
    "VerifyStyle",
]
