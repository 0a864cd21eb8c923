"""Tools from a file, in verl's format, checked when it is loaded.

    tools:
      - class_name: rollout.tools.code.CodeInterpreter
        config: {num_workers: 10, mode: session}
        tool_schema: {type: function, function: {name: python, ...}}    # may be left out

Unknown keys and bad values are errors, and so are two tools of one name; an error names the key by its path,
`tools[1].config.top_k`. Loading imports the classes and opens nothing.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fairbox.config import from_tree, read_tree
from fairbox.errors import ConfigError, FairboxError
from rollout.tools.base import Tool
from rollout.tools.code.client import ToolServices
from rollout.tools.code.settings import ExecutorToolConfig
from rollout.tools.registry.schema_file import check_keys, check_reads, read_schema
from rollout.tools.registry.verl_tool import VerlTool, is_verl_tool
from rollout.tools.schema import ToolSchema

_MOVED = {
    "verl.tools.sandbox_fusion_tools.SandboxFusionTool": "rollout.tools.code.CodeInterpreter",
    "verl.tools.gsm8k_tool.Gsm8kTool": "rollout.tools.gsm8k_reward.Gsm8kRewardTool",
}
"""Classes that verl no longer has, and what does their work here."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One entry of the file, checked."""

    path: str
    """Place of the entry, for messages: `tools.yaml: tools[0]`."""
    kind: type[Any]
    config: Any
    """An instance of the class's `config_type`; for a class of verl's kind a plain mapping."""
    schema: ToolSchema | None = None
    fairbox: bool = True
    """Says whether it is a class of fairbox's kind."""

    def build(self, services: ToolServices) -> Tool:
        """The tool, not entered."""
        if self.fairbox:
            tool: Tool = self.kind.from_config(self.config, services, self.schema)
            return tool
        return VerlTool.build(self.kind, self.config, self.schema, self.path)


def load_tools(path: Path) -> tuple[ToolSpec, ...]:
    """The entries of a YAML or TOML file. Raises ConfigError."""
    tree = _resolved(path)
    where = f"{path}: "
    for key in tree:
        if key != "tools":
            raise ConfigError(f"{where}{key} is not a key; the file has one, tools")
    entries = tree.get("tools")
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{where}tools must be a list of tools, each with a class_name")
    specs = tuple(_spec(entry, f"{where}tools[{number}]") for number, entry in enumerate(entries))
    _check_names(specs)
    return specs


def common_rate_limit(specs: Sequence[ToolSpec]) -> int | None:
    """The `rate_limit` of the tools that run programs under the limiter, who share one bucket; None: there are none.

    Raises ConfigError where they differ.
    """
    limits = {
        spec.path: spec.config.rate_limit
        for spec in specs
        if isinstance(spec.config, ExecutorToolConfig) and spec.config.enable_global_rate_limit
    }
    if len(set(limits.values())) > 1:
        said = ", ".join(f"{path}.config.rate_limit is {limit}" for path, limit in limits.items())
        raise ConfigError(f"{said}, but there is one limit for all programs")
    return next(iter(limits.values()), None)


@contextlib.asynccontextmanager
async def open_tools(specs: Sequence[ToolSpec], services: ToolServices) -> AsyncIterator[list[Tool]]:
    """The tools, entered in their order; left in the opposite one. Raises ConfigError."""
    async with contextlib.AsyncExitStack() as stack:
        tools = []
        for spec in specs:
            try:
                tools.append(await stack.enter_async_context(spec.build(services)))
            except FairboxError as error:
                raise ConfigError(f"{spec.path}: {error}") from error
        yield tools


def _resolved(path: Path) -> dict[str, Any]:
    """Reads the file, with interpolations (`${oc.env:NAME}`) filled in."""
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(read_tree(path)), resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}: {str(error).splitlines()[0]}") from None
    return cast("dict[str, Any]", resolved)


def _spec(entry: Any, path: str) -> ToolSpec:
    check_keys(entry, path, ("class_name", "config", "tool_schema"), required=("class_name",))
    kind = _class(entry["class_name"], f"{path}.class_name")
    config = entry.get("config") or {}
    if not isinstance(config, Mapping):
        raise ConfigError(f"{path}.config is {config!r}, must be a mapping")
    if config.get("type", "native") != "native":  # verl requires it
        raise ConfigError(f"{path}.config.type is {config['type']!r}, must be native, or left out")
    tree = entry.get("tool_schema")
    schema = None if tree is None else read_schema(tree, f"{path}.tool_schema")
    if not issubclass(kind, Tool):
        if not is_verl_tool(kind):
            raise ConfigError(
                f"{path}.class_name is {entry['class_name']!r}, which is no tool: it is neither derived from "
                "rollout.tools.Tool, nor has it the coroutine methods create, execute, calc_reward and release of "
                "verl's BaseTool"
            )
        return ToolSpec(path, kind, dict(config), schema, fairbox=False)
    settings = {key: value for key, value in config.items() if key != "type"}
    typed = from_tree(kind.config_type, settings, path=f"{path}.config")
    if hasattr(typed, "validate"):
        typed.validate(f"{path}.config")
    reads = getattr(kind, "default_schema", None)
    if schema is not None and isinstance(reads, ToolSchema):
        check_reads(schema, reads, f"{path}.tool_schema")
    return ToolSpec(path, kind, typed, schema)


def _class(name: Any, path: str) -> Any:
    if not isinstance(name, str) or "." not in name:
        raise ConfigError(f"{path} is {name!r}, must be the dotted path of a class")
    module_name, _, attribute = name.rpartition(".")
    hint = f"; here {_MOVED[name]} does its work" if name in _MOVED else ""
    try:
        found = getattr(importlib.import_module(module_name), attribute, None)
    except ImportError as error:
        raise ConfigError(f"{path} is {name!r}, which can't be imported: {error}{hint}") from None
    if not isinstance(found, type):
        raise ConfigError(f"{path} is {name!r}, but {module_name} has no class {attribute}{hint}")
    return found


def _check_names(specs: Sequence[ToolSpec]) -> None:
    names: dict[str, str] = {}
    for spec in specs:
        schema = spec.schema or getattr(spec.kind, "default_schema", None)
        if schema is None:
            continue
        if schema.name in names:
            raise ConfigError(f"{spec.path} has the name {schema.name!r}, as {names[schema.name]} has")
        names[schema.name] = spec.path
