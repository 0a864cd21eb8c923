"""Tools from a file, in verl's format."""

from rollout.tools.registry.registry import ToolSpec, load_tools

__all__ = ["ToolSpec", "load_tools"]
