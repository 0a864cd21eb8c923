"""Figures of a run on the boards, written by the real packages."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fairbox.errors import ConfigError

pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

from rollout.training.run.boards import WandbSettings
from rollout.training.run.metrics import MetricLog

SETTINGS = WandbSettings("fairbox-tests", {"update.lr": 0.5})


def log(folder: Path, *, after: int = -1, wandb: WandbSettings | None = None) -> MetricLog:
    return MetricLog(folder, Console(file=io.StringIO()), after=after, wandb=wandb)


def records(path: Path) -> list[Any]:
    """Records of a wandb run: messages in LevelDB's log format, in blocks of 32 KiB, after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, part, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            found.append(wandb_internal_pb2.Record.FromString(part))
            part = b""
    return found


def test_tensorboard_has_each_step_once_also_when_some_are_done_again(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with log(tmp_path) as first:
        for step in (1, 2, 3):
            first.write(step, {"reward": step / 10, "time/update_s": 1.0})
    with log(tmp_path, after=1) as second:
        second.write(2, {"reward": 0.9})
    found = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert set(found.Tags()["scalars"]) == {"train/reward", "time/update_s"}
    assert [(each.step, round(each.value, 3)) for each in found.Scalars("train/reward")] == [(1, 0.1), (2, 0.9)]


def test_wandb_is_told_every_step_and_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed (extra `boards`)")

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB__SERVICE_WAIT", "120")  # its own 30 s may not suffice beside other suites
    for after in (-1, 2):  # it goes on as the same run
        with log(tmp_path, after=after, wandb=SETTINGS) as board:
            board.write(after + 2, {"reward": 0.25, "eval/reward": float("nan")})
        time.sleep(1.1)  # it names folders by the second, and loses what a second one in it is told
    names, every = set(), []
    for path in sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb")):
        for record in records(path):
            if record.HasField("run"):
                names.add((record.run.run_id, record.run.project))
                assert ("update.lr", "0.5") in [(item.key, item.value_json) for item in record.run.config.update]
            if record.HasField("history"):
                found = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                assert found["train/reward"] == "0.25"
                every.append(int(found["_step"]))
    assert every == [1, 4]
    assert names == {((tmp_path / "wandb-id").read_text().strip(), "fairbox-tests")}


def test_wandb_that_is_wanted_and_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"wandb.project needs wandb: run `pip install 'fairbox\[boards\]'`"):
        log(tmp_path, wandb=SETTINGS).__enter__()
    with log(tmp_path) as board:
        board.write(1, {"reward": 1.0})


def test_wandb_is_not_imported_where_nobody_wants_it(tmp_path: Path) -> None:
    code = (
        "import io, pathlib, sys\nfrom rich.console import Console\n"
        "from rollout.training.run.metrics import MetricLog\n"
        f"with MetricLog(pathlib.Path({str(tmp_path)!r}), Console(file=io.StringIO()), after=-1) as log:\n"
        "    log.write(1, {'reward': 1.0})\n"
        "sys.exit('wandb' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=250, check=False).returncode == 0
