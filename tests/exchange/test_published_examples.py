"""What simulators publish of their formats, held against what is written here.

Two things each: the reader of the tests takes the published example, so that it is no
reader of our habits; and where the example is a network or a schedule that this product
makes too, both say the same. The examples stand here as what they say (numbers and the
rule that makes them), with the file that they are from.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from railx.exchange.astra_network import analytical, dimensions, ns3
from railx.exchange.formats import anynet
from railx.exchange.goal import write_goal
from railx.fabric.circuits import Configuration
from railx.replay.programs import Programs
from railx.vocabulary.topology import Topology
from tests.exchange.networks import chosen, drawn
from tests.exchange.readers import (
    GIGABYTE,
    Operation,
    pair,
    read_analytical,
    read_anynet,
    read_goal,
    read_ns3,
)
from tests.exchange.test_graph_files import imported
from tests.replay.programs import ReplayedOperation, Step, from_steps


def ring(chips: int, gbps: float, latency_ns: float) -> Topology:
    links = [(chip, (chip + 1) % chips) for chip in range(chips)]
    return drawn(links, chips, gbps=[gbps] * chips, latency_ns=[latency_ns] * chips)


def star(chips: int, gbps: float, latency_ns: float) -> Topology:
    links = [(chip, chips) for chip in range(chips)]
    return drawn(links, chips, 1, gbps=[gbps] * chips, latency_ns=[latency_ns] * chips)


# ASTRA-sim (astra-sim/astra-sim, examples/network)


def of_gigabytes(rate: float) -> float:
    """Gbit/s of a rate in the analytical backend's gigabytes a second."""
    return rate * GIGABYTE * 8 / 1e9


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        # analytical/Ring_4npus.yml, HGX-H100-validated.yml
        (
            ring(4, of_gigabytes(50), 500.0),
            "topology: [ Ring ]\nnpus_count: [ 4 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n",
        ),
        (
            star(8, of_gigabytes(400), 936.25),
            "topology: [ Switch ]\nnpus_count: [ 8 ]\nbandwidth: [ 400.0 ]\nlatency: [ 936.25 ]",
        ),
    ],
    ids=["Ring_4npus", "HGX-H100-validated"],
)
def test_analytical_examples(topology: Topology, said: str) -> None:
    (published,) = read_analytical(said)
    (ours,) = read_analytical(analytical(topology, "example").text)
    assert (ours.block, ours.length) == (published.block, published.length)
    assert ours.gbps == pytest.approx(published.gbps, rel=1e-14)
    assert ours.latency_ns == published.latency_ns
    (found,) = dimensions(topology) or ()
    assert found.gbps == pytest.approx(published.gbps, rel=1e-14)


def test_ns3_example_of_a_switch() -> None:
    """ns3/topology/8_nodes_1_switch_topology.txt, and the logical dimensions."""
    lines = ["9 1 8", "8", *(f"8 {host} 400Gbps 0.0005ms 0" for host in range(8)), ""]
    published = read_ns3("\n".join(lines))
    exported = ns3(star(8, 400.0, 500.0), "star")
    ours = read_ns3(exported.text)
    assert ours[:2] == published[:2]
    assert {(pair(*link[:2]), *link[2:]) for link in ours[2]} == {
        (pair(*link[:2]), *link[2:]) for link in published[2]
    }
    ((_, logical),) = exported.beside
    # sample_16nodes_2D.json is {"logical-dims": ["8", "2"]}: words, not numbers.
    assert json.loads(logical) == {"logical-dims": ["8"]}


def test_ns3_example_of_a_ring() -> None:
    """ns3/topology/8nodes_ring_topology.txt, whose hosts are joined to one another.

    Ours has a router before each host, as hosts forward nothing there; without them it
    is the example's.
    """
    links = [f"{host} {(host + 1) % 8} 25Gbps 0.005ms 0" for host in range(8)]
    published = read_ns3("\n".join(["8 0 8", "", *links, ""]))
    vertices, switches, found = read_ns3(ns3(ring(8, 25.0, 5000.0), "ring").text)
    assert (vertices, switches) == (16, set(range(8, 16)))
    assert [link for link in found if link[0] < 8] == [
        (host, host + 8, 50.0, 0.0) for host in range(8)
    ]
    between = {(pair(one - 8, other - 8), *said) for one, other, *said in found if one >= 8}
    assert between == {(pair(one, other), *said) for one, other, *said in published[2]}


# BookSim2 (booksim/booksim2, src/examples/anynet)


