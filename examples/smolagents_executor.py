"""The code of a smolagents agent, run in a session of fairbox in place of this process.

    with FairboxExecutor() as executor:
        CodeAgent(tools=[], model=model, executor=executor).run("What is the 118th Fibonacci number?")

Invariants: what the agent's own code can cause is an error that the agent is told; what it can't ends the agent's run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import RemotePythonExecutor

from executor_service import Cause, ExecutionResult, Executor, ExecutorError, SessionNotFound

_ANSWER = re.compile(r"FinalAnswerException: (safe:.*)\s*\Z", re.DOTALL)
"""The end of a traceback: smolagents has its tool `final_answer` raise the answer."""
_WITHOUT_PILLOW = """
import importlib.util, sys, types
if importlib.util.find_spec("PIL") is None:
    sys.modules["PIL"] = types.ModuleType("PIL")
"""
"""The tool `final_answer` imports it before all else, and then does without."""


class SandboxFailed(BaseException):
    """The service failed, and not the agent. No Exception, because smolagents tells the model of those, and goes on."""


class FairboxExecutor(RemotePythonExecutor):  # type: ignore[misc]  # untyped where smolagents is not installed
    """`more` as for `ExecutorClient.create_session`: limits, an owner, a workspace. Raises SandboxFailed."""

    def __init__(self, target: str = "127.0.0.1:50051", *, timeout: float = 30.0, **more: Any) -> None:
        super().__init__([], AgentLogger(level=LogLevel.ERROR))
        self._options = more
        self._timeout = timeout
        self._prepared: list[str] = []
        """Code that has brought tools and variables: a new interpreter needs it again."""
        self._brings = False
        self._stack = ExitStack()
        try:
            self._box = self._stack.enter_context(Executor(target))
            self._session = self._stack.enter_context(self._box.session(**more))
        except ExecutorError as error:
            self._stack.close()
            raise SandboxFailed(str(error)) from error

    def __enter__(self) -> FairboxExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Ends the session; smolagents calls it too. Idempotent."""
        with suppress(ExecutorError):  # a session that can't be deleted goes with its server, or when it has been idle
            self._stack.close()

    def send_tools(self, tools: dict[str, Any]) -> None:
        with self._preparing():
            super().send_tools(tools)

    def send_variables(self, variables: dict[str, Any]) -> None:
        with self._preparing():
            super().send_variables(variables)

    def install_packages(self, additional_imports: Iterable[str]) -> list[str]:
        """Nothing is installed, as a sandbox has no network: tools can use what the executor's interpreter has."""
        self.run_code_raise_errors(_WITHOUT_PILLOW)
        return list(additional_imports)

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Runs the code and keeps its state. RuntimeError for what the agent is to be told."""
        if self._brings:
            self._prepared.append(code)
        result = self._ran(code)
        if result is None:
            raise RuntimeError("the interpreter has ended, and what it knew is lost; a new one is there")
        if result.cause is Cause.INFRA:
            raise SandboxFailed(result.message)
        logs = result.stdout.text
        if result.ok:
            return CodeOutput(result.displays[-1].text if result.displays else None, logs, False)
        if answer := _ANSWER.search(result.stderr.text):
            return CodeOutput(self._deserialize_final_answer(answer[1].rstrip("\n")), logs, True)
        raise RuntimeError("\n".join(filter(None, (logs, result.stderr.text, result.message))))

    def _ran(self, code: str) -> ExecutionResult | None:
        """None: it did not run, as the agent's code had ended the interpreter, and there is a new one."""
        try:
            try:
                return self._session.run(code, timeout=self._timeout)
            except SessionNotFound as error:
                if error.cause is not Cause.POLICY:
                    raise
            self._session = self._stack.enter_context(self._box.session(**self._options))
            for each in self._prepared:
                self._session.run(each)
        except ExecutorError as error:
            raise SandboxFailed(str(error)) from error
        return None

    @contextmanager
    def _preparing(self) -> Iterator[None]:
        self._brings = True
        try:
            yield
        finally:
            self._brings = False
