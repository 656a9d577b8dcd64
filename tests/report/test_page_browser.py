"""The page in a real browser, light and dark; skipped where there is no Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs chromium and chromedriver on the path"
)

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,1600",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_opens_without_errors_and_shows_everything(
    browser: Any, report: Path, scheme: str
) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(report.as_uri())
    assert [
        entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")
    ] == []
    images = "return [...document.images].map(i => [i.complete, i.naturalWidth, i.alt])"
    assert all(
        complete and width > 0 and alt for complete, width, alt in browser.execute_script(images)
    )
    assert browser.execute_script("return document.images.length") == 2
    assert browser.execute_script("return document.querySelectorAll('tr[data-claim]').length") == 5
    assert (
        browser.execute_script(
            "return performance.getEntriesByType('resource').filter(e =>"
            " !e.name.startsWith('data:')).length"
        )
        == 0
    )
    dark = (
        browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        != "rgb(255, 255, 255)"
    )
    assert dark == (scheme == "dark")


def test_page_does_not_scroll_sideways_on_a_phone(browser: Any, report: Path) -> None:
    phone = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    browser.get(report.as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
