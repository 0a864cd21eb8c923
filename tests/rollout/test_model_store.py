"""Sources of models: a path, or a name that is converted once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fairbox.errors import FairboxError
from rollout.engines import model_store
from rollout.engines.model_store import cache_dir, find_model

ROOT = Path(__file__).parents[2]


def test_model_folder_is_found_by_path(model_dir: Path) -> None:
    assert find_model(str(model_dir)) == model_dir
    assert (model_dir / "model.safetensors").stat().st_size > 500_000_000
    assert model_dir.is_relative_to(cache_dir())


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(FairboxError, match="model is 'gpt', which is neither a folder nor one of: smollm2"):
        find_model("gpt")
    with pytest.raises(FairboxError, match=r"a folder without config\.json"):
        find_model(str(tmp_path))


def test_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAIRBOX_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.setenv("FAIRBOX_CACHE", "")
    assert cache_dir() == Path.home() / ".cache" / "fairbox"


CONVERT = """
import sys, time
from rollout.engines import model_store

def convert(source, target):
    print("converting", flush=True)
    (target / "config.json").write_text("{")
    time.sleep(0.5)
    (target / "config.json").write_text("{}")

model_store.convert = convert
folder = model_store.find_model("smollm2")
print((folder / "config.json").read_text())
"""


def test_two_processes_convert_a_model_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAIRBOX_CACHE", str(tmp_path))
    both = [
        subprocess.Popen([sys.executable, "-c", CONVERT], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0].split() for process in both]
    assert sorted(outputs) == [["converting", "{}"], ["{}"]]
    (folder,) = [path for path in (tmp_path / "models" / "v1").iterdir() if path.is_dir()]
    assert folder.name == "SmolLM2-135M-Instruct"
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o644}, "others may read it"


def test_conversion_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAIRBOX_CACHE", str(tmp_path))
    (tmp_path / "broken.gguf").write_bytes(b"GGUF broken")
    monkeypatch.setattr(model_store, "_data_file", lambda: tmp_path / "broken.gguf")
    with pytest.raises(FairboxError, match=r"broken\.gguf: can't be converted to a model"):
        find_model("smollm2")
    assert [path.name for path in (tmp_path / "models" / "v1").iterdir()] == [".SmolLM2-135M-Instruct.lock"]


def test_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FAIRBOX_CACHE", str(tmp_path / "file"))
    with pytest.raises(FairboxError, match="can't be kept there: Not a directory; FAIRBOX_CACHE may name"):
        find_model("smollm2")
