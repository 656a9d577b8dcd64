"""The page in a real browser: filters with and without scripts, light and dark, wide
and narrow; skipped where there is no Chromium.
"""

from __future__ import annotations

import base64
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from railx.evidence import read_papers
from railx.report.images import image_source
from tests.builders import ROOT, write_result
from tests.report.conftest import CLAIMS, PAPERS, Made, arena_files, recorded_rows

DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(DRIVER is None, reason="needs chromedriver on the path"),
]

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
LOADED = (
    "const [done] = arguments;"
    "document.readyState === 'complete' ? done() : addEventListener('load', () => done())"
)
ROWS = "return [...document.querySelectorAll('.claim')].filter(c => c.checkVisibility())"
SIDEWAYS = (
    "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
    " || innerWidth > arguments[0]"
)
#: Published claims that were judged, as the page shows them at first.
UNFOLDED = ["claim_1", "claim_0", "claim_6", "claim_5"]
SHOWN = f"{ROWS}.map(c => c.dataset.claim)"


#: How far the pixels of two pictures lie apart at most, of 255, on most of the picture.
APART = """
const [one, other, done] = arguments;
const draw = async (source) => {
  const image = new Image();
  image.src = source;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = image.naturalWidth;
  canvas.height = image.naturalHeight;
  canvas.getContext("2d").drawImage(image, 0, 0);
  return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
};
(async () => {
  const [a, b] = [await draw(one), await draw(other)];
  const apart = a.map((value, place) => Math.abs(value - b[place])).sort();
  done([a.length === b.length, apart[Math.floor(apart.length * 0.999)]]);
})();
"""
#: The lowest contrast of a text with what lies behind it, and where.
LOWEST_CONTRAST = """
const light = (colour) => {
  const [r, g, b] = colour
    .map((value) => value / 255)
    .map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgba = (text) => {
  pixel.clearRect(0, 0, 1, 1);
  pixel.fillStyle = text;
  pixel.fillRect(0, 0, 1, 1);
  return [...pixel.getImageData(0, 0, 1, 1).data];
};
const behind = (element) => {
  for (let one = element; one; one = one.parentElement) {
    const colour = rgba(getComputedStyle(one).backgroundColor);
    if (colour[3] === 255) return colour;
  }
  return [255, 255, 255];
};
const says = (element) => [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
let worst = [99, ""];
for (const element of document.querySelectorAll("body *")) {
  if (!says(element) || !element.checkVisibility()) continue;
  const [a, b] = [light(rgba(getComputedStyle(element).color)), light(behind(element))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < worst[0]) worst = [ratio, element.outerHTML.slice(0, 100)];
}
return worst;
"""


#: Screens of 800 pixels, words that are shown and elements of a page.
SIZE = """
const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let shown = 0;
while (words.nextNode()) {
  const parent = words.currentNode.parentElement;
  if (parent.closest("script, noscript") || !parent.checkVisibility()) continue;
  shown += words.currentNode.data.split(/\\s+/).filter(Boolean).length;
}
const elements = document.querySelectorAll("*").length;
return [document.documentElement.scrollHeight / 800, shown, elements];
"""


