"""The real model, converted once into the cache (`FAIRBOX_CACHE`), and what is made of it."""

from __future__ import annotations

import os
import sys
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


def find_gsm8k_test() -> Path | None:
    """GSM8K's test rows, which are not part of the repository."""
    roots = [os.environ.get("FAIRBOX_DATA"), Path(__file__).parents[3] / "shared" / "data"]
    for root in roots:
        if root and (path := Path(root) / "gsm8k" / "test.jsonl").is_file():
            return path
    return None


@pytest.fixture(scope="session")
def gsm8k_test() -> Path:
    found = find_gsm8k_test()
    if found is None:
        pytest.skip("GSM8K is not here: set FAIRBOX_DATA to a folder with gsm8k/test.jsonl")
    return found


@pytest.fixture
def openhands_python() -> str:
    """An interpreter that has the OpenHands SDK."""
    return find_openhands()


SERVER = """#!{python}
import os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{{}}")

print("GPUs", os.environ.get("CUDA_VISIBLE_DEVICES"))
words = dict(zip(sys.argv[3::2], sys.argv[4::2]))
HTTPServer((words["--host"], int(words["--port"])), Healthy).serve_forever()
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """An interpreter whose sglang is healthy at once, and can do nothing else."""
    path = tmp_path / "python"
    path.write_text(SERVER.format(python=sys.executable))
    path.chmod(0o755)
    return path
