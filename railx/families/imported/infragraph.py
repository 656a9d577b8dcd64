"""Networks of InfraGraph as links between accelerators and switches.

Devices have components and edges, instances of devices are joined by edges. A link
without a bandwidth is no wire: its ends are one vertex, as an accelerator and its
ports are. A vertex with one ``xpu`` is a chip; others are switches, or left out where
they lead nowhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from railx.errors import UserError
from railx.families.imported.network import FileLink, Network
from railx.vocabulary.union import roots

_PART = re.compile(r"([\w-]+)(?:\[([\d:-]*)\])?$")
_GBPS = {"gigabits_per_second": 1.0, "gigabytes_per_second": 8.0}
_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6}
#: A link between two components, and its description.
_Edge = tuple[str, str, Mapping[str, Any]]


def infragraph_network(path: Path, content: Mapping[str, Any]) -> Network:
    """The network of a file's content; UserError where it is no whole InfraGraph."""
    try:
        nodes, edges = _Expansion(path, content).expand()
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"got {path}, no InfraGraph ({error!r}); allowed: its YAML") from None
    # A vertex is the first of the components that are joined without a bandwidth.
    vertex_of = roots(nodes, (ends for *ends, link in edges if not _bandwidth(link)))
    wires = [
        (vertex_of[low], vertex_of[high], link)
        for low, high, link in edges
        if _bandwidth(link) and vertex_of[low] != vertex_of[high]
    ]
    xpus: dict[str, list[str]] = {}
    for name, kind in nodes.items():
        if kind == "xpu":
            xpus.setdefault(vertex_of[name], []).append(name)
    shared = next((names for names in xpus.values() if len(names) > 1), None)
    if shared is not None:
        raise UserError(
            f"got {path} with {shared[0]} and {shared[1]} joined by a link without a bandwidth;"
            " allowed: links with one between accelerators"
        )
    wires = _without_ends(wires, set(xpus))
    chips = list(xpus)
    switches = [
        v for v in dict.fromkeys(end for wire in wires for end in wire[:2]) if v not in xpus
    ]
    number = {vertex: index for index, vertex in enumerate([*chips, *switches])}
    links: Counter[tuple[int, int, float, float | None]] = Counter()
    for low, high, link in wires:
        ends = sorted((number[low], number[high]))
        rate, latency = _rate(path, _bandwidth(link), _GBPS), link["physical"].get("latency")
        flight = _rate(path, latency, _NS) if latency else None
        links[ends[0], ends[1], rate, flight] += 1
    return Network(
        tuple(xpus[chip][0] for chip in chips),
        tuple(f"switch {switch}" for switch in switches),
        tuple(
            FileLink((low, high), gbps, latency_ns, lanes)
            for (low, high, gbps, latency_ns), lanes in links.items()
        ),
    )


class _Expansion:
    """All components by their full names, and the edges between them."""

    def __init__(self, path: Path, content: Mapping[str, Any]) -> None:
        self._path = path
        self._devices = {device["name"]: device for device in content["devices"]}
        self._content = content

    def expand(self) -> tuple[dict[str, str], list[_Edge]]:
        """The kind of each component, and the edges."""
        nodes: dict[str, str] = {}
        edges: list[_Edge] = []
        counts = {}
        for instance in self._content["instances"]:
            counts[instance["name"]] = instance["count"], instance["device"]
            for index in range(instance["count"]):
                self._device(instance["device"], f"{instance['name']}.{index}", nodes, edges)
        links = {link["name"]: link for link in self._content.get("links") or ()}
        for edge in self._content.get("edges") or ():
            ends = []
            for end in (edge["ep1"], edge["ep2"]):
                name, chosen = self._part(end["instance"])
                count, device = counts[name]
                inside = list(self._names(device, end["component"]))
                ends.append([f"{name}.{i}.{c}" for i in _indices(chosen, count) for c in inside])
            edges += self._pairs(edge, ends[0], ends[1], links)
        return nodes, edges

    def _device(self, name: str, prefix: str, nodes: dict[str, str], edges: list[_Edge]) -> None:
        device = self._devices[name]
        for component in device["components"]:
            kind = component.get("choice")
            kind = component.get("custom", {}).get("type") if kind == "custom" else kind
            for index in range(component["count"]):
                full = f"{prefix}.{component['name']}.{index}"
                if kind == "device":
                    self._device(component["name"], full, nodes, edges)
                else:
                    nodes[full] = str(kind)
        links = {link["name"]: link for link in device.get("links") or ()}
        for edge in device.get("edges") or ():
            ends = []
            for end in (edge["ep1"], edge["ep2"]):
                inside = ".".join(filter(None, (end.get("device"), end["component"])))
                ends.append([f"{prefix}.{part}" for part in self._names(name, inside)])
            edges += self._pairs(edge, ends[0], ends[1], links)

    def _names(self, device: str, text: str) -> Iterator[str]:
        """The components of a device that dotted names with slices mean."""
        lists = []
        for word in text.split("."):
            name, chosen = self._part(word)
            components = {c["name"]: c["count"] for c in self._devices[device]["components"]}
            lists.append([f"{name}.{index}" for index in _indices(chosen, components[name])])
            device = name
        yield from (".".join(parts) for parts in product(*lists))

    def _part(self, text: str) -> tuple[str, str | None]:
        match = _PART.match(text)
        if match is None:
            raise UserError(
                f"got {self._path} with end {text!r}; allowed: a name with or without [slice]"
            )
        return match[1], match[2]

    def _pairs(
        self, edge: Mapping[str, Any], low: list[str], high: list[str], links: Mapping[str, Any]
    ) -> Iterator[_Edge]:
        scheme = edge.get("scheme")
        if scheme not in ("one2one", "many2many"):
            raise UserError(f"got {self._path} with scheme {scheme!r}; allowed: one2one, many2many")
        pairs = zip(low, high, strict=False) if scheme == "one2one" else product(low, high)
        for first, second in pairs:
            if first != second:
                yield first, second, links[edge["link"]]


def _indices(chosen: str | None, count: int) -> range:
    if not chosen:
        return range(count)
    words = [int(word) if word else None for word in chosen.split(":")]
    if len(words) == 1 and words[0] is not None:
        index = range(count)[words[0]]
        return range(index, index + 1)
    return range(count)[slice(*words)]


def _bandwidth(link: Mapping[str, Any]) -> Any:
    return (link.get("physical") or {}).get("bandwidth")


def _rate(path: Path, value: Mapping[str, Any], units: Mapping[str, float]) -> float:
    choice = value.get("choice", next(iter(value)))
    if choice not in units:
        raise UserError(f"got {path} with a link in {choice}; allowed: {', '.join(units)}")
    return float(value[choice]) * units[choice]


def _without_ends(wires: list[_Edge], chips: set[str]) -> list[_Edge]:
    """The wires without those to vertices that lead nowhere."""
    while True:
        degree = Counter(end for wire in wires for end in wire[:2])
        left = [w for w in wires if all(end in chips or degree[end] > 1 for end in w[:2])]
        if len(left) == len(wires):
            return wires
        wires = left
