"""The page in Chromium: what a person sees and clicks. Skipped where chromium or playwright is absent; axe-core where it is not named.

apt-get install chromium; pip install '.[browser]'; npm pack axe-core; STOKER_AXE=…/axe.min.js pytest tests/pages
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import MARKUP, busy_daemon, link
from e2e import DaemonProcess
from waiting import patient

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = Path(os.environ.get("STOKER_AXE") or "/nowhere")
api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[browser]'")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("page"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium"),
]

PAGES = {
    "Now": "", "job that runs": "jobs/112", "job that has ended": "jobs/1", "job that waits": "jobs/119", "GPUs": "gpus?span=6h",
    "Policies": "policies", "Simulations": "simulations", "SQL": "sql", "answer": "sql?q=SELECT+id,+run_time,+name+FROM+jobs+ORDER+BY+id",
    "asked": "jobs/119/cancel",
}  # fmt: skip


@pytest.fixture(scope="module")
def daemon(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with busy_daemon(template, tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])  # a sandbox needs rights that tests may lack
        yield browser
        browser.close()


class Watched:
    """A page, and what was wrong with it."""

    def __init__(self, chromium: Any, url: str, width: int, scheme: str, *, script: bool = True) -> None:
        self.base = url.partition("?")[0]
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=script)
        context.set_default_timeout(patient(10) * 1000)
        self.page = context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", lambda line: self.wrong.append(line.text) if line.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"a dialog: {dialog.message}"))
        self.page.on("request", lambda asked: self.wrong.append(asked.url) if not asked.url.startswith((self.base, "data:")) else None)
        self.page.goto(url)
        self.page.wait_for_selector("header nav")

    def see(self, path: str) -> None:
        self.page.goto(self.base + path)
        self.page.wait_for_selector("h1")


@pytest.mark.parametrize(("width", "scheme"), [(420, "dark"), pytest.param(1280, "light", marks=pytest.mark.nightly)])
def test_every_page_fits_asks_nobody_else_and_can_be_read(daemon: DaemonProcess, chromium: Any, width: int, scheme: str) -> None:
    watched = Watched(chromium, link(daemon), width, scheme)
    for name, path in PAGES.items():
        watched.see(path)
        if watched.page.locator("[data-plots], [data-plot]").count():
            watched.page.wait_for_selector(".u-wrap, .plots .empty")
        beyond = watched.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert beyond <= 0, f"{name} is wider than {width} px"
        if AXE.is_file():
            watched.page.evaluate(AXE.read_text())
            found = watched.page.evaluate(
                "axe.run().then(all => all.violations.map(one => one.id + ' ' + one.nodes[0].html.slice(0, 200)))"
            )
            assert found == [], name
    assert watched.wrong == []


def test_it_is_clicked_through(daemon: DaemonProcess, chromium: Any) -> None:
    watched = Watched(chromium, link(daemon), 1280, "light")
    page = watched.page
    page.get_by_role("link", name="job-118").first.click()
    assert page.get_by_role("heading", level=1).inner_text() == "118 job-118"
    for action, yes, then in (("Hold…", "Hold it", "Release…"), ("Release…", "Release it", "Hold…"), ("Cancel…", "Cancel it", "")):
        page.get_by_role("link", name=action).click()
        page.get_by_role("link", name="No, go back").click()
        page.get_by_role("link", name=action).click()
        page.get_by_role("button", name=yes).click()
        page.get_by_role("link", name=then).wait_for() if then else page.get_by_text("cancelled").first.wait_for()
    assert daemon.client().get("/v1/jobs/118")["job"]["state"] == "cancelled"
    page.get_by_role("link", name="SQL", exact=True).click()
    page.get_by_role("textbox").fill("SELECT id, run_time FROM jobs ORDER BY id")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".u-wrap")
    assert "q=SELECT" in page.url and page.get_by_text("120 rows in").count() == 1
    page.get_by_role("link", name="Now", exact=True).click()
    page.get_by_label("text").fill(MARKUP)
    page.keyboard.press("Enter")
    page.wait_for_url("**text=%3Cscript%3E**")
    assert page.get_by_text(MARKUP).count() >= 1 and page.locator("main script").count() == 0
    assert watched.wrong == []


def test_it_says_that_the_daemon_was_killed_and_goes_on(daemon: DaemonProcess, chromium: Any) -> None:
    watched = Watched(chromium, link(daemon), 1280, "dark")
    page = watched.page
    page.wait_for_selector("#queue table")
    daemon.kill()
    page.get_by_text("The daemon has not answered since").wait_for()
    assert page.locator("#queue tbody tr").count() > 0  # what it last said stays
    daemon.start()
    daemon.client().post("/v1/jobs/117/priority", {"priority": 77})
    page.locator("#queue td", has_text="77").first.wait_for()
    assert page.locator("#news").inner_text() == ""


@pytest.mark.nightly
def test_it_works_without_a_script(daemon: DaemonProcess, chromium: Any) -> None:
    watched = Watched(chromium, link(daemon), 420, "light", script=False)
    watched.see("jobs/116")
    watched.page.get_by_role("link", name="Priority…").click()
    watched.page.get_by_role("spinbutton").fill("5")
    watched.page.get_by_role("button", name="Set it").click()
    watched.page.get_by_role("heading", name="116 job-116").wait_for()
    assert daemon.client().get("/v1/jobs/116")["job"]["priority"] == 5
