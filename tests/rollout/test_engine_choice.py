"""Choice of an engine by settings."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from fairbox.errors import ConfigError, FairboxError, FieldErrors
from fairbox.net.ports import free_port
from rollout.config import EngineSettings
from rollout.engine_choice import make_engine, vocabulary_of
from rollout.engines import EngineUnavailable, ReplicatedEngine
from rollout.engines.local.engine import TransformersEngine
from rollout.engines.sglang.engine import SglangEngine
from rollout.training import Policy, PolicySettings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 9}}))
    return tmp_path


def test_each_kind_is_made(folder: Path) -> None:
    assert isinstance(make_engine(EngineSettings(), folder), TransformersEngine)
    behind = make_engine(EngineSettings(kind="sglang", router_url="http://r:1", urls=["http://a:1"]), folder)
    assert isinstance(behind, SglangEngine)
    assert (behind.url, behind.vocab_size) == ("http://r:1", 9)
    for kind, urls in itertools.product(("sglang", "vllm"), (["http://a:1"], ["http://a:1", "http://b:1"])):
        placed = make_engine(EngineSettings(kind=kind, urls=urls), folder)
        assert isinstance(placed, ReplicatedEngine)
        assert [view.name for view in placed.replicas()] == urls


def test_what_is_not_there_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    for bad in ("a:1", "http://"):
        with pytest.raises(FieldErrors, match=f"url is '{bad}', must be like http://HOST:PORT"):
            make_engine(EngineSettings(kind="sglang", urls=[bad]), folder)
    with pytest.raises(ConfigError, match="api_key_file is '/absent', which can't be read"):
        make_engine(EngineSettings(kind="sglang", urls=["http://a:1"], api_key_file="/absent"), folder)
    (folder / "config.json").write_text("{}")
    with pytest.raises(FairboxError, match="tells no vocab_size"):
        vocabulary_of(folder)


async def test_servers_that_do_not_answer_are_named(folder: Path) -> None:
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    for chosen in (urls[:1], urls):
        with pytest.raises(EngineUnavailable, match="Connection refused; start the server"):
            async with make_engine(EngineSettings(kind="sglang", urls=chosen), folder):
                pass


@pytest.mark.parametrize(
    ("device", "problem"),
    [
        ("gpu", "engine.device is 'gpu', must be cpu, cuda, or one of several like cuda:1"),
        ("cuda:1:2", "must be cpu, cuda, or one of"),
    ],
)
def test_a_device_that_has_no_meaning_is_refused_before_torch_is_loaded(device: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        EngineSettings(device=device).validate()
    with pytest.raises(ConfigError, match="device is set, which has no meaning"):
        EngineSettings(kind="vllm", urls=["http://a:1"], device="cuda").validate()


async def test_a_gpu_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine.device is 'cuda:99', but torch \S+ sees \d GPUs here"):
        async with make_engine(EngineSettings(device="cuda:99"), folder):
            pass
    with pytest.raises(ConfigError, match=r"policy.device is 'cuda:99', but torch \S+ sees \d GPUs here"):
        Policy.load(folder, PolicySettings(device="cuda:99"))
