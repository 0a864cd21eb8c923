"""Makes an agent loop from settings: engine, chat template, tools. In this process, or in a worker elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from fairbox.errors import ConfigError
from rollout.config import RolloutConfig
from rollout.engine_choice import make_engine
from rollout.envs.base import EnvironmentWithTools
from rollout.loop.agent_loop import AgentLoop
from rollout.tools.code_interpreter import CodeInterpreter, CodeInterpreterConfig
from rollout.tools.formats import find_format
from rollout.tools.registry import ToolSpec, common_rate_limit, load_tools, open_tools
from rollout.tools.services import ToolServices
from rollout.tools.toolbox import Toolbox

__all__ = ["open_loop", "tool_specs"]


def tool_specs(config: RolloutConfig, environment: object = None) -> tuple[ToolSpec, ...]:
    """Those of the file, or those that the environment needs, or the code interpreter alone. Raises ConfigError."""
    if config.tools is None:
        needed = environment.tools() if isinstance(environment, EnvironmentWithTools) else None
        if needed is None:
            return (ToolSpec("tool", CodeInterpreter, config.tool),)
        if config.tool != CodeInterpreterConfig():
            raise ConfigError(f"tool.* is set, but the tools are those of env={config.env}")
        common_rate_limit(needed)
        return needed
    specs = load_tools(Path(config.tools))
    common_rate_limit(specs)
    return specs


@contextlib.asynccontextmanager
async def open_loop(
    config: RolloutConfig,
    model_dir: Path,
    *,
    executor: str,
    limiter: str,
    specs: Sequence[ToolSpec] | None = None,
) -> AsyncIterator[AgentLoop]:
    """A loop whose engine and tools are open; they are closed on leaving. The services are `host:port`; `specs` None
    is `tool_specs(config)`."""
    async with contextlib.AsyncExitStack() as stack:
        services = await stack.enter_async_context(ToolServices(executor=executor, limiter=limiter))
        tools = await stack.enter_async_context(open_tools(tool_specs(config) if specs is None else specs, services))
        engine = await stack.enter_async_context(make_engine(config.engine, model_dir))
        chat = config.chat.load(model_dir)
        yield AgentLoop(
            engine=engine,
            chat=chat,
            tool_format=find_format(config.tool_format, chat),
            drift=config.chat.drift(chat),
            tools=Toolbox(tools, max_parallel_calls=config.max_parallel_calls),
            limits=config.limits,
            condense=config.condense,
            sampling=config.sampling.params(),
            queue_timeout_s=config.engine.queue_timeout_s,
        )
