"""Networks as a list of links, one line each (CSV)."""

from __future__ import annotations

from railx.exchange.wires import Exported, decimal, wires
from railx.vocabulary.topology import LINK_KINDS, Topology

__all__ = ["edge_list"]


def edge_list(topology: Topology, name: str) -> Exported:
    """The links; chips are called by their number, switches ``switch0``, ..."""
    links, chips = wires(topology), topology.chips
    lines = ["src,dst,gbps,lanes,latency_ns,kind,rail"]
    for number in range(len(links)):
        ends = [
            str(vertex) if vertex < chips else f"switch{vertex - chips}"
            for vertex in (int(links.low[number]), int(links.high[number]))
        ]
        fields = (
            decimal(links.gbps[number]),
            str(links.lanes[number]),
            decimal(links.latency_ns[number]),
            LINK_KINDS[links.kind[number]],
            str(links.rail[number]),
        )
        lines.append(",".join((*ends, *fields)))
    lost = ["which node of the network a chip is in"] if topology.nodes < chips else []
    if topology.circuits is not None:
        lost.append("optical circuits: links are there, no switches")
    return Exported("\n".join([*lines, ""]), tuple(lost))
