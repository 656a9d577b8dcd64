"""A family that no file of the project knows, a plain ring of chips, goes through every
room once it is registered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from railx.economics import price_network, read_catalogue
from railx.economics.settings import PricedNetwork
from railx.families import (
    FAMILIES,
    Family,
    FamilyBase,
    TopologySettings,
    build_routing,
    build_topology,
    families_with,
    family_of,
    rank_placement,
    read_topology,
    register,
    registered,
)
from railx.figures.theme import colours, label
from railx.mapping.settings import JobSettings, MappedTopology
from railx.mapping.step import Basis, step_times
from railx.network.collectives import simulate_collectives
from railx.network.flows.fair import fair_rates, link_gb_s
from railx.network.flows.paths import route_flows
from railx.network.packets.simulate import simulate_packets
from railx.network.settings import (
    NeighbourTraffic,
    StaticNetworkSettings,
    UniformTraffic,
)
from railx.network.throughput import simulate_static, static_routings, uniform_lane_loads
from railx.settings import AtLeast, Positive, SettingsError, load
from railx.vocabulary.counts import Bill, Ports
from railx.vocabulary.line_rings import LineRings, torus_rings
from railx.vocabulary.placement import Placement, Sizes
from railx.vocabulary.routing.analysis import check_deadlock_free, check_delivery, path_lengths
from railx.vocabulary.routing.rings import route_rings
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import Topology, check_size, chip_nodes, duplex_links
from tests.builders import CATALOGUE, SMALL_JOB, checked, choice, schema_of
from workflow.stage import Job
from workflow.stages import topology as topology_stage

SETTINGS = {"family": "plain_ring"}
PORT_GB_S = 50.0


# The family: all that there is to write


@dataclass(frozen=True)
class PlainRingSettings(FamilyBase):
    """Chips in a ring, one link between neighbours."""

    family: Literal["plain_ring"]

    chips: Annotated[int, AtLeast(3)] = 8
    """Chips of the ring."""

    latency_ns: Annotated[float, Positive()] = 100.0
    """Time of flight of a link, in nanoseconds."""


def build(settings: PlainRingSettings) -> Topology:
    chip = np.arange(settings.chips)
    links = duplex_links(
        chip,
        np.roll(chip, -1),
        "torus_x",
        gbps=settings.port_gbps,
        latency_ns=settings.latency_ns,
    )
    nodes = chip_nodes(settings.chips, 1)
    return Topology(settings, settings.chips, settings.chips, 0, nodes, links, None)


def route(
    settings: PlainRingSettings,
    topology: Topology,
    routing: str,
    destinations: NDArray[np.int32] | None = None,
) -> RoutingTable:
    known = "balanced" if routing == "downhill" else routing
    return route_rings(topology, known, (topology.chips,), destinations)


def chip_rings(settings: PlainRingSettings) -> tuple[LineRings, ...]:
    return torus_rings(np.arange(settings.chips), 1)


def placement(settings: PlainRingSettings, topology: Topology, sizes: Sizes) -> Placement:
    mesh, x, y = sizes
    if mesh * x * y > topology.chips:
        raise SettingsError("layout", f"got {mesh * x * y} chips; allowed: {topology.chips}")
    return Placement(np.arange(mesh * x * y).reshape(y, x, mesh).transpose(2, 1, 0), "runs")


def ports(settings: PlainRingSettings) -> Ports:
    return Ports(
        chips=settings.chips,
        port_gbps=settings.port_gbps,
        cables={"external": 2 * settings.chips},
        injection=2,
        all_to_all=None,
        bisection=4 / settings.chips,
    )


PLAIN_RING = Family(
    name="plain_ring",
    settings=PlainRingSettings,
    build=build,
    check=lambda settings: check_size("chips", 2 * settings.chips),
    halves=lambda settings: (np.arange(settings.chips) >= settings.chips // 2).astype(np.int8),
    bisection_ports=lambda settings: 2,
    ports_per_chip=lambda settings: 2,
    routings=("min", "balanced", "downhill"),
    route=route,
    chip_rings=chip_rings,
    placement=placement,
    bill=Bill(ports=ports, resize=lambda settings, chips: replace(settings, chips=chips)),
)


# What the rooms make of it


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with registered(PLAIN_RING):
        yield


@pytest.fixture
def ring() -> Topology:
    return build_topology(load(TopologySettings, SETTINGS, "topology"))


def test_settings_graph_and_file(ring: Topology, tmp_path: Path) -> None:
    assert isinstance(ring.settings, PlainRingSettings)
    assert family_of(ring) is PLAIN_RING
    outputs = {"graph": tmp_path / "ring.parquet", "metrics": tmp_path / "metrics.json"}
    metrics = topology_stage.run(Job(topology_stage.STAGE, "ring", SETTINGS, {}, outputs))
    again = read_topology(tmp_path / "ring.parquet")
    assert again.settings == ring.settings
    assert np.array_equal(again.links.dst, ring.links.dst)
    assert metrics["family"] == "plain_ring"
    assert (metrics["links"], metrics["ports_per_chip"]) == (8, 2)
    assert metrics["diameter_node_hops"] == 4
    assert metrics["mean_node_hops"] == pytest.approx(16 / 7)
    assert metrics["bisection_gbps"] == metrics["bisection_closed_form_gbps"] == 800
    assert (metrics["disjoint_paths_min"], metrics["minimal_paths_min"]) == (2, 1)


@pytest.mark.parametrize("routing", ["min", "balanced", "downhill"])
def test_routing_delivers_by_shortest_paths_without_deadlock(ring: Topology, routing: str) -> None:
    table = build_routing(ring, routing)
    check_delivery(ring, table)
    check_deadlock_free(ring, table)
    hops = path_lengths(ring, table).links
    assert hops.sum() == 8 * 16
    with pytest.raises(SettingsError, match="allowed on plain_ring: min, balanced, downhill"):
        build_routing(ring, "valiant")


def test_static_loads_fill_all_links_alike(ring: Topology) -> None:
    network = checked("network", "static_balanced")
    row, channels = simulate_static(ring, UniformTraffic("uniform", 1.0), network, "ring", seed=1)
    assert np.allclose(channels["load"], 8 / 7)
    assert row["bound_flits_per_chip_cycle"] == pytest.approx(7 / 8)
    assert row["fidelity"] == "analytic"


def test_its_own_routing_is_allowed_wherever_settings_name_one(ring: Topology) -> None:
    own = {"routing": "downhill"}
    static = checked("network", "static_min", **own)
    row, _ = simulate_static(ring, UniformTraffic("uniform", 1.0), static, "ring", seed=1)
    assert row["routing"] == "downhill"
    assert row["bound_flits_per_chip_cycle"] == pytest.approx(7 / 8)
    assert static_routings(ring) == ("min", "balanced", "downhill")
    assert checked("network", "packet", **own).routing == "downhill"
    assert checked("collective", "all", **own).routing == "downhill"
    assert load(MappedTopology, {"routings": ["downhill"]}).routings == ("downhill",)
    (definition,) = schema_of(StaticNetworkSettings)["$defs"].values()
    assert definition["properties"]["routing"]["enum"] == [
        "min",
        "balanced",
        "min_inside",
        "valiant",
        "tree",
        "downhill",
    ]


def test_a_routing_of_no_family_is_refused_with_the_names_of_all() -> None:
    plain = choice("network", "static_min")
    for name in ("uphill", "adaptive"):
        with pytest.raises(SettingsError) as refused:
            load(StaticNetworkSettings, plain | {"routing": name}, "network")
        assert str(refused.value) == (
            f"network.routing: got {name!r};"
            " allowed: min, balanced, min_inside, valiant, tree, downhill"
        )
    FAMILIES.remove(PLAIN_RING)
    try:
        with pytest.raises(
            SettingsError, match=r"'downhill'; allowed: min, balanced, min_inside, valiant, tree$"
        ):
            load(StaticNetworkSettings, plain | {"routing": "downhill"}, "network")
    finally:
        FAMILIES.append(PLAIN_RING)


def test_exact_loads_of_a_table_that_looks_at_queues_are_refused(ring: Topology) -> None:
    def queueing(
        settings: PlainRingSettings,
        topology: Topology,
        routing: str,
        destinations: NDArray[np.int32] | None = None,
    ) -> RoutingTable:
        return replace(route(settings, topology, "min", destinations), selection="adaptive")

    FAMILIES.remove(PLAIN_RING)
    try:
        with (
            registered(replace(PLAIN_RING, route=queueing)),
            pytest.raises(SettingsError, match="got 'min', which chooses by queues; allowed: a"),
        ):
            uniform_lane_loads(ring, "min")
    finally:
        FAMILIES.append(PLAIN_RING)


def test_packets_reach_the_neighbours(ring: Topology) -> None:
    network = checked("network", "packet", warmup_cycles=200, measured_cycles=2000)
    traffic = NeighbourTraffic("neighbour", 0.4)
    found = simulate_packets(ring, build_routing(ring, "min"), traffic, network, seed=1)
    assert found.hops_mean == 1.0
    assert found.accepted_flits_per_chip_cycle == pytest.approx(0.4, rel=0.1)


def test_flows_share_the_links_fairly(ring: Topology) -> None:
    paths = route_flows(ring, "min", np.array([0, 1, 7]), np.array([2, 2, 6]))
    assert np.allclose(fair_rates(paths, link_gb_s(ring)), [25.0, 25.0, 50.0])


def test_collectives_fill_both_directions(ring: Topology) -> None:
    payload = 10**12
    settings = checked(
        "collective",
        "all",
        collectives=["ring_all_reduce", "all_to_all"],
        payload_bytes=[payload],
    )
    rows = simulate_collectives(ring, settings, "ring")
    reduced = [row for row in rows if row["collective"] == "ring_all_reduce"]
    assert {(row["scope"], row["fidelity"]) for row in reduced} == {
        (scope, fidelity) for scope in ("row", "chips") for fidelity in ("analytic", "flow")
    }
    for row in reduced:
        expected_ms = (2 * 7 / 8 * payload / (2 * PORT_GB_S) + 2 * 7 * 100) / 1e6
        assert row["time_ms"] == pytest.approx(expected_ms, rel=1e-9)
        assert row["rings"] == 2
    direct = {row["fidelity"]: row["time_ms"] for row in rows if row["collective"] == "all_to_all"}
    # The links up carry 1 + 2 + 3 + 4 hops of every chip's seven messages.
    assert direct["analytic"] == pytest.approx(10 / 8 * payload / PORT_GB_S / 1e6, rel=1e-6)
    assert direct["flow"] == pytest.approx(direct["analytic"], rel=1e-6)


def test_mapping_places_and_times_a_job(ring: Topology) -> None:
    job = load(
        JobSettings,
        SMALL_JOB | {"layout": {"mesh": {"tensor": 2}, "x": {"data": 2}, "y": {"pipeline": 2}}},
    )
    assert rank_placement(ring, (2, 2, 2)).chips.transpose(2, 1, 0).ravel().tolist() == list(
        range(8)
    )
    slow, fast = (
        step_times(ring, ["min"], {"small": job}, [Basis("equal", factor, factor, None)], "ring")
        for factor in (1.0, 2.0)
    )
    assert {row["family"] for row in slow} == {"plain_ring"}
    assert {row["placement"] for row in slow} == {"runs"}
    assert {row["fidelity"] for row in slow} == {"analytic"}
    assert fast[0]["step_ms"] < slow[0]["step_ms"]
    too_large = replace(
        job, layout=load(type(job.layout), {"mesh": {"tensor": 4}, "x": {"data": 4}, "y": {}})
    )
    (refused,) = step_times(
        ring, ["min"], {"large": too_large}, [Basis("equal", 1.0, 1.0, None)], "ring"
    )
    assert refused["step_ms"] is None
    assert "got 16 chips; allowed: 8" in refused["reason"]


def test_bill_prices_every_transceiver() -> None:
    network = load(PricedNetwork, {"topology": SETTINGS}, "network")
    catalogue = read_catalogue(CATALOGUE)
    (row,) = price_network("ring", network, "opus_400g", catalogue)
    assert (row["component"], row["count"], row["total_usd"]) == ("transceiver", 16, 16 * 879)
    assert network.at_scale(20).chips == 20
    assert network.counts.bisection_gb_s_per_chip == 4 / 8 * PORT_GB_S


def test_a_link_of_no_known_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^link kind: got 'ring'; allowed: internal, rail_x,"):
        duplex_links(np.arange(2), np.arange(2), "ring", gbps=1.0, latency_ns=1.0)


def test_figures_give_it_a_colour_and_a_label() -> None:
    assert len(set(colours(["railx_hyperx", "plain_ring", "torus_2d"]).values())) == 3
    assert label("plain_ring") == "Plain ring"


def test_lists_in_messages_follow_the_register() -> None:
    assert families_with("chip_rings").endswith("plain_ring")
    with pytest.raises(ValueError, match="'plain_ring', which is taken"):
        register(PLAIN_RING)
    assert FAMILIES.count(PLAIN_RING) == 1


def test_a_family_that_is_not_registered_is_refused() -> None:
    FAMILIES.remove(PLAIN_RING)
    try:
        with pytest.raises(SettingsError, match=r"topology\.family: got 'plain_ring'; allowed: "):
            load(TopologySettings, SETTINGS, "topology")
        with pytest.raises(SettingsError, match=r"family: got .plain_ring.; allowed: .*tpu_v4"):
            family_of(PlainRingSettings(**SETTINGS))  # type: ignore[arg-type]
    finally:
        FAMILIES.append(PLAIN_RING)
