"""The log of a real executor: every line is an object, lines about a run say whose, and none holds code."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path

from executor_service import Cause, ExecutorClient
from tests.executor.servers import ROOT, command, parent, processes_with, wait_for

SECRET = "the_code_of_a_model"


async def test_lines_about_a_run_say_whose_and_hold_no_code(tmp_path: Path) -> None:
    log = tmp_path / "log"
    words, target, _ = command("log_format=json", "languages=bash,python", "cgroups=none")
    with log.open("wb") as stderr:
        process = await asyncio.to_thread(subprocess.Popen, words, cwd=ROOT, stderr=stderr)
    try:
        await asyncio.to_thread(wait_for, lambda: process.poll() is not None or "listening" in log.read_text(), 60)
        async with ExecutorClient(target) as executor:
            code, marker = f"{SECRET} = 1\nimport time; time.sleep(60)", f"marker-{os.getpid()}"
            program = executor.execute(code, args=[marker], request_id="the-run", tenant="somebody")
            lost = asyncio.create_task(program)
            await asyncio.to_thread(wait_for, lambda: processes_with(marker))
            (zygote,) = processes_with(marker)
            while parent(zygote) != process.pid:
                zygote = parent(zygote)
            os.kill(zygote, signal.SIGKILL)  # the sandbox is lost: our failure, and logged
            assert (await lost).cause is Cause.INFRA
            await asyncio.to_thread(wait_for, lambda: "has died" in log.read_text())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    told = [json.loads(line) for line in log.read_text().splitlines()]
    assert {record["service"] for record in told} == {"executor"}
    about = [record for record in told if record.get("request_id") == "the-run"]
    assert [record["tenant"] for record in about] == ["somebody"] * len(about)
    assert any(record["message"].startswith("run ") for record in about)
    assert any("has died" in record["message"] and "request_id" not in record for record in told)
    ending = "ending: 0 programs are running, 0 requests are waiting"  # now, and not of all that ran
    assert any(record["message"] == ending for record in told)
    assert SECRET not in log.read_text()
    assert marker not in log.read_text()