@pytest.fixture(scope="module")
def browser(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., None]]:
    """Open a page anew in a window of a width and colour scheme, with scripts or
    without.
    """

    def open_page(
        page: Path,
        place: str = "",
        *,
        width: int = 1280,
        scheme: str = "light",
        script: bool = True,
    ) -> None:
        window = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", window)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not script})
        # A change of the place alone would not load the page again.
        browser.get("about:blank")
        browser.get(page.as_uri() + place)
        if script:
            browser.execute_async_script(LOADED)

    yield open_page
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def complaints(browser: Any) -> list[str]:
    return [
        entry["message"]
        for entry in browser.get_log("browser")
        if entry["level"] in ("SEVERE", "WARNING")
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_everything_is_shown_and_nothing_is_cut_off(
    browser: Any, visit: Callable[..., None], made: Made, report: Path, scheme: str, width: int
) -> None:
    visit(report, width=width, scheme=scheme)
    assert complaints(browser) == []
    assert not browser.execute_script(SIDEWAYS, width)
    # What is wider than the page scrolls in a region of its own.
    outside = (
        "return [...document.querySelectorAll('main *')]"
        ".filter(e => !e.closest('.scroll, pre, .key') && e.checkVisibility())"
        ".filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.execute_script(outside) == []
    assert not browser.execute_script(SIDEWAYS, width)
    assert len(browser.execute_script(SHOWN)) == len(CLAIMS)
    dark = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (dark != "rgb(255, 255, 255)") == (scheme == "dark")
    images = browser.execute_script(
        "return [...document.images].map(i => [i.complete, i.naturalWidth > 0, i.currentSrc])"
    )
    for figure, (complete, drawn, source) in zip(made.parts["figures"], images, strict=True):
        assert complete
        assert drawn
        wanted = figure.dark if scheme == "dark" else figure.image
        assert source.replace('"', "").replace("%22", "") == image_source(wanted).replace('"', "")


def test_text_has_enough_contrast_in_both_schemes(
    browser: Any, visit: Callable[..., None], report: Path
) -> None:
    for scheme in ("light", "dark"):
        visit(report, scheme=scheme)
        ratio, where = browser.execute_script(LOWEST_CONTRAST)
        assert ratio >= 4.5, (scheme, where)


def test_a_slim_figure_looks_like_the_drawn_one(
    browser: Any, visit: Callable[..., None], made: Made, report: Path
) -> None:
    drawn = made.parts["figures"][1].image
    whole = f"data:image/svg+xml;base64,{base64.b64encode(drawn.read_bytes()).decode()}"
    visit(report)
    same_size, apart = browser.execute_async_script(APART, whole, image_source(drawn))
    assert same_size
    assert apart <= 8


def choose(browser: Any, key: str, value: str) -> None:
    """Choose with the keyboard's element, as a reader does."""
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element("css selector", f"#filter [name={key}]")).select_by_visible_text(
        value
    )


def test_filters_narrow_the_claims_and_stand_in_the_address(
    browser: Any, visit: Callable[..., None], report: Path
) -> None:
    visit(report)
    choose(browser, "paper", "Rival")
    assert browser.execute_script(SHOWN) == ["claim_6", "claim_5"]
    assert browser.execute_script("return location.hash") == "#paper=rival"
    sections = (
        "return [...document.querySelectorAll('section.paper')].filter(s => s.checkVisibility())"
        ".map(s => s.id)"
    )
    assert browser.execute_script(sections) == ["paper-rival"]
    choose(browser, "verdict", "not reproduced")
    assert browser.execute_script(SHOWN) == ["claim_6"]
    assert browser.execute_script("return location.hash") == "#paper=rival&verdict=not+reproduced"
    assert browser.find_element("id", "shown").text == f"1 of {len(CLAIMS)}"
    browser.find_element("css selector", "#filter [type=reset]").click()
    assert browser.execute_script(SHOWN) == UNFOLDED
    assert browser.find_element("id", "shown").text == f"{len(CLAIMS)} claims"
    choose(browser, "fidelity", "none")
    assert browser.execute_script(SHOWN) == ["claim_3"]
    # Figures and tables stand aside while single claims are looked for.
    assert not browser.find_element("id", "figure-bandwidth").is_displayed()
    assert not browser.find_element("id", "tables").is_displayed()


def test_an_address_opens_the_page_filtered(
    browser: Any, visit: Callable[..., None], report: Path
) -> None:
    visit(report, "#verdict=reproduced&paper=opus")
    assert browser.execute_script(SHOWN) == ["claim_4"]
    visit(report, "#verdict=nonsense")
    assert browser.execute_script(SHOWN) == UNFOLDED


def test_a_link_to_what_is_hidden_or_folded_shows_it(
    browser: Any, visit: Callable[..., None], report: Path
) -> None:
    visit(report, "#verdict=reproduced")
    browser.execute_script("location.hash = 'table-0'")
    open_table = "return document.getElementById('table-0').open"
    browser.execute_async_script("requestAnimationFrame(arguments[0])")
    assert browser.execute_script(open_table)
    assert browser.find_element("id", "table-0").is_displayed()
    visit(report, "#claim-claim_3")
    assert browser.execute_script("return document.getElementById('claim-claim_3').open")


def test_counts_lead_to_what_they_count(
    browser: Any, visit: Callable[..., None], report: Path
) -> None:
    visit(report)
    link = '[data-filter="fidelity=measured_cpu&verdict=undecided"] a'
    browser.execute_script("document.querySelector(arguments[0]).click()", link)
    browser.execute_async_script("requestAnimationFrame(arguments[0])")
    assert browser.execute_script(SHOWN) == ["claim_5"]


def test_the_filter_is_reached_and_used_by_keyboard(
    browser: Any, visit: Callable[..., None], report: Path
) -> None:
    from selenium.webdriver.common.keys import Keys

    visit(report)
    browser.execute_script("document.querySelector('#filter [name=paper]').focus()")
    reached = []
    for _ in range(4):
        active = browser.switch_to.active_element
        reached.append(active.get_attribute("name") or active.text)
        active.send_keys(Keys.TAB)
    assert reached == ["paper", "verdict", "fidelity", "Show all"]
    browser.find_element("css selector", "#filter [name=verdict]").send_keys("undecided")
    assert browser.execute_script(SHOWN) == ["claim_5"]
    claim = browser.find_element("css selector", "#claim-claim_5 summary")
    claim.send_keys(Keys.ENTER)
    assert browser.execute_script("return document.getElementById('claim-claim_5').open")


def test_without_scripts_everything_stands_there_unfiltered(
    browser: Any, visit: Callable[..., None], report: Path
) -> None:
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    visit(report, "#verdict=reproduced", script=False)
    # Nothing on the page can say when it is complete: its last line is waited for.
    WebDriverWait(browser, 60).until(lambda page: page.find_elements("css selector", "footer"))
    assert len(browser.find_elements("css selector", ".claim")) == len(CLAIMS)
    for group in browser.find_elements("css selector", ".claims-group:not([open]) > summary"):
        group.send_keys(Keys.ENTER)
    WebDriverWait(browser, 60).until(
        lambda page: all(row.is_displayed() for row in page.find_elements("css selector", ".claim"))
    )
    assert not browser.find_element("id", "filter").is_displayed()
    claim = browser.find_element("css selector", "#claim-claim_0")
    claim.find_element("css selector", "summary").send_keys(Keys.ENTER)
    command = claim.find_element("css selector", "pre.command")
    # The browser opens the row a frame after the key.
    WebDriverWait(browser, 60).until(lambda _: command.is_displayed())
    assert browser.find_elements("css selector", "[data-filter] a") == []


def test_no_other_script_or_style_can_run(
    browser: Any, visit: Callable[..., None], report: Path, tmp_path: Path
) -> None:
    html = report.read_text(encoding="utf-8")
    smuggled = (
        "<script>document.title = 'run'</script><style>body { display: none }</style>"
        "<img src='https://example.org/x.png' alt='x' onerror=\"document.title = 'run'\"></main>"
    )
    page = tmp_path / "smuggled.html"
    page.write_text(html.replace("</main>", smuggled, 1), encoding="utf-8")
    visit(page)
    assert browser.title == "RailX Lab: what held in experiment quick"
    assert browser.find_element("tag name", "main").is_displayed()
    refusals = " ".join(complaints(browser))
    for directive in ("script-src", "style-src", "img-src"):
        assert directive in refusals


@pytest.mark.parametrize(("experiment", "networks"), [("quick", 33), ("paper", 0)])
def test_a_page_of_all_claims_is_one_that_people_finish(
    browser: Any,
    visit: Callable[..., None],
    made: Made,
    tmp_path: Path,
    experiment: str,
    networks: int,
) -> None:
    rows = recorded_rows(experiment)
    parts = made.parts
    figures = [
        dataclasses.replace(parts["figures"][1], name=f"figure_{number}") for number in range(45)
    ]
    page = made.write(
        tmp_path / "page.html",
        experiment=experiment,
        papers=read_papers(ROOT / PAPERS),
        claims=write_result(tmp_path, "evidence.claims", rows),
        figures=[parts["figures"][0], *figures],
        tables=[parts["tables"][0]] * 100,
        judged=(),
        arena=arena_files(tmp_path, networks),
    )
    visit(page)
    screens, words, elements = browser.execute_script(SIZE)
    assert screens <= 22
    assert words <= 7_000
    assert elements <= 10_000
    assert browser.find_element("id", "shown").text == f"{len(rows)} claims"
    # Two screens say what held here and in `paper`, and what nobody can test.
    head = browser.find_element("css selector", "body > header")
    assert head.rect["y"] + head.rect["height"] <= 1_600
    counts = {row["verdict"] for row in rows if row["kind"] == "published"}
    assert all(verdict in head.text for verdict in counts)
    assert ("Recorded in paper:" in head.text) == (experiment == "quick")
    assert "Nobody can test" in head.text
    # All claims are there all the same.
    browser.find_element("id", "unfold").click()
    assert len(browser.execute_script(SHOWN)) == len(rows)
    assert browser.execute_script(SIZE)[2] > 10_000
