"""The page to explore: what is in it, and in a real browser what sliders change."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railx.design.front import design
from railx.design.page import page_text, sizes_of
from railx.design.settings import DesignSettings
from tests.builders import topology_settings
from tests.design.points import SAMPLE, designed
from tests.report.conftest import chromium
from tests.report.test_page_browser import LOADED, SIDEWAYS, browser, visit

__all__ = ["browser", "chromium", "visit"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    answer = designed(SAMPLE, budget_usd=6e6)
    half = designed([replace(p, step_s=2 * p.step_s) for p in SAMPLE])
    smaller = replace(half, settings=replace(half.settings, gpus=50))
    path = tmp_path_factory.mktemp("page") / "design.html"
    path.write_text(page_text(answer, [smaller, answer]), encoding="utf-8")
    return path


def test_the_page_is_one_small_file(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text) < 2e6
    assert not re.search(r"(?:src|href)=\"(?!data:)", text)
    assert "fetch(" not in text
    assert "import " not in text.partition("<script>")[2]
    visible = re.sub(r"<(script|style)\b.*?</\1>", " ", text, flags=re.DOTALL)
    assert len(re.sub(r"<[^>]+>", " ", visible).split()) < 1500
    (data,) = re.findall(r'id="data">(.*?)</script>', text)
    assert json.loads(data)["gpus"] == [50, 100]
    assert len(json.loads(data)["points"]) == 2 * len(SAMPLE)


def test_usable_shares_are_those_of_the_design_at_its_faults() -> None:
    space = DesignSettings(
        gpus=64,
        global_batch=64,
        faults=0.03,
        fault_samples=6,
        most_chips=2.0,
        networks={"railx": topology_settings("railx_hyperx")},
    )
    answer = design(space)
    (data,) = re.findall(r'id="data">(.*?)</script>', page_text(answer, [answer]))
    rates = json.loads(data)["rates"]
    assert rates == [0, 0.005, 0.01, 0.02, 0.03, 0.04]
    (share,) = (point["usable"][4] for point in json.loads(data)["points"])
    assert 0 < share == answer.front[0].usable.share < 1


def test_no_text_of_a_point_is_markup() -> None:
    hostile = replace(SAMPLE[0], name="</script><b>x", notes=("<i>y",))
    text = page_text(designed([hostile]), [designed([hostile])])
    assert "<b>x" not in text
    assert "<i>y" not in text


def test_sizes_are_a_quarter_a_half_and_all() -> None:
    assert sizes_of(4096) == (1024, 2048, 4096)
    assert sizes_of(40) == (20, 40)


@pytest.fixture
def opened(visit: Any, browser: Any, page: Path) -> Any:
    visit(page)
    browser.execute_async_script(LOADED)
    return browser


FRONT = "return [...document.querySelectorAll('#front tr td:first-child')].map(c => c.textContent)"
SLIDE = """
const [id, value] = arguments;
const slider = document.getElementById(id);
slider.value = value;
slider.dispatchEvent(new Event("input", { bubbles: true }));
"""
SUMMARY = "return document.getElementById('summary').textContent"


@pytest.mark.system
def test_sliders_draw_the_front_anew(opened: Any) -> None:
    answer = designed(SAMPLE)
    everything = [point.name for point in answer.front]
    assert opened.execute_script(FRONT) == everything == ["fast", "middle", "cheap"]
    # A budget of 2 M USD leaves out the fast network of 5.6.
    opened.execute_script(SLIDE, "budget", 6.3)
    assert opened.execute_script(FRONT) == ["middle", "cheap"]
    circles = "return document.querySelectorAll('#plot circle').length"
    assert opened.execute_script(circles) == 3
    assert "2 of 4 networks are on the front, 1 over the budget; the fastest is middle" in (
        opened.execute_script(SUMMARY)
    )
    # At four times the price of OCS ports the middle one is over the budget, too.
    opened.execute_script(SLIDE, "ocs_port", 2)
    assert opened.execute_script(FRONT) == ["cheap"]
    shown = "return document.getElementById('ocs_port_shown').textContent"
    assert opened.execute_script(shown) == "2,000 USD"
    opened.execute_script(SLIDE, "budget", 5)
    assert "This budget buys nothing; the nearest that works is cheap for 0.2" in (
        opened.execute_script(SUMMARY)
    )
    opened.execute_script(SLIDE, "budget", 8)
    opened.execute_script(SLIDE, "gpus", 0)
    assert "the fastest is fast with 2 s" in opened.execute_script(SUMMARY)
    assert opened.get_log("browser") == []


@pytest.mark.system
def test_a_point_says_its_reason(opened: Any) -> None:
    click = "document.querySelector('circle[data-network=%s]').dispatchEvent(new Event('click'))"
    reason = "return document.getElementById('reason').textContent"
    opened.execute_script(click % "middle")
    assert "Plan: data 100" in opened.execute_script(reason)
    assert "Setting: ports of 400 Gbit/s, n " in opened.execute_script(reason)
    # Beside the next faster, which takes a third less time and 5.6 M USD for 1.04.
    assert (
        "On the front: no network is better in all four. fast instead: step time −33 %,"
        " dollars +440 %, watts +1,400 %, usable share +0 %."
    ) in opened.execute_script(reason)
    opened.execute_script(click % "fast")
    assert "On the front, first by step time. middle instead: step time +50 %" in (
        opened.execute_script(reason)
    )
    opened.execute_script(click % "beaten")
    assert "Not on the front: middle is no worse in all four and better in at least one." in (
        opened.execute_script(reason)
    )


@pytest.mark.system
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_telephone_shows_it(visit: Any, browser: Any, page: Path, scheme: str) -> None:
    visit(page, width=400, scheme=scheme)
    browser.execute_async_script(LOADED)
    assert not browser.execute_script(SIDEWAYS, 400)
    ticks = "return [...document.querySelectorAll('#plot text[text-anchor=middle]')].map(t => t.textContent)"  # noqa: E501
    assert browser.execute_script(ticks) == ["1", "1.5", "2", "2.5", "Step (s)"]
    smallest = "return Math.min(...[...document.querySelectorAll('#plot text')].map(t => t.getBoundingClientRect().height))"  # noqa: E501
    assert browser.execute_script(smallest) >= 11


@pytest.mark.system
def test_the_front_stands_without_scripts(visit: Any, browser: Any, page: Path) -> None:
    visit(page, script=False)
    cells = browser.find_elements("css selector", "#front tr td:first-child")
    assert [cell.text for cell in cells] == ["fast", "middle", "cheap"]
