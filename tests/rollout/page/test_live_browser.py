"""A page that is served while its run goes on, in a real browser."""

from __future__ import annotations

from pathlib import Path

from tests.rollout.page.conftest import Tab, write_dump
from tests.rollout.page.test_figures import results
from tests.rollout.page.test_live import served


def test_a_page_is_told_of_what_comes_and_read_again(tab: Tab, tmp_path: Path) -> None:
    write_dump(tmp_path, *results()[:2], step=1)
    with served(tmp_path) as url:
        tab.page.goto(f"{url}#view=rows")
        tab.page.wait_for_selector("body[data-shown]")
        assert "2 of 2 rows" in tab.text()
        assert tab.page.is_hidden("#more")
        write_dump(tmp_path, *results(), step=2)
        tab.page.wait_for_selector("#more:not([hidden])")
        tab.page.click("#more")
        tab.page.wait_for_selector(f"text={2 + len(results())} of {2 + len(results())} rows")
        assert tab.page.evaluate("location.hash") == "#view=rows"
        assert tab.page.is_hidden("#more")
    assert all(asked.startswith(url) for asked in tab.asked)
