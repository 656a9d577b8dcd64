"""Equal bandwidth and equal cost, the shipped comparison, and the stage's table and
summary; links inside nodes, free and charged, and the price at which the ranking flips.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railx.families import build_topology, rank_placement, write_topology
from railx.io import read_json, read_table
from railx.mapping.cost import (
    chip_costs,
    comparison_bases,
    equal_bandwidth,
    injection_gb_s_per_chip,
    node_price_rows,
)
from railx.mapping.settings import MappingSettings
from railx.mapping.step import Basis, step_ms, step_times
from railx.performance.topologies import ExactLoads
from railx.settings import SettingsError, load
from railx.vocabulary.topology import NodeSettings, Topology
from tests.builders import build, topology_settings
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


#: The node of the small RailX: 2 x 2 chips.
NODE = NodeSettings(4, "mesh", 800.0, 10.0)


@pytest.fixture(scope="module")
def settings(small_mapping: Plain) -> MappingSettings:
    topologies = {name: {"routings": ["min"]} for name in ("tree", "mesh", "switch")}
    plain = small_mapping | {
        "topologies": small_mapping["topologies"] | topologies,
        "node_price_set": "node_assumed",
    }
    mapping: MappingSettings = load(MappingSettings, plain, "mapping")
    return mapping


def networks() -> Plain:
    """The full tree without nodes, with RailX's, and with a switch in each."""
    tree = topology_settings("fat_tree")
    return {
        "tree": tree,
        "mesh": replace(tree, node=NODE),
        "switch": replace(tree, node=replace(NODE, links="switch")),
    }


def test_the_same_node_costs_the_same_and_changes_nothing(settings: MappingSettings) -> None:
    """RailX's node on the tree: its ports are as fast with nodes free or charged."""
    reference = topology_settings("railx_hyperx")
    _, free, priced = comparison_bases(
        settings, build_topology(networks()["mesh"]), "mesh", reference
    )
    assert priced.ports == pytest.approx(free.ports)
    assert (priced.inside, priced.reason) == (free.inside, None)
    assert free.cost_per_chip_usd is not None
    assert priced.cost_per_chip_usd == pytest.approx(free.cost_per_chip_usd + 800 * 1.36)
    alone = comparison_bases(settings, build_topology(networks()["tree"]), "tree", reference)[2]
    assert alone.ports == pytest.approx(free.ports * (1 + 800 * 1.36 / free.cost_per_chip_usd))


def test_a_node_that_costs_all_leaves_no_ports(settings: MappingSettings) -> None:
    dear = replace(networks()["switch"], node=replace(NODE, links="switch", gb_s=1200.0))
    topology = build_topology(dear)
    bases = comparison_bases(settings, topology, "switch", topology_settings("railx_hyperx"))
    reason = "the node alone costs 10260 of 6684 USD a chip"
    assert (bases[2].reason, bases[2].ports) == (reason, 0.0)
    rows = step_times(topology, ["min"], settings.jobs, bases, "switch")
    (row,) = [row for row in rows if row["basis"] == "equal_cost_nodes"]
    assert (row["reason"], row["part"], row["step_ms"]) == (reason, None, None)


@pytest.mark.parametrize("name", ["tree", "mesh", "switch"])
def test_with_the_break_even_price_steps_are_equally_long(
    settings: MappingSettings, name: str
) -> None:
    topology, reference = (
        build_topology(of) for of in (networks()[name], topology_settings("railx_hyperx"))
    )
    (row,) = node_price_rows(settings, topology, name, ["min"], reference)
    (job,) = settings.jobs.values()
    mine, other = (
        chip_costs(settings, key, of.settings)
        for key, of in ((name, topology), (settings.reference, reference))
    )

    def step(of: Any, routing: str, ports: float) -> float:
        network = ExactLoads(of, [routing])
        placement = rank_placement(of, job.layout.sizes)
        equal = equal_bandwidth(settings, of)
        return step_ms(network, placement, job, replace(equal, ports=equal.ports * ports))

    goal = step(reference, "balanced", 1.0)
    factor = (other.ports_usd - row["break_even_usd_per_chip"]) / mine.ports_usd
    assert step(topology, "min", factor) == pytest.approx(goal, rel=1e-6)
    # The two comparisons say what the price at which they flip says.
    bases = comparison_bases(settings, topology, name, reference.settings)
    for basis, key in ((bases[1], "faster_free"), (bases[2], "faster_priced")):
        faster = basis.reason is None and step(topology, "min", basis.ports) < goal
        assert row[key] == faster, key
    assert row["difference_usd_per_chip"] == pytest.approx(mine.node.usd - other.node.usd, abs=1e-9)
    low, high = row["difference_low_usd_per_chip"], row["difference_high_usd_per_chip"]
    assert low <= row["difference_usd_per_chip"] <= high
    assert (low == high) == (name == "mesh")


def test_no_price_set_no_rows(settings: MappingSettings) -> None:
    free = replace(settings, node_price_set=None)
    topology = build_topology(networks()["mesh"])
    reference = build_topology(topology_settings("railx_hyperx"))
    assert node_price_rows(free, topology, "mesh", ["min"], reference) == []
    assert len(comparison_bases(free, topology, "mesh", reference.settings)) == 2
    assert node_price_rows(settings, reference, settings.reference, ["min"], reference) == []
