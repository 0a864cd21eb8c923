"""Every view of a page, examined by axe-core for what keeps people out: no fault of any kind, in light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.rollout.page.conftest import page_of, write_dump
from tests.rollout.page.test_figures import results

VIEWS = (
    *("view=run", "view=rows&sort=-score", "view=time", "view=groups", "view=find", "view=compare"),
    *("view=row&row=0", "view=row&row=0&tab=tokens", "view=group&row=0"),
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_found(browser: Any, tmp_path: Path, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe  # here: without a browser the test is skipped

    axe, options = Axe(), {"resultTypes": ["violations"]}
    if scheme == "dark":  # colours are all that it changes
        options["runOnly"] = ["color-contrast"]
    for step in (1, 2):
        write_dump(tmp_path, *results(), step=step)
    page = page_of(tmp_path)
    # The page's own policy would refuse the program that examines it.
    context = browser.new_context(bypass_csp=True, color_scheme=scheme, viewport={"width": 1280, "height": 800})
    tab = context.new_page()
    found = []
    for view in VIEWS:
        tab.goto(f"{page.as_uri()}#{view}")
        tab.reload()
        tab.wait_for_selector("body[data-shown]")
        faults = axe.run(tab, options=options).response["violations"]
        found += [(view, each["id"], each["nodes"][0]["html"]) for each in faults]
    context.close()
    assert found == []
