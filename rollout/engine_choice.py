"""Makes the engine that the settings name. Each kind is imported only when it is chosen, with what it needs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

from fairbox.errors import ConfigError, FairboxError
from fairbox.extras import require
from fairbox.loading import load_apart
from rollout.config import EngineSettings, LaunchSettings
from rollout.engines.base import Engine
from rollout.engines.replicas.replicated import ReplicatedEngine
from rollout.engines.vllm.api import LogprobsMode
from rollout.engines.weights import Interrupt, Replica, WeightedEngine
from rollout.ray.cluster import ray_cluster

_EXTRAS = {
    "transformers": ("engine", ("torch", "transformers")),
    "sglang": ("sglang", ("aiohttp", "transformers")),
    "vllm": ("vllm", ("aiohttp", "transformers")),
}
"""Kind -> the extra, and what it brings that the kind needs; transformers has the tokenizers."""


def require_engine(kind: str) -> None:
    """Raises MissingExtra unless what an engine of `kind` needs is installed."""
    extra, modules = _EXTRAS[kind]
    require(f"engine.kind={kind}", extra, *modules)


@contextlib.asynccontextmanager
async def open_engine(settings: EngineSettings, model_dir: Path, *, ray_address: str) -> AsyncIterator[Engine]:
    """The engine, entered. Servers that the settings launch are started before, and ended on leaving."""
    require_engine(settings.kind)
    async with contextlib.AsyncExitStack() as stack:
        if settings.launch.replicas:
            urls = await stack.enter_async_context(_launched(settings.launch, model_dir, ray_address))
            settings = replace(settings, urls=urls, launch=LaunchSettings())
        engine = await load_apart(partial(make_engine, settings, model_dir))  # the import of torch takes seconds
        yield await stack.enter_async_context(engine)


@contextlib.asynccontextmanager
async def _launched(launch: LaunchSettings, model_dir: Path, ray_address: str) -> AsyncIterator[list[str]]:
    from rollout.engines.sglang.launch import LaunchConfig, local_servers

    config = LaunchConfig(model_dir, launch.replicas, launch.tensor_parallel, launch.python)
    if not launch.ray:
        async with local_servers(config) as urls:
            yield list(urls.values())
        return
    with ray_cluster(ray_address, what="engine.launch.ray"):
        from rollout.ray.servers import ray_servers

        async with ray_servers(config) as urls:
            yield list(urls.values())


def make_engine(settings: EngineSettings, model_dir: Path) -> Engine:
    """The engine, not entered. `model_dir` is the model's folder; servers have loaded the same model already.

    A `WeightedEngine`, but for vLLM. Raises FairboxError for what the settings name and is not there.
    """
    require_engine(settings.kind)
    if settings.kind == "transformers":
        from rollout.engines.local.engine import TransformersEngine

        return TransformersEngine(
            model_dir,
            max_batch=settings.max_batch,
            device=settings.device,
            max_model_tokens=settings.max_model_tokens,
            interrupt=Interrupt(settings.interrupt),
        )
    return _vllm(settings, model_dir) if settings.kind == "vllm" else _sglang(settings, model_dir)


def _vllm(settings: EngineSettings, model_dir: Path) -> Engine:
    from rollout.engines.vllm.engine import VllmEngine

    vocab_size, api_key = vocabulary_of(model_dir), _api_key(settings.api_key_file) or ""

    def engine(url: str) -> Replica:
        mode = LogprobsMode(settings.logprobs_mode)
        made = VllmEngine(url, vocab_size=vocab_size, logprobs_mode=mode, api_key=api_key)
        return cast("Replica", made)  # nobody changes or pauses it: see TAKE_WEIGHTS

    return ReplicatedEngine({url: engine(url) for url in settings.urls})


def _sglang(settings: EngineSettings, model_dir: Path) -> WeightedEngine:
    from rollout.engines.sglang.engine import SglangEngine

    vocab_size, api_key = vocabulary_of(model_dir), _api_key(settings.api_key_file)

    def engine(url: str, worker_urls: tuple[str, ...] = ()) -> SglangEngine:
        return SglangEngine(
            url,
            vocab_size=vocab_size,
            worker_urls=worker_urls,
            api_key=api_key,
            model_name=model_dir.name,
            interrupt=Interrupt(settings.interrupt),
        )

    if settings.router_url is not None:
        return engine(settings.router_url, tuple(settings.urls))
    # One server too: turns wait while it is started again, and it gets the weights of now before it gets turns.
    return ReplicatedEngine({url: engine(url) for url in settings.urls})


def vocabulary_of(model_dir: Path) -> int:
    """`vocab_size` of the model's configuration. Raises FairboxError when it says none."""
    try:
        config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
        return int(config.get("vocab_size") or config["text_config"]["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FairboxError(f"{model_dir / 'config.json'}: tells no vocab_size: {error!r}") from None


def _api_key(path: str) -> str | None:
    if not path:
        return None
    try:
        key = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"engine.api_key_file is {path!r}, which can't be read: {error}") from None
    if not key:
        raise ConfigError(f"engine.api_key_file is {path!r}, which is empty")
    return key
