"""Tools that a model can call, and the formats of its calls.

The code interpreter is `rollout.tools.code_interpreter.CodeInterpreter`; it is not imported here, as it costs gRPC.
"""

from rollout.tools.base import (
    BranchRefused,
    InfraError,
    NoSettings,
    Tool,
    ToolOutcome,
    ToolResponse,
)
from rollout.tools.calls import MalformedCall, ToolCall, ToolCallFormat
from rollout.tools.formats import FORMATS, check_format, find_format
from rollout.tools.marked_calls import parse_tool_calls
from rollout.tools.schema import ParameterSchema, ToolSchema
from rollout.tools.statistics import ToolStatistics
from rollout.tools.toolbox import Toolbox

__all__ = [
    "FORMATS",
    "BranchRefused",
    "InfraError",
    "MalformedCall",
    "NoSettings",
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
    "parse_tool_calls",
]
