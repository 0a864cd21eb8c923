"""Tools that a model can call, and the formats of its calls.

Tools that run code are in `rollout.tools.code`, which is not imported here, as it costs gRPC.
"""

from rollout.tools.base import (
    BranchRefused,
    InfraError,
    NoSettings,
    Tool,
    ToolOutcome,
    ToolResponse,
)
from rollout.tools.formats.calls import MalformedCall, ToolCall, ToolCallFormat
from rollout.tools.formats.choice import FORMATS, check_format, find_format
from rollout.tools.formats.marked import parse_tool_calls
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
