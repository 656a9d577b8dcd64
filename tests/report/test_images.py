"""Figures as data URLs: the same picture in fewer bytes."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest

from railx.report.images import image_size, image_source, slim_svg

SVG = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/svg11.dtd">
<svg xmlns="http://www.w3.org/2000/svg" width="72pt" height="36.5pt" viewBox="0 0 72 36.5">
 <!-- made for people -->
 <metadata><date>today</date></metadata>
 <path d="M 12.345678 3.5
L 100.999999 -0.000001 z
" transform="scale(0.015625)" style="fill: #1f77b4"/>
 <text x="4.123456" y="20">Two  words &amp; <tspan>1.23456</tspan> <tspan>'b'</tspan></text>
</svg>
"""


def test_a_slim_svg_is_the_same_picture() -> None:
    assert slim_svg(SVG) == (
        '<svg xmlns="http://www.w3.org/2000/svg" width="72pt" height="36.5pt"'
        ' viewBox="0 0 72 36.5">'
        '<path d="M12.35,3.5L101,0z" transform="scale(0.015625)" style="fill: #1f77b4"/>'
        '<text x="4.123456" y="20">Two  words &amp; <tspan>1.23456</tspan> <tspan>\'b\'</tspan>'
        "</text></svg>"
    )


def test_looks_that_repeat_bare_groups_and_long_names_are_said_once() -> None:
    line = """<g><path clip-path="url(#figure-7)" style="stroke: #000000; fill: 'x'"/></g>"""
    kept = '<g transform="scale(2)"><use xlink:href="#figure-8"/></g><g/>'
    names = '<defs><clipPath id="figure-7"/><path id="figure-8"/></defs>'
    assert slim_svg(f"<svg>{line * 3}{kept}{names}</svg>") == (
        "<svg><style>.c0{stroke: #000000; fill: 'x'}</style>"
        + '<path clip-path="url(#n0)" class="c0"/>' * 3
        + '<g transform="scale(2)"><use xlink:href="#n1"/></g>'
        + '<defs><clipPath id="n0"/><path id="n1"/></defs></svg>'
    )
    # Twice is no shorter as a class.
    assert "<style>" not in slim_svg(f"<svg>{line * 2}</svg>")


def test_an_svg_becomes_an_address_for_an_attribute_in_single_quotes(tmp_path: Path) -> None:
    path = tmp_path / "figure.svg"
    path.write_text(SVG)
    source = image_source(path)
    assert source.startswith("data:image/svg+xml,%3Csvg")
    # A list of sources ends at a space, the attribute at a quote, the address at a #.
    assert not set(source) & set(" '#<>&\n")
    assert unquote(source.partition(",")[2]) == slim_svg(SVG)
    assert image_size(path) == (96, 49)


def test_what_is_too_large_becomes_its_png(tmp_path: Path) -> None:
    path = tmp_path / "figure.svg"
    path.write_text(SVG.replace("made for people", "x" * 600_000))
    path.with_suffix(".png").write_bytes(b"picture")
    assert image_source(path) == "data:image/png;base64,cGljdHVyZQ=="
    path.with_suffix(".png").unlink()
    assert image_source(path).startswith("data:image/svg+xml,")


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "figure.gif"
    path.write_bytes(b"picture")
    with pytest.raises(ValueError, match=r"figure\.gif: not an image .*; allowed: \.svg, \.png$"):
        image_source(path)
    assert image_size(path) is None
