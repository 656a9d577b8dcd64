"""Networks for the simulator BookSim2 (``topology = anynet``, ``network_file``).

Every vertex is a router, and a chip a node on a router of its own. A line holds a
router and all its neighbours, each with the cycles of the channel there: the way back
has a latency of its own.
"""

from __future__ import annotations

from math import ceil

from railx.exchange.wires import Exported, join
from railx.vocabulary.topology import Topology

__all__ = ["anynet"]


def anynet(topology: Topology, name: str, *, cycle_ns: float = 1.0) -> Exported:
    """The network; latencies are whole cycles, at least 1, rounded up."""
    joined = join(topology)
    near: list[list[tuple[int, int]]] = [[] for _ in range(topology.vertices)]
    for low, high, latency_ns in zip(
        joined.low.tolist(), joined.high.tolist(), joined.latency_ns.tolist(), strict=True
    ):
        # What is a whole number of cycles stays one whatever the last bit says.
        cycles = max(1, ceil(round(latency_ns / cycle_ns, 9)))
        near[low].append((high, cycles))
        near[high].append((low, cycles))
    lines = []
    for vertex, neighbours in enumerate(near):
        words = [f"router {vertex}"]
        if vertex < topology.chips:
            words.append(f"node {vertex}")
        words += [f"router {neighbour} {cycles}" for neighbour, cycles in sorted(neighbours)]
        lines.append(" ".join(words))
    lost = (
        "bandwidths: every channel carries one flit a cycle",
        *(("parallel links between two vertices are one",) if joined.lost else ()),
        "routings: BookSim2 takes one shortest path, on any virtual channel",
    )
    return Exported("\n".join([*lines, ""]), lost)
