"""Execution tier: runs untrusted programs in isolation and says what became of them.

This is its public surface for clients, loaded name by name: a client costs gRPC, the facts cost nothing. The server is
`python -m executor_service`.
"""

from typing import TYPE_CHECKING

from fairbox.surface import lazily

if TYPE_CHECKING:
    from executor_service.client.blocking import BlockingSession, Executor
    from executor_service.client.client import ExecutorClient
    from executor_service.client.program import Program
    from executor_service.client.sandbox import SandboxLost, ShellSandbox
    from executor_service.client.sessions import Session
    from executor_service.client.streams import OutputChunk
    from executor_service.errors import (
        CannotBranch,
        CannotSnapshot,
        ExecutorError,
        ExecutorUnavailable,
        InvalidRequest,
        LeaseRefused,
        NotAllowed,
        NotFound,
        Overloaded,
        RunLost,
        SessionBusy,
        SessionNotFound,
        WorkspaceTooLarge,
    )
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
    )
    from executor_service.model import (
        Cause,
        Compilation,
        Display,
        ExecutionResult,
        FileStatus,
        InputFile,
        IsolationLevel,
        Limits,
        Outcome,
        Output,
        OutputFile,
        PreparedImage,
        SessionInfo,
        Snapshot,
        Workspace,
    )
    from executor_service.sandbox.report import Stream

__all__ = [
    "AssertCase",
    "BlockingSession",
    "CannotBranch",
    "CannotSnapshot",
    "Case",
    "CaseResult",
    "Cause",
    "Checker",
    "CheckerConvention",
    "Comparison",
    "Compilation",
    "Display",
    "ExecutionResult",
    "Executor",
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
    "NotAllowed",
    "NotFound",
    "Outcome",
    "Output",
    "OutputChunk",
    "OutputFile",
    "Overloaded",
    "PreparedImage",
    "Program",
    "PytestCase",
    "RunLost",
    "SandboxLost",
    "Session",
    "SessionBusy",
    "SessionInfo",
    "SessionNotFound",
    "ShellSandbox",
    "Snapshot",
    "StdioCase",
    "Stream",
    "Tolerance",
    "Verdict",
    "VerifyResult",
    "Workspace",
    "WorkspaceTooLarge",
]

__getattr__ = lazily(
    __name__,
    {
        "client.blocking": "BlockingSession Executor",
        "client.client": "ExecutorClient",
        "client.program": "Program",
        "client.sandbox": "SandboxLost ShellSandbox",
        "client.sessions": "Session",
        "client.streams": "OutputChunk",
        "errors": (
            "CannotBranch CannotSnapshot ExecutorError ExecutorUnavailable InvalidRequest LeaseRefused NotAllowed "
            "NotFound Overloaded RunLost SessionBusy SessionNotFound WorkspaceTooLarge"
        ),
        "grading.model": (
            "AssertCase Case CaseResult Checker CheckerConvention Comparison FunctionCase PytestCase StdioCase "
            "Tolerance Verdict VerifyResult"
        ),
        "model": (
            "Cause Compilation Display ExecutionResult FileStatus InputFile IsolationLevel Limits Outcome Output "
            "OutputFile PreparedImage SessionInfo Snapshot Workspace"
        ),
        "sandbox.report": "Stream",
    },
)
