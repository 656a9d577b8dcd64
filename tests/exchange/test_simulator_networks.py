"""Networks for simulators, read back: InfraGraph by its package, the others by strict
parsers of what the simulators' documents and sources say of their files.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import product
from typing import Any

import networkx as nx
import numpy as np
import pytest
from infragraph import Infrastructure
from infragraph.infragraph_service import InfraGraphService

from railx.exchange.astra_network import Dimension, analytical, dimensions, ns3
from railx.exchange.formats import NETWORK_FORMATS, anynet, infragraph
from railx.exchange.wires import join
from railx.vocabulary.topology import Topology
from tests.exchange.networks import NETWORKS, capacities, chosen, drawn, lane_counts
from tests.exchange.readers import pair, read_analytical, read_anynet, read_ns3

Pairs = dict[tuple[int, int], float]


def latencies(topology: Topology) -> Pairs:
    joined = join(topology)
    ends = zip(joined.low.tolist(), joined.high.tolist(), strict=True)
    return dict(zip(ends, joined.latency_ns.tolist(), strict=True))


# InfraGraph


@pytest.mark.parametrize("name", ["torus", "rails", "railx", "dragonfly"])
def test_infragraph_expands_to_the_network(name: str) -> None:
    topology = chosen(*NETWORKS[name])
    text = infragraph(topology, name).text
    whole = Infrastructure().deserialize(text)
    service = InfraGraphService()
    service.set_graph(whole)
    graph = service.get_networkx_graph()
    number: dict[str, int] = {}
    for vertex in range(topology.vertices):
        chip = vertex < topology.chips
        place = f"chip.{vertex}" if chip else f"switch.{vertex - topology.chips}"
        number[place] = vertex
        kinds = Counter(
            data["type"] for _, data in graph.nodes(data=True) if data["composed_device"] == place
        )
        assert kinds.pop("port") > 0
        assert kinds == ({"xpu": 1} if chip else {"switch": 1})
    lanes: Counter[tuple[int, int]] = Counter()
    rates: Counter[tuple[int, int]] = Counter()
    flights: dict[tuple[int, int], float] = {}
    used: Counter[str] = Counter()
    for one, other, data in graph.edges(data=True):
        ends = [end.rsplit(".", 2)[0] for end in (one, other)]
        if ends[0] == ends[1]:
            continue  # inside a device
        used.update((one, other))
        key = pair(*(number[end] for end in ends))
        lanes[key] += 1
        gbps, unit = data["bandwidth"].split()
        ns, of_ns = data["latency"].split()
        assert (unit, of_ns) == ("Gbps", "ns")
        rates[key] += float(gbps)
        flights[key] = max(flights.get(key, 0.0), float(ns))
    assert lanes == lane_counts(topology)
    assert rates == capacities(topology)
    assert flights == latencies(topology)
    assert set(used.values()) == {1}  # a port has one peer


# ASTRA-sim, analytical


def built(found: list[Dimension]) -> tuple[Pairs, Pairs]:
    """Bandwidth and latency of every link of a product, built chip by chip."""
    lengths = [each.length for each in found]
    rates: Pairs = {}
    flights: Pairs = {}
    places = list(product(*(range(length) for length in reversed(lengths))))
    number = {place[::-1]: count for count, place in enumerate(places)}
    switch = len(places)
    for axis, each in enumerate(found):
        lines = {(*place[:axis], 0, *place[axis + 1 :]) for place in number}
        for line in sorted(lines, key=lambda place: place[::-1]):
            own = [number[(*line[:axis], at, *line[axis + 1 :])] for at in range(each.length)]
            if each.block == "Switch":
                ends = [(chip, switch) for chip in own]
                switch += 1
            elif each.block == "Ring":
                ends = [(own[at - 1], own[at]) for at in range(each.length)]
            else:
                ends = [(one, other) for one in own for other in own if one < other]
            for end in ends:
                rates[pair(*end)] = each.gbps
                flights[pair(*end)] = each.latency_ns
    return rates, flights


@pytest.mark.parametrize("name", ["torus", "cube", "hyperx"])
def test_a_product_is_the_very_network(name: str) -> None:
    topology = chosen(*NETWORKS[name])
    rates, flights = built(read_analytical(analytical(topology, name).text))
    assert rates == pytest.approx(capacities(topology), rel=1e-14)
    assert flights == latencies(topology)


def test_a_line_of_two_or_three_is_a_full_mesh() -> None:
    blocks = [each.block for each in dimensions(chosen(*NETWORKS["cube"])) or ()]
    assert blocks == ["FullyConnected", "FullyConnected", "Ring"]


def test_switches_of_a_line_are_one_with_their_bandwidth_together() -> None:
    topology = chosen("topology=rail_only", "topology.servers=3")
    settings: Any = topology.settings
    found = dimensions(topology)
    assert found is not None
    assert [(each.block, each.length) for each in found] == [
        ("Switch", settings.chips_per_server),
        ("Switch", 3),
    ]
    assert [each.switches for each in found] == [1, settings.planes]
    assert found[1].gbps == settings.planes * settings.port_gbps
    exported = analytical(topology, "rails")
    assert "the switches of a line are one, with their bandwidth together" in exported.lost
    total = sum(each.gbps * topology.chips for each in read_analytical(exported.text))
    assert total == pytest.approx(sum(capacities(topology).values()))


def ring(length: int, start: int = 0, stride: int = 1) -> list[tuple[int, int]]:
    return [(start + at * stride, start + (at + 1) % length * stride) for at in range(length)]


SQUARE = [*ring(4), *ring(4, 4), *ring(4, 8), *(e for c in range(4) for e in ring(3, c, 4))]


def test_what_is_nearly_a_product_is_none() -> None:
    assert [each.length for each in dimensions(drawn(SQUARE, 12)) or ()] == [4, 3]
    crossed = [*SQUARE[:-2], (7, 10), (11, 3)]  # two links of a column swapped ends
    more = [*SQUARE, (0, 5)]
    fewer = SQUARE[1:]
    rates, flights = [400.0] * len(SQUARE), [10.0] * len(SQUARE)
    for network in (
        drawn(crossed, 12),
        drawn(more, 12),
        drawn(fewer, 12),
        drawn(SQUARE, 12, gbps=[100.0, *rates[1:]]),
        drawn(SQUARE, 12, latency_ns=[11.0, *flights[1:]]),
        drawn([(0, 1), (1, 2), (2, 3)], 4),
        drawn([(0, 4), (1, 4), (2, 5), (3, 5), (4, 5)], 4, 2),
        drawn([(0, 4), (1, 4), (2, 5), (3, 5), (0, 1), (2, 3), (0, 2), (1, 3)], 4, 2),
        drawn([(0, 4), (1, 4), (2, 4), (0, 1), (1, 2), (2, 3), (3, 0)], 4, 1),
    ):
        assert dimensions(network) is None
    with pytest.raises(ValueError, match=r"^topology: got odd, which is no product of rings, full"):
        analytical(drawn(more, 12), "odd")


def test_rates_may_differ_from_dimension_to_dimension() -> None:
    rates = [400.0] * 12 + [50.0] * 12
    found = dimensions(drawn(SQUARE, 12, gbps=rates))
    assert found == [Dimension("Ring", 4, 400.0, 10.0), Dimension("FullyConnected", 3, 50.0, 10.0)]


@pytest.mark.parametrize("name", NETWORKS)
def test_only_products_are_taken_for_one(name: str) -> None:
    found = dimensions(chosen(*NETWORKS[name]))
    products = {"torus", "cube", "hyperx", "rails", "photonic"}
    assert (found is not None) == (name in products)


# ASTRA-sim, ns-3


@pytest.mark.parametrize("name", NETWORKS)
def test_ns3_reads_the_network_behind_hosts_that_forward_nothing(name: str) -> None:
    topology = chosen(*NETWORKS[name])
    exported = ns3(topology, name)
    vertices, switches, links = read_ns3(exported.text)
    routers = {
        other - one for one, other, _, latency in links if one < topology.chips and not latency
    }
    shift = routers.pop() if len(routers) == 1 else 0
    assert exported.text.splitlines()[1] == " ".join(map(str, range(topology.chips, vertices)))
    assert switches == set(range(topology.chips, vertices))
    rates: Pairs = {}
    flights: Pairs = {}
    carried: Counter[int] = Counter()
    for one, other, gbps, latency_ns in links:
        if shift and one < topology.chips:
            assert (other, latency_ns) == (one + shift, 0)
            carried[one] += gbps
            continue
        ends = [end - shift if shift and end >= shift else end for end in (one, other)]
        rates[pair(*ends)] = gbps
        flights[pair(*ends)] = latency_ns
    assert rates == capacities(topology)
    assert flights == pytest.approx(latencies(topology))
    direct = any(other < topology.chips for _, other in rates)
    assert vertices == topology.vertices + (topology.chips if direct else 0)
    if direct:
        total: Counter[int] = Counter()
        for (one, other), gbps in rates.items():
            total[one] += gbps
            total[other] += gbps
        assert carried == {chip: total[chip] for chip in range(topology.chips)}
    ((ending, logical),) = exported.beside
    assert ending == ".logical.json"
    assert math.prod(map(int, json.loads(logical)["logical-dims"])) == topology.chips


# BookSim2


@pytest.mark.parametrize("name", NETWORKS)
def test_booksim_reads_routers_nodes_and_cycles(name: str) -> None:
    topology = chosen(*NETWORKS[name])
    nodes, channels = read_anynet(anynet(topology, name, cycle_ns=20.0).text)
    assert nodes == {chip: chip for chip in range(topology.chips)}
    cycles = {ends: max(1, math.ceil(ns / 20.0)) for ends, ns in latencies(topology).items()}
    both = cycles | {(other, one): count for (one, other), count in cycles.items()}
    assert channels == both
    graph = nx.Graph(list(channels))
    assert graph.number_of_nodes() == topology.vertices


def test_whole_cycles_stay_whole() -> None:
    network = drawn([(0, 1), (1, 2)], 3, latency_ns=[0.3, 0.0])
    _, channels = read_anynet(anynet(network, "three", cycle_ns=0.1).text)
    assert (channels[0, 1], channels[1, 2]) == (3, 1)


def test_the_same_network_gives_the_same_bytes_in_every_format() -> None:
    for name, write in NETWORK_FORMATS.items():
        network = "torus" if name == "astra-analytical" else "railx"
        first, second = (write(chosen(*NETWORKS[network]), "it") for _ in range(2))
        assert first == second
        assert np.all([line and "\n" not in line for line in first.lost])
