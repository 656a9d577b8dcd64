"""Equal bandwidth and equal cost, the shipped comparison, and the stage's table and
summary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railx.families import write_topology
from railx.io import read_json, read_table
from railx.mapping.cost import comparison_bases, injection_gb_s_per_chip
from railx.mapping.settings import MappingSettings
from railx.mapping.step import Basis
from railx.settings import SettingsError, load
from railx.vocabulary.topology import Topology
from tests.builders import build
from workflow.stages import mapping

Plain = dict[str, Any]


def bases_of(settings: MappingSettings, topology: Topology, name: str) -> list[Basis]:
    """The bases of a topology against the shipped reference."""
    return comparison_bases(settings, topology, name, build(settings.reference).settings)


def test_equal_cost_gives_the_ports_what_the_reference_costs(small_mapping: Plain) -> None:
    """RailX: 4 n / m transceivers and OCS ports; a full tree of T tiers: 2 T - 1 switch
    ports and 2 T transceivers a port.
    """
    settings: MappingSettings = load(MappingSettings, small_mapping, "mapping")
    transceiver, switch, ocs = 879, 582.796875, 520
    railx, tree = 4 * (transceiver + ocs), 8 * (5 * switch + 6 * transceiver)
    equal, cost, _ = bases_of(settings, build("fat_tree"), "fat_tree")
    assert (equal.ports, equal.inside) == (1.0, 1.0)
    assert equal.cost_per_chip_usd == pytest.approx(tree, rel=1e-12)
    assert cost.cost_per_chip_usd == pytest.approx(railx, rel=1e-12)
    assert cost.ports == pytest.approx(railx / tree, rel=1e-12)
    assert cost.inside == 1.0


def test_the_reference_is_the_same_on_both_bases(small_mapping: Plain) -> None:
    settings: MappingSettings = load(MappingSettings, small_mapping, "mapping")
    equal, cost, _ = bases_of(settings, build("railx_hyperx"), "railx_hyperx")
    assert (equal.ports, equal.inside, equal.cost_per_chip_usd) == (
        cost.ports,
        cost.inside,
        cost.cost_per_chip_usd,
    )


def test_slower_ports_cost_less(small_mapping: Plain) -> None:
    """Half the ports at equal injection are twice as fast and cost as much: the price
    goes with the rate.
    """
    settings: MappingSettings = load(MappingSettings, small_mapping, "mapping")
    half, full = (
        bases_of(settings, build("fat_tree", planes=planes), "fat_tree") for planes in (4, 8)
    )
    assert half[0].ports == 2 * full[0].ports
    assert half[1].ports == pytest.approx(2 * full[1].ports, rel=1e-12)
    assert half[0].cost_per_chip_usd == pytest.approx(full[0].cost_per_chip_usd, rel=1e-12)


def test_a_family_without_a_bill_has_no_equal_cost(small_mapping: Plain) -> None:
    topologies = small_mapping["topologies"] | {"mesh_2d": {"routings": ["min"]}}
    settings: MappingSettings = load(
        MappingSettings, small_mapping | {"topologies": topologies}, "mapping"
    )
    for name in ("mesh_2d", "torus_2d"):  # the torus has a bill and is not priced
        bases = bases_of(settings, build(name), name)
        assert [(basis.name, basis.cost_per_chip_usd) for basis in bases] == [
            ("equal_bandwidth", None)
        ]


def test_a_reference_without_a_bill_is_named(small_mapping: Plain) -> None:
    settings: MappingSettings = load(MappingSettings, small_mapping, "mapping")
    with pytest.raises(
        SettingsError,
        match="got 'railx_hyperx' of family mesh_2d; allowed: a topology of a family with a bill",
    ) as error:
        comparison_bases(settings, build("fat_tree"), "fat_tree", build("mesh_2d").settings)
    assert error.value.key == "mapping.reference"


def test_a_port_speed_without_a_price_names_the_topology(small_mapping: Plain) -> None:
    settings: MappingSettings = load(MappingSettings, small_mapping, "mapping")
    fast = build("fat_tree", port_gbps=1600.0)
    with pytest.raises(SettingsError, match="got 1600 Gb/s per priced port; allowed: 400") as error:
        bases_of(settings, fast, "fat_tree")
    assert error.value.key == "topologies.fat_tree.port_gbps"


def test_reference_is_priced(small_mapping: Plain) -> None:
    with pytest.raises(
        SettingsError,
        match=(
            r"mapping\.reference: got 'torus_2d'; allowed: railx_hyperx, fat_tree, the priced"
            r" topologies"
        ),
    ):
        load(MappingSettings, small_mapping | {"reference": "torus_2d"}, "mapping")


def test_shipped_comparison_prices_each_topology_as_it_is(
    shipped_mapping: Callable[[str], Plain],
) -> None:
    """Every topology is priced by its own settings, and costs what the reference costs
    at equal cost.
    """
    settings: MappingSettings = load(MappingSettings, shipped_mapping("comparison"), "mapping")
    assert len(settings.topologies) > 10
    for name, mapped in settings.topologies.items():
        bases = bases_of(settings, build(name), name)
        names = ["equal_bandwidth", "equal_cost", "equal_cost_nodes"]
        assert [basis.name for basis in bases] == names[: 3 if mapped.priced else 1]
        assert injection_gb_s_per_chip(build(name).settings) * bases[0].ports == pytest.approx(
            400, rel=1e-12
        )
        if mapped.priced:
            # m = 4, n = 2: two ports per chip of a transceiver and an OCS port each.
            assert bases[1].cost_per_chip_usd == pytest.approx(2 * (879 + 520), rel=1e-12)


def test_stage_writes_one_row_a_part_and_a_flat_summary(
    small_mapping: Plain, tmp_path: Path
) -> None:
    write_topology(tmp_path / "tree.parquet", build("fat_tree"))
    write_topology(tmp_path / "reference.parquet", build("railx_hyperx"))
    summary = mapping.STAGE.make(
        small_mapping,
        item="fat_tree",
        inputs={
            "topology": tmp_path / "tree.parquet",
            "reference": tmp_path / "reference.parquet",
        },
        outputs={"steps": tmp_path / "steps.parquet", "summary": tmp_path / "steps.json"},
    )
    rows = read_table(tmp_path / "steps.parquet").to_pylist()
    assert len(rows) == 3 * 7
    assert {
        (row["topology"], row["chips"], row["topology_chips"], row["fidelity"]) for row in rows
    } == {("fat_tree", 64, 128, "analytic")}
    assert read_json(tmp_path / "steps.json") == summary
    steps = {row["basis"]: row["step_ms"] for row in rows}
    assert summary["small.equal_cost.step_ms"] == steps["equal_cost"] > steps["equal_bandwidth"]


def test_stage_by_hand_takes_any_topology_at_equal_bandwidth(
    small_mapping: Plain, tmp_path: Path
) -> None:
    """A tree in the place of the reference: its own first routing where the reference's
    is not offered, and no cost.
    """
    write_topology(tmp_path / "tree.parquet", build("fat_tree"))
    by_hand = replace(mapping.STAGE, run=mapping.run_any_topology)
    summary = by_hand.make(small_mapping, inputs={"topology": tmp_path / "tree.parquet"})
    assert [key for key in summary if key.endswith("step_ms")] == ["small.equal_bandwidth.step_ms"]
    assert summary["topology"] == "fat_tree"


def test_stage_keeps_the_reason_in_the_summary(small_mapping: Plain, tmp_path: Path) -> None:
    write_topology(tmp_path / "torus.parquet", build("torus_2d", x_scale=4, y_scale=4))
    write_topology(tmp_path / "reference.parquet", build("railx_hyperx"))
    summary = mapping.STAGE.make(
        small_mapping,
        item="torus_2d",
        inputs={
            "topology": tmp_path / "torus.parquet",
            "reference": tmp_path / "reference.parquet",
        },
        outputs={"steps": tmp_path / "steps.parquet"},
    )
    assert summary["small.equal_bandwidth.reason"].startswith(
        "layout: got 4 x 4 x 4 (chips of a node x nodes of a row x nodes"
    )
    assert read_table(tmp_path / "steps.parquet").to_pylist()[0]["step_ms"] is None


def test_unknown_topology_is_named(small_mapping: Plain) -> None:
    with pytest.raises(
        SettingsError,
        match=r"mapping.topologies.ring: is missing; allowed: railx_hyperx, fat_tree, torus_2d",
    ):
        mapping.STAGE.make(small_mapping, item="ring")
