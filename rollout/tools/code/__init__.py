"""Tools that run code at the executor, or at a service that speaks SandboxFusion's interface.

`CodeInterpreter` and `BashTool` are imported when somebody asks for them, because they cost gRPC.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout.tools.code.bash import BashTool
    from rollout.tools.code.code_interpreter import CodeInterpreter, CodeInterpreterConfig

__all__ = ["BashTool", "CodeInterpreter", "CodeInterpreterConfig"]

_HOMES = {"BashTool": "bash", "CodeInterpreter": "code_interpreter", "CodeInterpreterConfig": "code_interpreter"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
