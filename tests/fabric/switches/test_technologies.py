"""The files of conf/fabric that name a technology say what its row says."""

from __future__ import annotations

import csv
import re

import pytest

from railx.fabric import FabricSettings
from railx.fabric.settings import EmulatedSwitchSettings
from railx.settings import SettingsError, load, to_dict
from tests.builders import ROOT, checked
from workflow.mounts import choices

_UNITS_MS = {"ms": 1.0, "us": 1e-3, "ns": 1e-6}


def rows() -> dict[str, dict[str, str]]:
    table = ROOT / "resources" / "published" / "opus_ocs_technologies.csv"
    with table.open(encoding="utf-8") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


TECHNOLOGIES = {
    name: checked("fabric", name).switch
    for name in choices("fabric")
    if name not in ("rails", "netconf")
}


@pytest.mark.parametrize("name", TECHNOLOGIES)
def test_a_file_says_what_its_row_says(name: str) -> None:
    switch = TECHNOLOGIES[name]
    assert isinstance(switch, EmulatedSwitchSettings)
    row = rows()[str(switch.technology)]
    assert row["ports"].split()[0] == str(switch.ports)
    assert switch.ports is not None
    assert switch.switching_ms is not None
    found = re.search(r"([0-9.]+) (ms|us|ns)", row["switching_time"])
    assert found is not None
    published_ms = float(found[1]) * _UNITS_MS[found[2]]
    if row["switching_time"].startswith("bulk"):
        whole_ms = switch.switching_ms + switch.per_port_ms * (switch.ports - 2)
        assert whole_ms == pytest.approx(published_ms, rel=1e-3)
    else:
        assert (switch.switching_ms, switch.per_port_ms) == (pytest.approx(published_ms), 0)


def test_a_technology_sets_the_latency_of_the_run() -> None:
    plain = to_dict(checked("fabric", "polatis")) | {"mode": "on_demand"}
    settings: FabricSettings = load(
        FabricSettings, plain | {"reconfiguration_latency_ms": 25.0}, "fabric"
    )
    assert isinstance(settings.switch, EmulatedSwitchSettings)
    with pytest.raises(SettingsError, match=r"^fabric\.reconfiguration_latency_ms: got 10.*: 25"):
        load(FabricSettings, plain | {"reconfiguration_latency_ms": 10.0}, "fabric")
    load(
        FabricSettings,
        plain | {"mode": "electrical", "reconfiguration_latency_ms": 0.0},
        "fabric",
    )