def test_anynet_example() -> None:
    """anynet_file: three routers with three nodes each; a way back may go unsaid."""
    nodes, channels = read_anynet(
        "router 0 node 0 node 1 node 2 router 1\n"
        "router 1 node 3 node 4 node 5\n"
        "router 2 node 6 node 7 node 8 router 1 router 0\n"
    )
    assert nodes == {node: node // 3 for node in range(9)}
    assert channels == {(one, other): 1 for one in range(3) for other in range(3) if one != other}
    # README: a number is the cycles of this direction alone.
    _, channels = read_anynet("router 0 router 1 10 router 2 5\nrouter 1\nrouter 2")
    assert channels == {(0, 1): 10, (1, 0): 1, (0, 2): 5, (2, 0): 1}


def test_anynet_says_both_directions() -> None:
    """What the example leaves to the default would be one cycle on the way back."""
    text = anynet(ring(3, 400.0, 10.0), "ring", cycle_ns=1.0).text
    assert text == (
        "router 0 node 0 router 1 10 router 2 10\n"
        "router 1 node 1 router 0 10 router 2 10\n"
        "router 2 node 2 router 0 10 router 1 10\n"
    )


# LogGOPSim (spcl/LogGOPSim)


def barrier(ranks: int) -> Programs:
    members = tuple(range(ranks))
    operation = ReplayedOperation(
        ("all:barrier", 0),
        Configuration("ring", members),
        dict.fromkeys(members, 1),
        kind="barrier",
    )
    steps = [Step(0, "begin"), Step(0, "issue", 0, operation), Step(0, "wait", 0, operation)]
    return from_steps({rank: [*steps, Step(0, "end")] for rank in members})


def dissemination(ranks: int) -> str:
    """dissemination_16.goal: in round k rank r tells rank r + 2^k what it heard."""
    lines = [f"num_ranks {ranks}", ""]
    for rank in range(ranks):
        lines.append(f"rank {rank} {{")
        for turn in range((ranks - 1).bit_length()):
            out, heard = 2 * turn + 1, 2 * turn
            lines.append(f"l{out}: send 1b to {(rank + 2**turn) % ranks} tag 0")
            if turn:
                lines.append(f"l{out} requires l{heard}")
            lines.append(f"l{heard + 2}: recv 1b from {(rank - 2**turn) % ranks} tag 0")
        lines += ["}", ""]
    return "\n".join(lines)


#: Defaults of the simulator in ns: latency, overhead on a processor, gap of messages.
LATENCY, OVERHEAD, GAP = 2500, 1500, 1000


def loggp(ranks: list[dict[str, Operation]]) -> list[int]:
    """When each rank is done in the LogGP model, messages of a byte.

    An operation holds the cpu that it names, a message the network card for a gap.
    """
    done: dict[tuple[int, str], int] = {}
    sent: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    free: dict[tuple[int, int], int] = defaultdict(int)
    card: dict[tuple[int, str], int] = defaultdict(int)
    left = [(rank, label) for rank, own in enumerate(ranks) for label in own]
    while left:
        ready = []
        for rank, label in left:
            each = ranks[rank][label]
            begin = [done.get((rank, other)) for other in each.after]
            if None in begin:
                continue
            start = max([0, free[rank, each.cpu], card[rank, each.what], *filter(None, begin)])
            if each.what == "recv":
                arrived = sent[each.peer, rank, each.tag]
                if not arrived:
                    continue
                start = max(start, arrived[0])
            ready.append((start, rank, label))
        start, rank, label = min(ready)
        each = ranks[rank][label]
        if each.what == "recv":
            sent[each.peer, rank, each.tag].pop(0)
        lasts = each.size if each.what == "calc" else OVERHEAD
        done[rank, label] = free[rank, each.cpu] = start + lasts
        if each.what != "calc":
            assert each.size == 1
            card[rank, each.what] = start + GAP
        if each.what == "send":
            sent[rank, each.peer, each.tag].append(start + OVERHEAD + LATENCY)
        left.remove((rank, label))
    return [max((done[rank, label] for label in own), default=0) for rank, own in enumerate(ranks)]


def test_a_barrier_is_the_published_dissemination_schedule(tmp_path: Path) -> None:
    published = read_goal(dissemination(16))
    write_goal(tmp_path / "barrier.goal", barrier(16))
    ours = read_goal((tmp_path / "barrier.goal").read_text())
    for rank in range(16):
        one, other = (
            [(each.what, each.size, each.peer) for each in own.values() if each.size]
            for own in (ours[rank], published[rank])
        )
        assert one == other
    # The simulator's README: its hosts end after 22,000 ns.
    assert set(loggp(published)) == set(loggp(ours)) == {22_000}


# GraphML (graphml.graphdrawing.org, the primer's first example)


def test_the_first_graph_of_the_graphml_primer(tmp_path: Path) -> None:
    ends = ["0 2", "1 2", "2 3", "3 5", "3 4", "4 6", "6 5", "5 7", "6 8", "8 7", "8 9", "8 10"]
    nodes = "".join(f'<node id="n{number}"/>\n' for number in range(11))
    edges = "".join('<edge source="n{}" target="n{}"/>\n'.format(*each.split(" ")) for each in ends)
    path = tmp_path / "simple.graphml"
    path.write_text(
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"\n'
        '    xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"\n'
        '    xsi:schemaLocation="http://graphml.graphdrawing.org/xmlns\n'
        '    http://graphml.graphdrawing.org/xmlns/1.0/graphml.xsd">\n'
        f'<graph id="G" edgedefault="undirected">\n{nodes}{edges}</graph>\n</graphml>\n'
    )
    topology = imported(path)
    found = set(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    wanted = {tuple(map(int, each.split(" "))) for each in ends}
    assert topology.chips == 11
    assert found == wanted | {(other, one) for one, other in wanted}


def test_a_line_of_two_may_be_called_a_ring_elsewhere() -> None:
    """The backend's own three-dimensional example has a ring of two.

    Ours calls a line of two a full mesh: one link, where a ring could mean two.
    """
    cube = chosen("topology=torus_3d", "topology.x_scale=2", "topology.y_scale=2")
    blocks = [each.block for each in read_analytical(analytical(cube, "cube").text)]
    assert blocks[:2] == ["FullyConnected", "FullyConnected"]
