"""The page as PDF: printed by a real Chromium, in the style for paper."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from railx.report.pdf import find_chromium, print_pdf

pytestmark = pytest.mark.system

_PAGE = re.compile(rb"/Type\s*/Page\b")
_TITLE = re.compile(rb"/Title \(((?:[^()\\]|\\.)*)\)")


def test_the_page_is_printed_with_its_verdicts(
    chromium: str, report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHROMIUM", chromium)
    pdf = tmp_path / "report.pdf"
    print_pdf(report, pdf)
    content = pdf.read_bytes()
    outline = [title.decode("latin-1") for title in _TITLE.findall(content)]
    for heading in ("What did not hold, and why", "Not reproduced 1 of 5", "Undecided 1 of 5"):
        assert heading in outline
    # Links to papers can be followed, and details are unfolded: more than two pages.
    assert b"https://arxiv.org/abs/2601.00001" in content
    assert len(_PAGE.findall(content)) > 5
    assert [path.name for path in tmp_path.iterdir()] == ["report.pdf"]


def test_without_chromium_one_line_says_what_to_do(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"^no Chromium to print with: none of chromium, .*apt"):
        print_pdf(report, tmp_path / "report.pdf")
    monkeypatch.setenv("CHROMIUM", "nothing")
    with pytest.raises(ValueError, match=r"^CHROMIUM: got 'nothing', which is no program; allow"):
        find_chromium()


def test_without_a_page_one_line_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"report\.html: no such page; make it first"):
        print_pdf(tmp_path / "report.html", tmp_path / "report.pdf")


def test_a_chromium_that_prints_nothing_is_named(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no display >&2\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CHROMIUM", str(broken))
    with pytest.raises(ValueError, match=r"broken: did not print .*report\.html: no display$"):
        print_pdf(report, tmp_path / "report.pdf")
    assert not (tmp_path / "report.pdf").exists()
