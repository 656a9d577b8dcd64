"""Links inside nodes, free and charged, and the price at which the ranking flips."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from railx.families import build_topology, rank_placement
from railx.mapping.cost import chip_costs, comparison_bases, equal_bandwidth
from railx.mapping.node_prices import node_price_rows
from railx.mapping.settings import MappingSettings
from railx.mapping.step import step_ms, step_times
from railx.performance.topologies import ExactLoads
from railx.settings import load
from railx.vocabulary.topology import NodeSettings
from tests.builders import topology_settings

Plain = dict[str, Any]

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
