"""`finish`: the tool with which a model hands its answer over, and so ends its trajectory.

Invariants: a call whose arguments are in order ends the trajectory as `answered`, and no other call of its turn is run;
one whose arguments are not is answered with what is wrong, and the model may try again. The answer is the arguments of
the call, which reward functions find in `Sample.tool_calls`; the tool keeps nothing and needs no service.

A kind of its own for other answers: `rollout.envs.code_search.finish`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rollout.tools.base import Tool, ToolOutcome, ToolResponse
from rollout.tools.schema import ParameterSchema, ToolSchema

_TAKEN = "The answer has been submitted."


class FinishTool(Tool):
    """`FinishTool()`. `schema` replaces the tool's own, and says what an answer is."""

    default_schema: ClassVar[ToolSchema] = ToolSchema(
        name="finish",
        description="Submits your final answer and ends the conversation. Call it once, alone, when you are done.",
        parameters={"message": ParameterSchema("string", "The final answer.")},
        required=("message",),
    )
    finishes = True
    repeatable = True

    def problem(self, arguments: Mapping[str, Any]) -> str | None:
        """Says what is wrong with arguments that fit the schema, for the model; None if nothing is."""
        return None

    async def execute(
        self, trajectory_id: str, arguments: Mapping[str, Any], *, time_limit_s: float | None = None
    ) -> ToolResponse:
        """Takes the answer, or says what is wrong with it."""
        problem = self.problem(arguments)
        if problem is not None:
            return ToolResponse(f"Error: {problem}.", ToolOutcome.BAD_ARGUMENTS)
        return ToolResponse(_TAKEN, ToolOutcome.OK, final=True)

    async def branch(self, trajectory_id: str, branches: Sequence[str]) -> None:
        """Nothing to fork."""
