"""Runs the source of cells in one namespace, and finds the expression whose value is displayed.

Invariants: the last expression is found in the syntax tree; a cell that can't be compiled runs not at all; `from
__future__ import` lasts for all later cells; `await` may stand at the top, on one event loop for all cells.
"""

from __future__ import annotations
import __future__

import ast
import linecache
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

_IS_COROUTINE = 0x80
"""CO_COROUTINE in the flags of a code object."""


class Evaluator:
    """`names` is the namespace of `__main__`."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self._flags = 0
        self._runner: Any = None

    def run(self, source: str, name: str, *, display: bool) -> None:
        """Runs a cell; `name` stands for its file. Raises what it raises."""
        # Without a time: linecache then never looks for a file.
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        tree = compile(source, name, "exec", self._options | ast.PyCF_ONLY_AST, dont_inherit=True)
        assert isinstance(tree, ast.Module)
        last = None
        if display and tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        parts = [self._compile(tree, name, "exec")]
        if last is not None:
            parts.append(self._compile(last, name, "eval"))
        if any(code.co_flags & _IS_COROUTINE for code in parts):
            value = self._loop().run(self._evaluate_in_loop(parts))
        else:
            value = [eval(code, self._names) for code in parts][-1]  # noqa: S307 - what this process is for
        if last is not None:
            sys.displayhook(value)

    def obstacle(self) -> str:
        """Why the event loop can't be taken across a fork; empty: it can, or there is none any more."""
        if self._runner is None:
            return ""
        import asyncio

        if any(not task.done() for task in asyncio.all_tasks(self._runner.get_loop())):
            return "it has asyncio tasks that have not ended"
        # Both sides would use one poll object; the next cell that awaits makes a new one.
        runner, self._runner = self._runner, None
        runner.close()
        return ""

    @property
    def _options(self) -> int:
        return ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | self._flags

    def _compile(self, tree: Any, name: str, mode: str) -> CodeType:
        code: CodeType = compile(tree, name, mode, self._options, dont_inherit=True)
        for feature in __future__.all_feature_names:
            self._flags |= code.co_flags & getattr(__future__, feature).compiler_flag
        return code

    def _loop(self) -> Any:
        if self._runner is None:
            import asyncio

            self._runner = asyncio.Runner()
        return self._runner

    async def _evaluate_in_loop(self, parts: list[CodeType]) -> Any:
        value = None
        for code in parts:
            value = eval(code, self._names)  # noqa: S307
            if code.co_flags & _IS_COROUTINE:
                value = await value
        return value
