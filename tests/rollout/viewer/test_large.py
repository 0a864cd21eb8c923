"""A dump of 200 MB: the viewer's memory does not grow with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rollout.viewer.conftest import verl_row

ROOT = Path(__file__).parents[3]
PROGRAM = """
import asyncio, resource, sys
from pathlib import Path
from rollout.viewer.app import ViewerApp
from rollout.viewer.screens.base import Session
from rollout.viewer.rows.index import DumpFolder

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

async def main():
    session = Session(DumpFolder(Path(sys.argv[1])))
    app = ViewerApp(session)
    async with app.run_test() as pilot:
        before = peak()
        while not app.rows.complete:
            await pilot.pause(0.05)
        await pilot.press("G", "enter")
        await pilot.pause(0.5)
        await pilot.press(*"pppppppppp", "escape", "slash")
        await pilot.press(*"n0nsense", "enter")
        await pilot.pause(0.5)
        while not app.rows.complete:
            await pilot.pause(0.05)
        print(peak() - before, len(session.folder.open(session.folder.steps[0]).rows))

asyncio.run(main())
"""


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_large_dump_is_opened_within_bounds(tmp_path: Path) -> None:
    ids = list(range(2000))
    row = verl_row(0, prompt_ids=ids, response_ids=ids, response_mask=[1] * 2000, logprobs=[-0.123456789] * 2000)
    line = json.dumps(row) + "\n"
    rows = 200_000_000 // len(line) + 1
    with (tmp_path / "1.jsonl").open("w") as file:
        for _ in range(rows):
            file.write(line)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    grown, read = done.stdout.split()
    assert int(read) == rows, done.stderr
    assert float(grown) < 100  # MB
