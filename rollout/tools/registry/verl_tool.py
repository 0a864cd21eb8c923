"""Tools that were written for verl, as they are: `create`, `execute`, `calc_reward`, `release` of its BaseTool.

The four methods are called as verl's documentation describes them and its rollouts up to 0.6 called them: `create` once
for a trajectory, with the trajectory's id as `instance_id`, so that state lasts over its turns; `calc_reward` and
`release` once at its end. A task's options are verl's `create_kwargs`, `execute_kwargs`, `calc_reward_kwargs` and
`release_kwargs`. verl itself is not needed: a class that has the methods will do, and what it returns is looked at by
its fields (`text`, `image`, `video`).

An exception of such a tool is a defect of the trajectory's infrastructure: it is masked, and never text for the model.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from fairbox.clock import Clock, MonotonicClock
from fairbox.errors import ConfigError
from rollout.tools.base import InfraError, Tool, ToolOutcome, ToolResponse
from rollout.tools.registry.schema_file import read_schema
from rollout.tools.schema import ToolSchema
from rollout.tools.text import NO_OUTPUT

_METHODS = ("create", "execute", "calc_reward", "release")
_KWARGS = ("create_kwargs", "execute_kwargs", "calc_reward_kwargs", "release_kwargs")


def is_verl_tool(cls: type[Any]) -> bool:
    """Says whether a class has the methods of verl's BaseTool."""
    return all(inspect.iscoroutinefunction(getattr(cls, name, None)) for name in _METHODS)


@dataclass(slots=True)
class _Instance:
    instance_id: str
    options: Mapping[str, Mapping[str, Any]]


class VerlTool(Tool):
    """An object of such a class as a `Tool`. Calls of one turn run at once unless it says `parallel = False`."""

    def __init__(self, tool: Any, *, path: str, schema: ToolSchema | None, clock: Clock | None = None) -> None:
        self._tool = tool
        self._clock = clock or MonotonicClock()
        self._instances: dict[str, _Instance] = {}
        super().__init__(schema=schema or _own_schema(tool, path))
        self.parallel = bool(getattr(tool, "parallel", True))

    @classmethod
    def build(cls, kind: type[Any], config: Mapping[str, Any], schema: ToolSchema | None, path: str) -> VerlTool:
        """Makes the object as verl does: `kind(config=..., tool_schema=...)`. Raises ConfigError."""
        given = None if schema is None else _schema_object(kind, schema)
        try:
            tool = kind(config=dict(config), tool_schema=given)
        except Exception as error:
            raise ConfigError(f"{path}: {kind.__name__} can't be made: {type(error).__name__}: {error}") from error
        return cls(tool, path=path, schema=schema)

    async def create(self, trajectory_id: str, **options: Any) -> None:
        """`options` are those of the task, by verl's names. Raises InfraError."""
        for name, value in options.items():
            if name not in _KWARGS or not isinstance(value, Mapping):
                raise InfraError(f"the task's option {name} is {value!r}, must be a mapping: {', '.join(_KWARGS)}")
        made = await self._tool.create(trajectory_id, **options.get("create_kwargs", {}))
        # (instance_id, ToolResponse) since verl 0.6, the id alone before.
        instance_id = made[0] if isinstance(made, tuple) else made
        self._instances[trajectory_id] = _Instance(instance_id or trajectory_id, options)

    async def execute(
        self, trajectory_id: str, arguments: Mapping[str, Any], *, time_limit_s: float | None = None
    ) -> ToolResponse:
        """The tool's text, and the reward that it gives for this call; its metrics are not kept. Raises InfraError."""
        instance = self._instances[trajectory_id]
        began = self._clock.now()
        options = instance.options.get("execute_kwargs", {})
        answer = await self._tool.execute(instance.instance_id, dict(arguments), **options)
        run_s = self._clock.now() - began
        if not isinstance(answer, tuple) or len(answer) != 3:
            raise InfraError(
                f"{type(self._tool).__name__}.execute returned {answer!r}, must be (response, reward, dict)"
            )
        response, reward, _ = answer
        text = response if isinstance(response, str) else _text(response)
        size = len(text.encode("utf-8", "replace"))
        return ToolResponse(text or NO_OUTPUT, ToolOutcome.OK, total_bytes=size, run_s=run_s, reward=_number(reward))

    async def calc_reward(self, trajectory_id: str) -> float | None:
        """As the tool says; None where it says nothing that is a number."""
        instance = self._instances[trajectory_id]
        options = instance.options.get("calc_reward_kwargs", {})
        return _number(await self._tool.calc_reward(instance.instance_id, **options))

    async def release(self, trajectory_id: str) -> None:
        """Idempotent, whatever the tool is."""
        instance = self._instances.pop(trajectory_id, None)
        if instance is not None:
            await self._tool.release(instance.instance_id, **instance.options.get("release_kwargs", {}))


def _own_schema(tool: Any, path: str) -> ToolSchema:
    """The object's own schema, for a file that has none."""
    found = getattr(tool, "tool_schema", None)
    if found is None and hasattr(tool, "get_openai_tool_schema"):
        found = tool.get_openai_tool_schema()
    if found is None:
        raise ConfigError(f"{path}.tool_schema is missing, and {type(tool).__name__} has none of its own")
    tree = found if isinstance(found, Mapping) else found.model_dump(exclude_none=True)
    return read_schema(tree, f"{path}: the schema of {type(tool).__name__}")


def _schema_object(kind: type[Any], schema: ToolSchema) -> Any:
    """The schema as the class expects it: verl's own pydantic model where the class is derived from verl's BaseTool,
    and else an object with the same attributes and `model_dump`."""
    for base in kind.__mro__:
        package, _, module = base.__module__.rpartition(".")
        if (base.__name__, module) == ("BaseTool", "base_tool") and f"{package}.schemas" in sys.modules:
            return sys.modules[f"{package}.schemas"].OpenAIFunctionToolSchema.model_validate(schema.openai())
    return _Schema.of(schema.openai())


class _Schema(SimpleNamespace):
    """A JSON object with its keys as attributes."""

    _tree: Mapping[str, Any]

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> _Schema:
        keys = {
            key: cls.of(value) if isinstance(value, Mapping) and key != "properties" else value
            for key, value in tree.items()
        }
        return cls(**keys, _tree=tree)

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """The object as plain data. Options are pydantic's, and there is nothing for them to leave out."""
        return dict(self._tree)


def _text(response: Any) -> str:
    """The text of verl's ToolResponse; what it has beside it is said, because no model here is shown it."""
    media = {kind: len(getattr(response, kind, None) or ()) for kind in ("image", "video")}
    notes = [f"[{kind}, {count} of them, not shown]" for kind, count in media.items() if count]
    return "\n".join([text for text in [getattr(response, "text", None)] if text] + notes)


def _number(value: Any) -> float | None:
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    return None
