"""Tools that a model can call, and the formats of its calls.

The code interpreter is `rollout.tools.code_interpreter.CodeInterpreter`; it is not imported here, as it costs gRPC.
"""

from rollout.tools.base import (
    BranchingTool,
    BranchRefused,
    InfraError,
    MeasuredTool,
    Tool,
    ToolOutcome,
    ToolResponse,
    is_finish_tool,
)
from rollout.tools.calls import MalformedCall, ToolCall, ToolCallFormat
from rollout.tools.formats import FORMATS, check_format, find_format
from rollout.tools.hermes import parse_tool_calls
from rollout.tools.schema import ParameterSchema, ToolSchema
from rollout.tools.statistics import ToolStatistics
from rollout.tools.toolbox import Toolbox

__all__ = [
    "FORMATS",
    "BranchRefused",
    "BranchingTool",
    "InfraError",
    "MalformedCall",
    "MeasuredTool",
    "ParameterSchema",
    "Tool",
    "ToolCall",
    "ToolCallFormat",
    "ToolOutcome",
    "ToolResponse",
    "ToolSchema",
    "ToolStatistics",
    "Toolbox",
    "check_format",
    "find_format",
    "is_finish_tool",
    "parse_tool_calls",
]
