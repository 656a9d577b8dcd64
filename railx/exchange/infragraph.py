"""Networks as InfraGraph: devices with components, instances of them, and edges.

A ``chip`` is an xpu and its ports, a ``switch`` an asic and its ports; every port is
joined to the xpu or asic. A link takes as many ports on both sides as it has lanes. The
file is written line by line, because the package takes minutes for large networks.
"""

from __future__ import annotations

import json

import numpy as np

from railx.exchange.wires import Exported, decimal, wires
from railx.vocabulary.topology import LINK_KINDS, Topology

__all__ = ["infragraph"]


def infragraph(topology: Topology, name: str) -> Exported:
    """The network as YAML; links of one kind, rate and latency share a description."""
    links = wires(topology)
    chips = topology.chips
    used = np.bincount(links.low, links.lanes, minlength=topology.vertices)
    used += np.bincount(links.high, links.lanes, minlength=topology.vertices)
    ports = used.astype(np.int64)
    devices = [("chip", "xpu", "xpu", int(ports[:chips].max()))]
    instances = [("chip", chips)]
    if topology.switches:
        devices.append(("switch", "asic", "switch", int(ports[chips:].max())))
        instances.append(("switch", topology.switches))
    kinds = list(
        dict.fromkeys(
            zip(links.kind.tolist(), links.gbps.tolist(), links.latency_ns.tolist(), strict=True)
        )
    )
    link_name = {
        link_kind: f"{LINK_KINDS[link_kind[0]]}_{number}" for number, link_kind in enumerate(kinds)
    }
    lines = [f"name: {json.dumps(name)}", "devices:"]
    for device, middle, choice, count in devices:
        lines += [
            f"- name: {device}",
            "  components:",
            *_component(middle, 1, choice),
            *_component("port", count, "port"),
            "  links:",
            "  - name: inside",
            "  edges:",
            f"  - ep1: {{component: {middle}}}",
            "    ep2: {component: port}",
            "    scheme: many2many",
            "    link: inside",
        ]
    lines.append("links:")
    for link_kind in kinds:
        lines += [
            f"- name: {link_name[link_kind]}",
            "  physical:",
            "    bandwidth:",
            "      choice: gigabits_per_second",
            f"      gigabits_per_second: {_real(link_kind[1])}",
            f"    latency: {{choice: ns, ns: {_real(link_kind[2])}}}",
        ]
    lines.append("instances:")
    for device, count in instances:
        lines += [f"- name: {device}", f"  device: {device}", f"  count: {count}"]
    lines.append("edges:")
    taken = [0] * topology.vertices
    for number in range(len(links)):
        lanes = int(links.lanes[number])
        ends = []
        for vertex in (int(links.low[number]), int(links.high[number])):
            first = taken[vertex]
            taken[vertex] += lanes
            vertex_name = f"chip[{vertex}]" if vertex < chips else f"switch[{vertex - chips}]"
            port = f"port[{first}]" if lanes == 1 else f"port[{first}:{first + lanes}]"
            ends.append(f'{{instance: "{vertex_name}", component: "{port}"}}')
        kind = int(links.kind[number]), float(links.gbps[number]), float(links.latency_ns[number])
        lines += [
            f"- ep1: {ends[0]}",
            f"  ep2: {ends[1]}",
            "  scheme: one2one",
            f"  link: {link_name[kind]}",
        ]
    lost = ["which node of the network a chip is in"] if topology.nodes < chips else []
    if (links.rail >= 0).any():
        lost.append("which rail a link is on")
    if topology.circuits is not None:
        lost.append("optical circuits: links are there, no switches")
    return Exported("\n".join([*lines, ""]), tuple(lost))


def _component(name: str, count: int, choice: str) -> list[str]:
    return [f"  - name: {name}", f"    count: {count}", f"    choice: {choice}"]


def _real(value: float) -> str:
    """A number that YAML reads as a real one."""
    text = decimal(value)
    return text if "." in text else f"{text}.0"
