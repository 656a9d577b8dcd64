"""GraphML and lists of links: NetworkX reads what was written, and both come back as
the network that they were written from.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from railx.exchange.formats import edge_list, graphml, simple_graphml
from railx.exchange.wires import decimal, join, wires
from railx.families import TopologySettings, build_topology
from railx.settings import SettingsError, load
from railx.vocabulary.topology import LINK_KINDS, Topology
from tests.exchange.networks import NETWORKS, capacities, chosen, drawn, lane_counts


def rows(topology: Topology) -> Counter[tuple[Any, ...]]:
    """Every link row, whatever their order."""
    links = topology.links
    columns = (links.src, links.dst, links.kind, links.gbps, links.latency_ns, links.rail)
    return Counter(zip(*(column.tolist() for column in (*columns, links.lanes)), strict=True))


def imported(path: Path, **changed: Any) -> Topology:
    plain = {
        "family": "imported",
        "path": str(path),
        "digest": None,
        "chips_per_node": 1,
        "port_gbps": 400.0,
        "latency_ns": 10.0,
    }
    return build_topology(load(TopologySettings, plain | changed, "topology"))


@pytest.mark.parametrize("name", NETWORKS)
def test_networkx_reads_every_link_with_what_it_carries(name: str, tmp_path: Path) -> None:
    topology = chosen(*NETWORKS[name])
    path = tmp_path / "network.graphml"
    path.write_text(graphml(topology, name).text)
    graph = nx.read_graphml(path, node_type=int, force_multigraph=True)
    assert list(graph.nodes) == list(range(topology.vertices))
    assert not graph.is_directed()
    for vertex, data in graph.nodes(data=True):
        chip = vertex < topology.chips
        assert data["kind"] == ("chip" if chip else "switch")
        assert data["endpoints"] == int(chip)
        assert data.get("node") == (int(topology.chip_node[vertex]) if chip else None)
    found: Counter[tuple[Any, ...]] = Counter()
    for one, other, data in graph.edges(data=True):
        said = (
            LINK_KINDS.index(data["kind"]),
            *(data[key] for key in ("gbps", "latency_ns", "rail", "lanes")),
        )
        found[one, other, *said] += 1
        found[other, one, *said] += 1
    assert found == rows(topology)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_simple_graph_has_one_edge_with_all_bandwidth(name: str, tmp_path: Path) -> None:
    topology = chosen(*NETWORKS[name])
    path = tmp_path / "network.graphml"
    path.write_text(simple_graphml(topology, name).text)
    graph = nx.read_graphml(path, node_type=int)
    assert type(graph) is nx.Graph
    found = {
        (min(edge), max(edge)): data["gbps"] * data["lanes"]
        for *edge, data in graph.edges(data=True)
    }
    assert found == capacities(topology)


def test_lanes_of_unlike_rates_become_one_with_all_of_it() -> None:
    topology = drawn([(0, 1), (0, 1), (1, 2)], 3, gbps=[100.0, 300.0, 50.0], lanes=[2, 1, 4])
    graph = nx.parse_graphml(simple_graphml(topology, "three").text, node_type=int)
    assert {key: graph.edges[0, 1][key] for key in ("gbps", "lanes")} == {"gbps": 500, "lanes": 1}
    assert {key: graph.edges[1, 2][key] for key in ("gbps", "lanes")} == {"gbps": 50, "lanes": 4}
    later = drawn([(0, 1), (0, 1)], 2, latency_ns=[5.0, 70.0])
    joined = join(later)
    assert joined.latency_ns.tolist() == [70.0]
    assert "where parallel links differ in latency, the longest one stands for all" in joined.lost


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("write", [graphml, edge_list])
def test_a_network_comes_back_as_it_was(name: str, write: Any, tmp_path: Path) -> None:
    topology = chosen(*NETWORKS[name])
    path = tmp_path / ("network.graphml" if write is graphml else "network.csv")
    path.write_text(write(topology, name).text)
    again = imported(path, chips_per_node=topology.chips // topology.nodes)
    assert (again.chips, again.switches) == (topology.chips, topology.switches)
    assert np.array_equal(again.chip_node, topology.chip_node)
    assert rows(again) == rows(topology)
    assert lane_counts(again) == lane_counts(topology)


def test_the_same_network_gives_the_same_bytes() -> None:
    for write in (graphml, simple_graphml, edge_list):
        texts = {write(chosen(*NETWORKS["railx"]), "railx").text for _ in range(2)}
        assert len(texts) == 1


def test_names_are_escaped() -> None:
    text = graphml(chosen("topology=imported"), 'a<b & "c"').text
    assert nx.parse_graphml(text).number_of_nodes() == 10


@given(st.floats(1e-9, 1e12))
def test_numbers_are_exact_and_have_no_exponent(value: float) -> None:
    text = decimal(value)
    assert float(text) == value
    assert "e" not in text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(data=st.data())
def test_what_networkx_writes_can_be_read(data: st.DataObject, tmp_path: Path) -> None:
    """Attributes of its own naming and order, ids that are words, several endpoints."""
    count = data.draw(st.integers(2, 9))
    graph = nx.Graph()
    for number in range(count):
        graph.add_node(f"v{number}", endpoints=data.draw(st.integers(0, 3)), colour="red")
    for number in range(1, count):
        graph.add_edge(f"v{data.draw(st.integers(0, number - 1))}", f"v{number}")
    for number, edge in enumerate(graph.edges):
        graph.edges[edge]["lanes"] = number + 1
        graph.edges[edge]["gbps"] = 12.5 * (number + 1)
    path = tmp_path / "drawn.graphml"
    nx.write_graphml(graph, path)
    endpoints = [own["endpoints"] for _, own in graph.nodes(data=True)]
    if sum(endpoints) < 2:
        with pytest.raises(SettingsError, match=r"^topology\.path: .* allowed: at least 2$"):
            imported(path)
        return
    topology = imported(path)
    assert topology.chips == sum(endpoints)
    assert topology.switches == sum(each != 1 for each in endpoints)
    leaves = sum(each for each in endpoints if each > 1)
    assert len(wires(topology)) == graph.number_of_edges() + leaves
    assert topology.links.lanes.sum() // 2 == sum(range(1, count)) + leaves
    assert sorted(topology.links.gbps[topology.links.lanes > 1].tolist()) == sorted(
        [12.5 * (number + 1) for number in range(1, count - 1)] * 2
    )


def test_directed_graphs_that_lead_both_ways_are_one_link_each(tmp_path: Path) -> None:
    graph = nx.DiGraph()
    for one, other in ((0, 1), (1, 2), (2, 0)):
        graph.add_edge(one, other, gbps=100.0)
        graph.add_edge(other, one, gbps=100.0)
    path = tmp_path / "directed.graphml"
    nx.write_graphml(graph, path)
    assert len(wires(imported(path))) == 3
    graph.edges[2, 0]["gbps"] = 50.0
    nx.write_graphml(graph, path)
    with pytest.raises(SettingsError, match=r"alone; allowed: links that lead both ways alike$"):
        imported(path)


def test_one_way_links_are_not_exported() -> None:
    topology = drawn([(0, 1)], 2)
    topology.links.gbps[0] = 1.0
    with pytest.raises(ValueError, match="links that lead one way only; allowed: links that lead"):
        wires(topology)


def test_chips_of_a_list_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "links.txt"
    path.write_text("# three chips below a switch\n10 switch 200 2\n2 switch 200 2 7.5\n1 switch\n")
    topology = imported(path)
    assert (topology.chips, topology.switches) == (3, 1)
    assert topology.links.src.tolist() == [2, 3, 1, 3, 0, 3]
    assert topology.links.gbps.tolist()[::2] == [200.0, 200.0, 400.0]
    assert topology.links.latency_ns.tolist()[::2] == [10.0, 7.5, 10.0]
    assert topology.links.lanes.tolist()[::2] == [2, 2, 1]
    assert {LINK_KINDS[code] for code in topology.links.kind} == {"leaf"}


HEAD = '<graphml><graph edgedefault="undirected">'


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.dot", "", "ends in .graphml, .csv, .txt"),
        ("a.graphml", "<graphml>", "which is no XML"),
        ("a.graphml", '<?xml version="1.0" encoding="utf-9"?><graphml/>', "which is no XML"),
        ("a.graphml", "<svg/>", "with <svg>; allowed: <graphml>"),
        ("a.graphml", "<graphml/>", "with 0 graphs; allowed: one"),
        ("a.graphml", f"{HEAD}<node/></graph></graphml>", "node id ''; allowed: a name"),
        (
            "a.graphml",
            f'{HEAD}<node id="a"/><node id="a"/></graph></graphml>',
            "node id 'a'; allowed: a name of its own",
        ),
        (
            "a.graphml",
            f'{HEAD}<node id="a"/><edge source="a" target="b"/></graph></graphml>',
            "edge 0 to 'b'; allowed: the id of a node",
        ),
        (
            "a.graphml",
            f'{HEAD}<node id="a"/><node id="b"/></graph></graphml>',
            "no path leads from a to b; allowed: one connected network",
        ),
        (
            "a.graphml",
            f'{HEAD}<node id="a"><data key="endpoints">x</data></node></graph></graphml>',
            "node a with endpoints 'x'; allowed: a whole number from 0 up",
        ),
        (
            "a.graphml",
            f'{HEAD}<node id="a"><data key="kind">host</data></node></graph></graphml>',
            "node a of kind 'host'; allowed: chip, switch",
        ),
        (
            "a.graphml",
            f'{HEAD}<node id="a"><graph/></node></graph></graphml>',
            "a graph in node a; allowed: nodes alone",
        ),
        ("a.csv", "", "columns none; allowed: src, dst and any of gbps, lanes"),
        ("a.csv", "src,dst,weight\n", "columns src, dst, weight; allowed"),
        ("a.csv", "src,dst\n0,1,2\n", "line 2; allowed: 2 columns"),
        ("a.csv", "src,dst\n0\n", "line 2; allowed: 2 columns"),
        ("a.csv", "src,dst,kind\n0,1,rope\n", "kind 'rope'; allowed: internal, rail_x"),
        ("a.txt", "0 1 2 3 4 5\n", "line 1 with 6 words; allowed: SRC DST"),
        ("a.txt", "0 0\n", "line 1, a link of a vertex to itself"),
        ("a.txt", "0 1 fast\n", "line 1 with gbps 'fast'; allowed: a number from 0 up"),
        ("a.txt", "0 1 0\n", "line 1 with gbps 0; allowed: greater than 0"),
        ("a.txt", "0 1 nan\n", "gbps 'nan'"),
        ("a.txt", "0 1 1e308\n", "gbps '1e308'; allowed: a number from 0 up, below 2,147,483,648"),
        ("a.txt", "0 1 400 9999999999\n", "a whole number from 1 up, below 2,147,483,648"),
        ("a.txt", "0 1 400 0\n", "lanes '0'; allowed: a whole number from 1 up"),
        ("a.txt", "0 1 400 1 -1\n", "latency_ns '-1'; allowed: a number from 0 up"),
        ("a.txt", "0 1\n2 3\n", "no path leads from 0 to 2"),
        ("a.txt", "", "with 0 chips; allowed: at least 2"),
        ("a.txt", "\x80", "which is no text"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(
    name: str, content: str, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(SettingsError) as refused:
        imported(path)
    assert str(refused.value).startswith("topology.path: got ")
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


def test_another_file_than_was_meant_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "two.txt"
    path.write_text("0 1\n")
    with pytest.raises(SettingsError, match=r"^topology\.digest: got 00; allowed: [0-9a-f]{64}, "):
        imported(path, digest="00")
    with pytest.raises(SettingsError, match=r"^topology\.path: got .*No such file"):
        imported(tmp_path / "none.txt")
    with pytest.raises(SettingsError, match=r"^topology\.path: got "):
        imported(tmp_path)
    with pytest.raises(SettingsError, match=r"^topology\.chips_per_node: got 3; allowed: a div"):
        imported(path, chips_per_node=3)
    assert imported(path).chips == 2
    path.write_text("0 1\n1 2\n")
    assert imported(path).chips == 3
