"""The stage underlay on a small cluster: a row for each plan, rate and degree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from railx.io import read_rows
from railx.settings import SettingsError, to_dict
from tests.builders import ROOT, topology_settings
from workflow.config import compose_experiment
from workflow.stages import STAGES, files_of, inputs_of


def small() -> dict[str, Any]:
    """Two plans for four devices, on servers of two and as the cluster lists."""
    chosen = ["plans=[static_stdlib,flexsp_stdlib]", "runs=[static_stdlib]", "figures=[]"]
    plain: dict[str, Any] = to_dict(
        compose_experiment(["experiment=quick", "corpora=[stdlib]", *chosen])
    )
    servers = topology_settings("rail_only", chips_per_server=2, servers=2, switch_radix=2)
    listed = {"label": "Listed", "topology": None, "routing": "min", "groups": {}}
    listed |= {"switch_ms": 0.0, "priced": None}
    priced = to_dict(topology_settings("rail_only_1280"))
    rails = listed | {"label": "Rails", "topology": to_dict(servers), "priced": priced}
    plain["underlay"] |= {
        "plans": list(plain["plans"]),
        "networks": {"rails": rails, "listed": listed},
        "outside_gb_s": [0.05, 500.0],
        "inside_gb_s": 500.0,
        "reference": "rails",
        "ranks": 4,
    }
    return plain


def test_plans_are_priced_and_made_anew_on_every_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = small()
    (tmp_path / "resources").symlink_to(ROOT / "resources")
    monkeypatch.chdir(tmp_path)
    for name in ("corpus", "plan", "underlay"):
        stage = STAGES[name]
        for item in stage.items(experiment):
            stage.make(
                stage.settings(experiment, item),
                item=item,
                inputs=inputs_of(stage, experiment, item),
                outputs={
                    key: files_of(experiment, f"{name}.{key}", [item])[item]
                    for key in stage.outputs
                },
            )
    mix = files_of(experiment, "underlay.mix")
    rails, listed = (read_rows(mix[name]) for name in ("rails", "listed"))
    made = {"cluster", "network"}
    assert {(row["basis"], row["outside_gb_s"], row["made_for"]) for row in rails} == {
        *(("equal_rate", rate, of) for rate in (0.05, 500.0) for of in made),
        *(("equal_cost", 0.05, of) for of in made),
    }
    assert {(row["basis"], row["made_for"]) for row in listed} == {("own", "cluster")}
    assert {row["plan"] for row in rails} == set(experiment["underlay"]["plans"])

    def total(of: str, rate: float) -> float:
        found = {
            row["iteration"]: row["iteration_ms"]
            for row in rails
            if (row["plan"], row["made_for"], row["outside_gb_s"], row["basis"])
            == ("static_stdlib", of, rate, "equal_rate")
        }
        return sum(found.values())

    assert total("cluster", 500.0) < total("cluster", 0.05), "the ports bind"
    rates = read_rows(files_of(experiment, "underlay.bandwidths")["rails"])
    first = {row["group_size"]: row["gb_s"] for row in rates if row["outside_gb_s"] == 0.05}
    assert first == pytest.approx({2: 1000.0, 4: 0.1})
    assert read_rows(files_of(experiment, "underlay.bandwidths")["listed"]) == []


def test_plans_that_are_not_there_are_named() -> None:
    with pytest.raises(SettingsError, match=r"^underlay\.plans: got 'x'; allowed: static_7b"):
        compose_experiment(["experiment=quick", "underlay.plans=[x]"])
