"""Pages of runs, read as a program and in a real browser."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rollout.dump import DumpWriter, record_of
from rollout.loop import Task, TrajectoryResult
from rollout.page import write_page

DEADLINE_MS = 60_000
_INSTALL = "apt-get install -y --no-install-recommends chromium && pip install playwright"


def page_of(folder: Path, **options: Any) -> Path:
    return write_page(folder, **options)


def page_facts(page: Path) -> Any:
    """The figures that a page holds."""
    found = re.search(r'id="facts">([A-Za-z0-9+/=]+)<', page.read_text(encoding="utf-8"))
    assert found is not None
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


def write_dump(folder: Path, *results: TrajectoryResult, step: int = 1, model: str = "none") -> list[dict[str, Any]]:
    """Writes results as `fairbox rollout` does; the records."""
    records = []
    with DumpWriter(folder, step) as dump:
        for result in results:
            task = Task(result.uid, ({"role": "user", "content": "?"},), "6", "test", "here:1")
            records.append(record_of(result, task, step=step, model=model, decode=str))
            dump.write(records[-1])
    return records


class Tab:
    """A tab of the browser, and what went wrong in it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: list[str] = []
        self.asked: list[str] = []
        """Every address that it loaded, or wanted to."""
        page.set_default_timeout(DEADLINE_MS)
        page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", self._refuse)
        page.on("request", lambda request: self.asked.append(request.url))

    def _refuse(self, dialog: Any) -> None:
        self.problems.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, path: Path) -> None:
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("body[data-shown]")

    def go(self, **state: object) -> None:
        """Goes to a view and waits until it is there."""
        shown = self.page.evaluate(
            "state => { const hash = `#${new URLSearchParams(state)}`; delete document.body.dataset.shown; "
            "if (location.hash === hash) dispatchEvent(new Event('hashchange')); else location.hash = hash; "
            "return hash; }",
            {name: str(value) for name, value in state.items()},
        )
        self.page.wait_for_selector(f'body[data-view="{state["view"]}"][data-shown="{shown}"]')

    def text(self, selector: str = "main") -> str:
        return str(self.page.inner_text(selector))

    def all(self, selector: str) -> list[str]:
        return [str(each) for each in self.page.locator(selector).all_inner_texts()]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium; of one module, because its driver has the thread's event loop as long as it runs."""
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        pytest.skip(f"pages are tested in a browser: {_INSTALL}")
    with sync_playwright() as playwright:
        args = ["--no-sandbox", "--disable-dev-shm-usage"]
        found = playwright.chromium.launch(executable_path=chromium, args=args, timeout=DEADLINE_MS)
        yield found
        found.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    """A fresh tab, in which nothing may go wrong."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    tab = Tab(context.new_page())
    yield tab
    context.close()
    assert tab.problems == []


def exact(tab: Tab, selector: str, key: str) -> Mapping[str, Any]:
    """Numbers of the shown page to the last bit, by name."""
    script = "(nodes, key) => nodes.map(node => [node.dataset[key], node.dataset.exact])"
    pairs: Sequence[Sequence[str]] = tab.page.eval_on_selector_all(selector, script, key)
    return {name: json.loads(text) for name, text in pairs}
