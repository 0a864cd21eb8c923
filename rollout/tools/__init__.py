"""Tools that a model can call, and the parser of its calls.

The code interpreter is `rollout.tools.code_interpreter.CodeInterpreter`; it is not imported here, as it costs gRPC.
"""

from rollout.tools.base import BranchingTool, BranchRefused, InfraError, MeasuredTool, Tool, ToolOutcome, ToolResponse
from rollout.tools.hermes import MalformedCall, ToolCall, parse_tool_calls
from rollout.tools.schema import ParameterSchema, ToolSchema
from rollout.tools.statistics import ToolStatistics
from rollout.tools.toolbox import Toolbox

__all__ = [
    "BranchRefused",
    "BranchingTool",
    "InfraError",
    "MalformedCall",
    "MeasuredTool",
    "ParameterSchema",
    "Tool",
    "ToolCall",
    "ToolOutcome",
    "ToolResponse",
    "ToolSchema",
    "ToolStatistics",
    "Toolbox",
    "parse_tool_calls",
]
