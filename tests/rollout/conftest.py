"""The real model, converted once into the cache (`FAIRBOX_CACHE`), and what is made of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollout.engines import find_model
from rollout.tokens import ChatTemplate, HubTokenizer
from tests.rollout.openhands_sdk import find_openhands
from tests.rollout.tiny_model import write_tiny


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """SmolLM2-135M-Instruct."""
    return find_model("smollm2")


@pytest.fixture(scope="session")
def tiny_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of SmolLM2's vocabulary, with random weights: quick, and makes no sense."""
    return write_tiny(model_dir, tmp_path_factory.mktemp("tiny") / "model", seed=0)


@pytest.fixture(scope="session")
def other_tiny_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights for `tiny_dir`."""
    return write_tiny(model_dir, tmp_path_factory.mktemp("tiny") / "other", seed=1)


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> HubTokenizer:
    return HubTokenizer(model_dir)


@pytest.fixture(scope="session")
def chat(tokenizer: HubTokenizer) -> ChatTemplate:
    return ChatTemplate(tokenizer)


@pytest.fixture(scope="session")
def gsm8k_test() -> Path:
    """GSM8K's test rows, which are not part of the repository."""
    roots = [os.environ.get("FAIRBOX_DATA"), Path(__file__).parents[3] / "shared" / "data"]
    for root in roots:
        if root and (path := Path(root) / "gsm8k" / "test.jsonl").is_file():
            return path
    pytest.skip("GSM8K is not here: set FAIRBOX_DATA to a folder with gsm8k/test.jsonl")


@pytest.fixture
def openhands_python() -> str:
    """An interpreter that has the OpenHands SDK."""
    return find_openhands()
