"""Parts of the page. Networks as a ranking: places, ties, the front, and what is
missing. Figures as data URLs: the same picture in fewer bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from railx.report.arena import arena_sizes
from railx.report.images import image_size, image_source, slim_svg
from tests.builders import write_result

#: Dollars and tokens a second of each network's 100 chips.
NETWORKS = {
    "railx_hyperx": (1000.0, 5_000.0),
    "torus_3d": (2000.0, 4_000.0),
    "opus_rails": (3000.0, 9_000.0),
    "rail_only": (4000.0, 9_000.001),
    "fat_tree": (5000.0, None),
}
Key = tuple[str, str]


def arena_files(results: Path, rows_of: dict[str, dict[Key, Any]], size: int) -> list[Path]:
    """A table of each network."""
    return [
        write_result(
            results,
            "arena.comparison",
            [
                {"network": name, "family": name, "asked_chips": size, "chips": 100, "unit": ""}
                | {"subject": subject, "measure": measure, "value": value, "fidelity": "analytic"}
                | {"note": "no plan fits" if value is None else ""}
                for (subject, measure), value in rows.items()
            ],
            name,
        )
        for name, rows in rows_of.items()
    ]


@pytest.fixture
def size(tmp_path: Path) -> dict[str, Any]:
    rows = {
        name: {
            ("", "usd_chip"): usd,
            ("", "usd_chip_with_node"): 10_000 - usd if name == "fat_tree" else usd,
            ("job", "tokens_per_s"): rate,
            ("job", "usable_share"): 0.5,
            ("fault trace", "largest_share"): 0.9,
            ("uniform at 0.2", "latency_p99"): 100.0,
            ("uniform at 0.8", "latency_p99"): 900.0,
        }
        for name, (usd, rate) in NETWORKS.items()
    }
    rows["hpn"] = {("", "size"): None}
    (ranking,) = arena_sizes(arena_files(tmp_path, rows, 128))
    return ranking


def column(size: dict[str, Any], table: int, title: str) -> dict[str, dict[str, Any]]:
    heads = [head["title"] for head in size["tables"][table]["heads"]]
    names = [network["name"] for network in size["networks"]]
    cells = [row[heads.index(title)] for row in size["tables"][table]["cells"]]
    return dict(zip(names, cells, strict=True))


def test_networks_stand_in_the_order_of_the_first_job(size: dict[str, Any]) -> None:
    names = [network["name"] for network in size["networks"]]
    assert names == ["Rail-only", "Opus rails", "RailX 2D HyperX", "3D torus", "Fat tree"]
    marked = [network["name"] for network in size["networks"] if network["marked"]]
    assert marked == ["Opus rails", "RailX 2D HyperX"]
    assert size["absent"] == [("HPN 7.0", "no plan fits")]


def test_equal_values_share_a_place(size: dict[str, Any]) -> None:
    job = column(size, 0, "Job")
    places = {name: (cell["text"], cell["place"]) for name, cell in job.items()}
    assert places == {
        "Rail-only": ("90.0", 1),
        "Opus rails": ("90.0", 1),
        "RailX 2D HyperX": ("50.0", 3),
        "3D torus": ("40.0", 4),
        "Fat tree": ("–", None),
    }
    assert job["Fat tree"]["why"] == "no plan fits"
    price = column(size, 0, "USD a chip, without them")
    assert (price["RailX 2D HyperX"]["place"], price["Fat tree"]["place"]) == (1, 5)


def test_the_front_is_of_those_that_no_cheaper_network_equals(size: dict[str, Any]) -> None:
    """Rail-only costs more than Opus rails and is faster by a ten-millionth."""
    front = {name for name, cell in column(size, 0, "Job").items() if cell["front"]}
    assert front == {"RailX 2D HyperX", "Opus rails"}
    assert not any(cell["front"] for cell in column(size, 0, "USD a chip, without them").values())


def test_packets_are_those_at_the_highest_load_and_shares_those_of_faults(
    size: dict[str, Any],
) -> None:
    titles = [head["title"] for head in size["tables"][1]["heads"]]
    assert titles == ["Latency p99, load over bound: Uniform at 0.8", "Largest job: Fault trace"]


def test_sizes_with_jobs_come_first(tmp_path: Path) -> None:
    price = {("", "usd_chip"): 1.0}
    job = price | {("job", "tokens_per_s"): 1.0}
    files = [
        path
        for size, rows in ((200_704, price), (1_296, job), (4_096, job))
        for path in arena_files(tmp_path / str(size), {"torus_2d": rows}, size)
    ]
    assert [one["size"] for one in arena_sizes(files)] == [4_096, 1_296, 200_704]
    assert arena_sizes([]) == []


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
