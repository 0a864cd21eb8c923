"""Execution tier: runs untrusted programs in isolation and says what became of them.

This is its public surface for clients; importing it costs gRPC and nothing else. The server is
`python -m executor_service`.
"""

from executor_service.client import ExecutorClient
from executor_service.errors import (
    ExecutorError,
    ExecutorUnavailable,
    InvalidRequest,
    LeaseRefused,
    Overloaded,
    RunLost,
)
from executor_service.grading import (
    AssertCase,
    CaseResult,
    Comparison,
    FunctionCase,
    PytestCase,
    StdioCase,
    Verdict,
    VerifyResult,
)
from executor_service.model import (
    Cause,
    Compilation,
    ExecutionResult,
    FileStatus,
    InputFile,
    IsolationLevel,
    Limits,
    Outcome,
    Output,
    OutputFile,
)

__all__ = [
    "AssertCase",
    "CaseResult",
    "Cause",
    "Comparison",
    "Compilation",
    "ExecutionResult",
    "ExecutorClient",
    "ExecutorError",
    "ExecutorUnavailable",
    "FileStatus",
    "FunctionCase",
    "InputFile",
    "InvalidRequest",
    "IsolationLevel",
    "LeaseRefused",
    "Limits",
    "Outcome",
    "Output",
    "OutputFile",
    "Overloaded",
    "PytestCase",
    "RunLost",
    "StdioCase",
    "Verdict",
    "VerifyResult",
]
