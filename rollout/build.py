"""Makes an agent loop from settings: engine, chat template, tools. In this process, or in a worker elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fairbox.errors import ConfigError
from fairbox.loading import load_apart
from fairbox.telemetry.program import open_traces
from rollout.config import FREE_SETTINGS, RolloutConfig, recorded_settings
from rollout.data.rows import DataError
from rollout.data.swe.hub import is_dataset
from rollout.dump import refuse_existing
from rollout.engine_choice import open_engine
from rollout.envs.base import Environment, EnvironmentSetup
from rollout.journal import NAME, Durability, JournalError, RunJournal, begun, open_journal
from rollout.loop.agent_loop import AgentLoop
from rollout.loop.task import Task
from rollout.rewards import load_reward
from rollout.tokens.chat import ChatTemplate
from rollout.tokens.drift import DriftCounter
from rollout.tokens.tokenizer import ChatTemplateError
from rollout.tools.code import CodeInterpreter, CodeInterpreterConfig
from rollout.tools.code.client import ToolServices
from rollout.tools.formats.choice import find_format
from rollout.tools.registry.registry import ToolSpec, common_rate_limit, load_tools, open_tools
from rollout.tools.toolbox import Toolbox

_FREE = tuple(f"{name}." for name in (*FREE_SETTINGS, "journal", "time_limit_s", "score_timeout_s"))


def tool_specs(config: RolloutConfig, environment: Environment | None = None) -> tuple[ToolSpec, ...]:
    """The file's tools, or those that the environment needs, or the code interpreter alone. Raises ConfigError."""
    if config.tools is None:
        needed = None if environment is None else environment.tools()
        if needed is None:
            return (ToolSpec("tool", CodeInterpreter, config.tool),)
        if config.tool != CodeInterpreterConfig():
            raise ConfigError(f"tool.* is set, but the tools are those of env={config.env}")
        common_rate_limit(needed)
        return needed
    specs = load_tools(Path(config.tools))
    common_rate_limit(specs)
    return specs


def environment_setup(config: RolloutConfig, *, data: str | None, limit: int) -> EnvironmentSetup:
    """The setup of the run's environment, with at most `limit` problems of `data`. Raises FairboxError."""
    if data is not None and is_dataset(data) and not Path(data).exists():
        fetches = f"`hf download {data} --repo-type dataset --local-dir {data.partition('/')[2]}`"
        raise DataError(f"{data}: is no file here; a data set of that name is fetched by {fetches}, then name its file")
    return EnvironmentSetup(
        data=None if data is None else Path(data),
        limit=limit,
        reward=None if config.reward is None else load_reward(config.reward),
        tools=None if config.tools is None else tool_specs(config),
        max_turns=config.limits.max_turns,
        max_parallel_calls=config.max_parallel_calls,
    )


def longest_context(config: RolloutConfig, max_model_tokens: int) -> int:
    """Ids that a trajectory may have in all, on an engine that takes `max_model_tokens`."""
    return min(max_model_tokens, config.limits.max_model_tokens or max_model_tokens)


def check_prompts(
    tasks: Sequence[Task], chat: ChatTemplate, schemas: Sequence[Mapping[str, Any]], *, longest: int
) -> None:
    """Raises DataError for a task whose prompt the template refuses, or leaves no room for an answer."""
    for task in tasks:
        try:
            length = len(chat.prompt_ids(task.messages, schemas))
        except ChatTemplateError as error:
            raise DataError(f"{task.where}: {error}") from None
        if length >= longest:
            raise DataError(f"{task.where}: its prompt has {length} tokens, which leaves none of {longest} to answer")


@contextlib.asynccontextmanager
async def open_loop(
    config: RolloutConfig,
    model_dir: Path,
    *,
    executor: str,
    limiter: str,
    specs: Sequence[ToolSpec],
    journal: RunJournal | None = None,
) -> AsyncIterator[AgentLoop]:
    """A loop whose engine and tools are open; they are closed on leaving. The services are `host:port`."""
    async with contextlib.AsyncExitStack() as stack:
        instance = f"{socket.gethostname()}:{os.getpid()}"
        await stack.enter_async_context(open_traces(config, service="rollout", instance=instance))
        services = await stack.enter_async_context(ToolServices(executor=executor, limiter=limiter))
        tools = await stack.enter_async_context(open_tools(specs, services))
        engine = await stack.enter_async_context(open_engine(config.engine, model_dir, ray_address=config.ray_address))
        chat = await load_apart(partial(config.chat.load, model_dir))
        yield AgentLoop(
            engine=engine,
            chat=chat,
            tool_format=find_format(config.tool_format, chat),
            drift=DriftCounter(chat),
            tools=Toolbox(tools, max_parallel_calls=config.max_parallel_calls),
            limits=config.limits,
            condense=config.condense,
            sampling=config.sampling.params(),
            queue_timeout_s=config.engine.queue_timeout_s,
            journal=journal,
        )


@contextlib.asynccontextmanager
async def open_run_journal(config: RolloutConfig, env_config: Any, folder: Path) -> AsyncIterator[RunJournal | None]:
    """The journal of the run whose dump is to be in `folder`; None if it keeps none. Raises ConfigError for a run that
    can't go on, DumpError if there is a dump and no journal, and JournalError."""
    settings = recorded_settings(config, env_config)
    exists = begun(folder / NAME)
    if exists and not config.resume:
        raise ConfigError(f"out is {str(folder)!r}, which holds a run that was cut off; resume=true goes on with it")
    durability = Durability.NONE if config.ray else Durability(config.journal)
    if not exists:
        refuse_existing(folder / f"{config.step}.jsonl")
    elif durability is Durability.NONE:
        raise ConfigError("journal is 'none', but resume=true goes on with the journal in out")
    about = None if exists else {"settings": json.dumps(settings)}
    async with open_journal(folder, durability, about) as journal:
        if exists and journal is not None:
            before = _settings_of(journal, folder)
            changed = [
                f"{name} is {settings.get(name)!r}, but was {before.get(name)!r} when the run began"
                for name in sorted({*before, *settings})
                if settings.get(name) != before.get(name) and not f"{name}.".startswith(_FREE)
            ]
            if changed:
                raise ConfigError("; ".join(changed))
        yield journal


def _settings_of(journal: RunJournal, folder: Path) -> dict[str, Any]:
    """The settings with which the run began. Raises JournalError."""
    try:
        return dict(json.loads(journal.about["settings"]))
    except (KeyError, TypeError, ValueError) as error:
        raise JournalError(f"{folder / NAME}: the run's settings can't be read: {error}") from None
