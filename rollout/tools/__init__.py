"""Tools that a model can call, and the parser of its calls.

The code interpreter is `rollout.tools.code_interpreter.CodeInterpreter`; it is not imported here, as it costs gRPC.
"""

from rollout.tools.base import InfraError, Tool, ToolOutcome, ToolResponse
from rollout.tools.hermes import MalformedCall, ToolCall, parse_tool_calls
from rollout.tools.schema import ParameterSchema, ToolSchema
from rollout.tools.toolbox import Toolbox

__all__ = [
    "InfraError",
    "MalformedCall",
    "ParameterSchema",
    "Tool",
    "ToolCall",
    "ToolOutcome",
    "ToolResponse",
    "ToolSchema",
    "Toolbox",
    "parse_tool_calls",
]
