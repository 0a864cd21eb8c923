"""Grading of candidates: cases and verdicts, plain values, comparison, and the rules for verdicts.

Pure, and shared by server and client. What runs is in `server.verify`, `sandbox.inside.candidate` and
`sandbox.inside.checker`.
"""

from executor_service.grading.model import (
    AssertCase,
    Case,
    CaseResult,
    Comparison,
    FunctionCase,
    PytestCase,
    StdioCase,
    Verdict,
    VerifyResult,
    VerifyStyle,
)

__all__ = [
    "AssertCase",
    "Case",
    "CaseResult",
    "Comparison",
    "FunctionCase",
    "PytestCase",
    "StdioCase",
    "Verdict",
    "VerifyResult",
    "VerifyStyle",
]
