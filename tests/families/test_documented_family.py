"""The family of docs/howto.md, from the text of the page."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import railx.families
from railx.families import Family, build_routing, build_topology, registered
from railx.settings import SettingsError, load
from railx.vocabulary.routing.analysis import check_deadlock_free, check_delivery
from tests.builders import ROOT

_SECTION = re.compile(r"^## A network family\n(.*?)^## ", re.DOTALL | re.MULTILINE)
_BLOCK = re.compile(r"^```(python|yaml)\n(.*?)^```", re.DOTALL | re.MULTILINE)
FILES = ("ladder.py", "ladder.yaml")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page in a folder of their own."""
    (section,) = _SECTION.findall((ROOT / "docs/howto.md").read_text())
    blocks = [text for _, text in _BLOCK.findall(section)]
    folder = tmp_path_factory.mktemp("families")
    for name, text in zip(FILES, blocks, strict=True):
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def ladder(written: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Family[Any]]:
    # As if the file were in railx/families.
    monkeypatch.setattr(railx.families, "__path__", [*railx.families.__path__, str(written)])
    family = importlib.import_module("railx.families.ladder").FAMILY
    with registered(family):
        yield family
    del sys.modules["railx.families.ladder"]
    if hasattr(railx.families, "ladder"):
        del railx.families.ladder


def test_the_family_of_the_page_keeps_the_laws(ladder: Family[Any], written: Path) -> None:
    file = yaml.safe_load((written / "ladder.yaml").read_text())
    plain = {"family": file["family"]}
    for variant in ({}, {"length": 2}, {"length": 5}, *file["choices"].values()):
        settings = load(ladder.settings, plain | variant, "topology")
        topology = build_topology(settings)
        length = variant.get("length", 8)
        assert topology.chips == 2 * length
        assert len(topology.links) == 2 * (3 * length - 2)
        cut = ladder.halves(settings)
        across = cut[topology.links.src] < cut[topology.links.dst]
        assert int(topology.links.lanes[across].sum()) == ladder.bisection_ports(settings)
        out = np.bincount(topology.links.src, topology.links.lanes, minlength=topology.chips)
        assert out.max() <= ladder.ports_per_chip(settings)
        for routing in ladder.routings:
            table = build_routing(topology, routing)
            check_delivery(topology, table)
            check_deadlock_free(topology, table)
    with pytest.raises(SettingsError, match=r"^topology\.length: got 1; allowed: at least 2"):
        load(ladder.settings, plain | {"length": 1}, "topology")


def test_the_page_says_where_the_files_go() -> None:
    (section,) = _SECTION.findall((ROOT / "docs/howto.md").read_text())
    assert "`railx/families/ladder.py`" in section
    assert "`conf/topology/ladder.yaml`" in section
    registry = (ROOT / "railx/families/registry.py").read_text()
    assert "    mesh_2d,\n" in registry
    assert "    mesh_2d.FAMILY,\n" in registry
