"""`fairbox report`: what a page costs beyond reading its dump, and how fast its views open and scroll in a browser.

The dump has 5,000 trajectories of 8,000 tokens and takes 1.4 GB of disk; PAGE_ROWS sets another number. Writing is
measured as CPU time of the reading thread, because compression runs beside it and the machine may be busy.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import tempfile
import threading
import time
from array import array
from pathlib import Path
from typing import Any

from benchmarks.rows import Row, figure, skipped
from rollout.page import write_page
from rollout.viewer.rows.index import StepFile

ROWS = int(os.environ.get("PAGE_ROWS", "5000"))
PROMPT, TURNS, SAMPLED, INSERTED = 500, 6, 1000, 250
OPEN_MS, FRAME_MS = 2000.0, 100.0
"""Bars: a view opens within two seconds; a tenth of a second without a frame is seen while one scrolls."""
VIEWS = ("view=rows", "view=time", "view=groups", "view=find", "view=row&row=7", "view=row&row=7&tab=tokens")
_OPEN = """address => new Promise(done => {
    const began = performance.now();
    delete document.body.dataset.shown;
    new MutationObserver((_, watch) => {
        if (!document.body.dataset.shown) return;
        watch.disconnect();
        requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began)));
    }).observe(document.body, { attributes: true });
    location.hash = address;
})"""
_SCROLL = """() => new Promise(done => {
    const list = document.querySelector(".list") ?? document.querySelector("main"), frames = [];
    let last = performance.now();
    const step = now => {
        frames.push(now - last);
        last = now;
        list.scrollTop += 600;
        if (frames.length < 100) requestAnimationFrame(step);
        else done(frames.slice(1).sort((a, b) => b - a)[4]);
    };
    requestAnimationFrame(step);
})"""


async def rows() -> list[Row]:
    """The figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_dump(folder / "1.jsonl", random.Random(1))
        found: list[Row] = []
        # In a thread: the browser's driver has an event loop of its own.
        thread = threading.Thread(target=lambda: found.extend(_writing(folder) + _browsing(folder / "report.html")))
        thread.start()
        thread.join()
        return found


def _writing(folder: Path) -> list[Row]:
    began = time.thread_time()
    file = StepFile(folder / "1.jsonl")
    while not file.advance():
        pass
    reading = time.thread_time() - began
    del file
    before, began = _peak_mb(), time.thread_time()
    write_page(folder)
    writing = time.thread_time() - began
    return [
        figure("page: CPU beyond reading", 100 * (writing / reading - 1), "%", most=20.0),
        figure("page: memory, beyond reading", _peak_mb() - before, "MB", most=200.0),
    ]


def _browsing(page: Path) -> list[Row]:
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        return [skipped("page: in a browser", "needs chromium and playwright")]
    found = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab: Any = browser.new_page(viewport={"width": 1280, "height": 800})
        began = time.monotonic()
        tab.goto(page.as_uri())
        tab.wait_for_selector("body[data-shown]")
        found.append(figure("page: opens", 1000 * (time.monotonic() - began), "ms", most=OPEN_MS))
        for view in VIEWS:
            found.append(figure(f"page: {view}", tab.evaluate(_OPEN, f"#{view}"), "ms", most=OPEN_MS))
            scrolled = tab.evaluate(_SCROLL)
            found.append(figure(f"page: {view}, fifth longest frame", scrolled, "ms", most=FRAME_MS))
        browser.close()
    return found


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _write_dump(path: Path, random: random.Random) -> None:
    logprobs = array(
        "f", (-(random.expovariate(3) ** 2) for _ in range(100_000))
    ).tolist()  # of float32, as engines have
    words = [f"{random.choice('abcdefgh')}{random.getrandbits(18):x}" for _ in range(5000)]
    with path.open("w", encoding="ascii") as file:
        for number in range(ROWS):
            file.write(json.dumps(_row(number, random, logprobs, words)) + "\n")


def _row(number: int, random: random.Random, logprobs: list[float], words: list[str]) -> dict[str, Any]:
    mask = [*([1] * SAMPLED + [0] * INSERTED) * TURNS]
    begin = random.randrange(len(logprobs) - len(mask))
    masked = random.random() < 0.03
    texts = [" ".join(random.choices(words, k=SAMPLED // 2)) for _ in range(TURNS)]
    answer = " ".join(random.choices(words, k=INSERTED // 2))
    call = {"name": "code_interpreter", "outcome": "ok", "text": answer, "wait_s": 0.1, "run_s": random.random()}
    said = [{"role": role, "content": text} for text in texts for role in ("assistant", "tool")]
    starts = [turn * 3.0 for turn in range(TURNS)]
    return {
        "input": "What?",
        "output": " ".join(texts),
        "gts": "",
        "score": None if masked else float(random.random() < 0.4),
        "step": 1,
        "request_id": f"{random.getrandbits(128):032x}",
        "uid": f"group {number // 8}",
        "index": number,
        "masked": masked,
        "cause": "INFRA" if masked else "POLICY",
        "stop_reason": "infra" if masked else "answered",
        "turns": TURNS,
        "prompt_ids": random.choices(range(49152), k=PROMPT),
        "response_ids": random.choices(range(49152), k=len(mask)),
        "response_mask": mask,
        "logprobs": [each if bit else 0.0 for each, bit in zip(logprobs[begin:], mask, strict=False)],
        "segments": [{"kind": "prompt", "length": PROMPT}, {"kind": "sampled", "length": len(mask)}],
        "messages": [{"role": "user", "content": "What?"}, *said],
        "tool_calls": [call | {"turn": turn + 1, "arguments": {"code": texts[turn]}} for turn in range(TURNS)],
        "timings": {"queue_s": 1.0, "engine_s": 9.0, "tool_wait_s": 1.0, "tool_run_s": 5.0, "total_s": 18.0},
        "started_at": 1e9 + number / 100,
        "turn_records": [{"began_s": each, "sampled_s": each + 2, "answered_s": each + 3} for each in starts],
    }
