"""Networks from files: GraphML, lists of links, and files of simulators.

All give the same :class:`Network`: chips first, then switches, and one entry per
full-duplex link. Values that a file leaves out are None; the settings supply them.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from railx.errors import UserError
from railx.families.imported.infragraph import infragraph_network
from railx.families.imported.network import FileLink, Network
from railx.vocabulary.topology import LINK_KINDS
from railx.vocabulary.union import roots

#: Suffixes of readable files.
ENDINGS = (".graphml", ".csv", ".txt", ".yml", ".yaml", ".json")
#: Attributes of a link that a column or an edge may hold.
_LINK_KEYS = ("gbps", "lanes", "latency_ns", "kind", "rail")
#: Prefix of the names of switches in a list of links.
_SWITCH = "switch"
_ASTRA_GBPS = 8 * 2**30 / 1e9
_ASTRA_BLOCKS = ("Ring", "FullyConnected", "Switch")
#: The words of the older form of ASTRA-sim by those of the other one.
_ASTRA_OLDER = {
    "topology": "topologies-per-dim",
    "npus_count": "units-count",
    "bandwidth": "link-bandwidth",
    "latency": "link-latency",
}


def read_network(path: Path) -> Network:
    """Read and check a file; ValueError names the first fault in one line."""
    if path.suffix not in ENDINGS:
        raise UserError(f"got {path}; allowed: a file that ends in {', '.join(ENDINGS)}")
    try:
        if path.suffix in (".yml", ".yaml", ".json"):
            network = _of_simulator(path)
        else:
            network = _graphml(path) if path.suffix == ".graphml" else _edge_list(path)
    except OSError as error:
        raise UserError(f"got {path}: {error.strerror}; allowed: a file to read") from None
    except UnicodeDecodeError:
        raise UserError(f"got {path}, which is no text; allowed: text in UTF-8") from None
    _check(path, network)
    return network


def _of_simulator(path: Path) -> Network:
    """A network of ASTRA-sim or InfraGraph, by its keys."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, RecursionError):
        raise UserError(f"got {path}, which is no YAML or JSON; allowed: a whole file") from None
    if isinstance(content, dict) and {"npus_count", "units-count"} & set(content):
        return astra_network(path, content)
    if isinstance(content, dict) and {"devices", "instances"} <= set(content):
        return infragraph_network(path, content)
    raise UserError(
        f"got {path} without npus_count (ASTRA-sim) or devices and instances (InfraGraph);"
        " allowed: a network of one of them"
    )


def _graphml(path: Path) -> Network:
    try:
        root = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, LookupError) as error:
        raise UserError(f"got {path}, which is no XML ({error}); allowed: GraphML") from None
    if _tag(root) != "graphml":
        raise UserError(f"got {path} with <{_tag(root)}>; allowed: <graphml>")
    graphs = _below(root, "graph")
    if len(graphs) != 1:
        raise UserError(f"got {path} with {len(graphs)} graphs; allowed: one")
    names, defaults = _graphml_keys(path, root)
    (graph,) = graphs
    nodes: dict[str, dict[str, str]] = {}
    for node in _below(graph, "node"):
        name = node.get("id", "")
        if not name or name in nodes:
            raise UserError(f"got {path} with node id {name!r}; allowed: a name of its own")
        if _below(node, "graph"):
            raise UserError(f"got {path} with a graph in node {name}; allowed: nodes alone")
        nodes[name] = defaults["node"] | _data(node, names)
    edges = []
    for number, edge in enumerate(_below(graph, "edge")):
        ends = edge.get("source", ""), edge.get("target", "")
        for end in ends:
            if end not in nodes:
                raise UserError(f"got {path}, edge {number} to {end!r}; allowed: the id of a node")
        edges.append((f"edge {number}", *ends, defaults["edge"] | _data(edge, names)))
    if graph.get("edgedefault") == "directed":
        edges = _both_ways(path, edges)
    return _network(path, nodes, edges)


def _graphml_keys(
    path: Path, root: ElementTree.Element
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """The names of attributes by their keys, and the default values."""
    names: dict[str, str] = {}
    defaults: dict[str, dict[str, str]] = {"node": {}, "edge": {}}
    for key in _below(root, "key"):
        name = key.get("attr.name", key.get("id", ""))
        names[key.get("id", "")] = name
        for default in _below(key, "default"):
            for element in defaults:
                if key.get("for") in (element, "all"):
                    defaults[element][name] = (default.text or "").strip()
    return names, defaults


def _both_ways(
    path: Path, edges: list[tuple[str, str, str, dict[str, str]]]
) -> list[tuple[str, str, str, dict[str, str]]]:
    """One edge for every pair of opposite edges of a directed graph."""
    unmatched: Counter[tuple[str, str, tuple[tuple[str, str], ...]]] = Counter()
    links = []
    for where, source, target, data in edges:
        attributes = tuple(sorted((key, data[key]) for key in _LINK_KEYS if key in data))
        if unmatched[target, source, attributes]:
            unmatched[target, source, attributes] -= 1
        else:
            unmatched[source, target, attributes] += 1
            links.append((where, source, target, data))
    for (source, target, _), left in unmatched.items():
        if left:
            raise UserError(
                f"got {path} with an edge from {source} to {target} alone; allowed: links that"
                " lead both ways alike"
            )
    return links


def _network(
    path: Path,
    nodes: Mapping[str, Mapping[str, str]],
    edges: Iterable[tuple[str, str, str, Mapping[str, str]]],
) -> Network:
    """The network, with a chip for each endpoint of a node."""
    chips: list[str] = []
    switches: list[str] = []
    below: list[tuple[str, str]] = []
    for name, data in nodes.items():
        endpoints = _endpoints(path, name, data)
        if endpoints == 1:
            chips.append(name)
        else:
            switches.append(name)
            for number in range(endpoints):
                chips.append(f"{name}.{number}")
                below.append((chips[-1], name))
    return _numbered(path, chips, switches, edges, below)


def _numbered(
    path: Path,
    chips: list[str],
    switches: list[str],
    edges: Iterable[tuple[str, str, str, Mapping[str, str]]],
    below: Iterable[tuple[str, str]] = (),
) -> Network:
    """The network of these edges, and of the chips ``below`` a node."""
    number_of = {name: number for number, name in enumerate([*chips, *switches])}
    links = [
        _link(f"{path}, {where}", (number_of[source], number_of[target]), data)
        for where, source, target, data in edges
    ]
    leaves = [FileLink((number_of[chip], number_of[node]), kind="leaf") for chip, node in below]
    return Network(tuple(chips), tuple(switches), (*leaves, *links))


def _endpoints(path: Path, name: str, data: Mapping[str, str]) -> int:
    """Chips of a node, one by default."""
    if "endpoints" in data:
        return int(_number(f"{path}, node {name}", "endpoints", data["endpoints"], 0, integer=True))
    kind = data.get("kind", "chip")
    if kind not in ("chip", _SWITCH):
        raise UserError(f"got {path}, node {name} of kind {kind!r}; allowed: chip, switch")
    return int(kind == "chip")


def _edge_list(path: Path) -> Network:
    rows = list(_rows(path))
    names = dict.fromkeys(name for _, *ends, _ in rows for name in ends)
    chips = [name for name in names if not name.startswith(_SWITCH)]
    switches = [name for name in names if name.startswith(_SWITCH)]
    if all(name.isascii() and name.isdigit() for name in chips):
        chips.sort(key=int)
    return _numbered(path, chips, switches, rows)


def _rows(path: Path) -> Iterator[tuple[str, str, str, dict[str, str]]]:
    """The line number of a link, its ends and its attributes."""
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            reader = csv.DictReader(file, strict=True)
            allowed = ("src", "dst", *_LINK_KEYS)
            try:
                columns = reader.fieldnames or []
                if not {"src", "dst"} <= set(columns) <= set(allowed):
                    got = ", ".join(columns)[:60] or "none"
                    raise UserError(
                        f"got {path} with columns {got}; allowed: src, dst and any of"
                        f" {', '.join(_LINK_KEYS)}"
                    )
                for row in reader:
                    where = f"line {reader.line_num}"
                    if None in row or None in row.values():
                        raise UserError(f"got {path}, {where}; allowed: {len(columns)} columns")
                    attributes = {key: row[key] for key in _LINK_KEYS if row.get(key)}
                    yield where, row["src"], row["dst"], attributes
            except csv.Error as error:
                raise UserError(f"got {path}, which is no CSV ({error}); allowed: CSV") from None
            return
        for number, line in enumerate(file, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            if not 2 <= len(words) <= 5:
                raise UserError(
                    f"got {path}, line {number} with {len(words)} words; allowed: SRC DST [GBPS"
                    " [LANES [LATENCY_NS]]]"
                )
            data = dict(zip(_LINK_KEYS, words[2:], strict=False))
            yield f"line {number}", words[0], words[1], data


def _link(where: str, ends: tuple[int, int], data: Mapping[str, str]) -> FileLink:
    if ends[0] == ends[1]:
        raise UserError(f"got {where}, a link of a vertex to itself; allowed: two vertices")
    kind = data.get("kind")
    if kind is not None and kind not in LINK_KINDS:
        raise UserError(f"got {where} with kind {kind!r}; allowed: {', '.join(LINK_KINDS)}")
    attributes: dict[str, Any] = {}
    for key, minimum in (("gbps", 0), ("latency_ns", 0), ("lanes", 1), ("rail", -1)):
        if key in data:
            integer = key in ("lanes", "rail")
            attributes[key] = _number(where, key, data[key], minimum, integer=integer)
            if key == "gbps" and not attributes[key]:
                raise UserError(f"got {where} with gbps 0; allowed: greater than 0")
    return FileLink(ends, kind=kind, **attributes)


def _number(where: str, key: str, text: str, minimum: int, *, integer: bool = False) -> float:
    try:
        value: float = int(text) if integer else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not minimum <= value < 2**31:
        number = "a whole number" if integer else "a number"
        raise UserError(
            f"got {where} with {key} {text!r}; allowed: {number} from {minimum} up, below {2**31:,}"
        )
    return value


def _check(path: Path, network: Network) -> None:
    if len(network.chips) < 2:
        raise UserError(f"got {path} with {len(network.chips)} chips; allowed: at least 2")
    names = (*network.chips, *network.switches)
    if len(set(names)) < len(names):
        raise UserError(f"got {path} with a name twice; allowed: a name for each vertex")
    root = roots(range(len(names)), (link.ends for link in network.links))
    lost = next((name for number, name in enumerate(names) if root[number] != root[0]), None)
    if lost is not None:
        raise UserError(
            f"got {path}, where no path leads from {names[0]} to {lost}; allowed: one connected"
            " network"
        )


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _below(element: ElementTree.Element, tag: str) -> list[ElementTree.Element]:
    return [child for child in element if _tag(child) == tag]


def _data(element: ElementTree.Element, names: Mapping[str, str]) -> dict[str, str]:
    """The values of an element by the names of the attributes."""
    return {
        names.get(data.get("key", ""), data.get("key", "")): (data.text or "").strip()
        for data in _below(element, "data")
    }


def astra_network(path: Path, content: Mapping[str, Any]) -> Network:
    """A network of ASTRA-sim's analytical backend as links: a product of rings, full
    meshes and switches, whose neighbours of the first dimension have consecutive
    numbers.

    Both forms are read: ``topology``, ``npus_count``, ``bandwidth`` and ``latency``
    (YAML or JSON), and the older JSON with ``topologies-per-dim`` or ``topology-name``,
    ``units-count``, ``link-bandwidth``, ``link-latency`` and ``links-count``. Rates are
    2^30 byte/s of a link in one direction, latencies nanoseconds. A link of a ring or a
    full mesh leads both ways. A switch joins the NPUs of a line. UserError where a key
    is missing or its values do not fit.
    """
    values = {key: _listed(path, content, key) for key in _ASTRA_OLDER}
    sizes = values["npus_count"]
    if len({len(of_key) for of_key in values.values()}) > 1:
        raise UserError(
            f"got {path} with {', '.join(f'{len(v)} {k}' for k, v in values.items())}; allowed: as"
            " many of each, one for each dimension"
        )
    if not all(type(size) is int and size > 0 for size in sizes) or math.prod(sizes) < 2:
        raise UserError(f"got {path} with npus_count {sizes}; allowed: whole numbers above 0")
    links_count = content.get("links-count", [None] * len(sizes))
    chips = np.arange(math.prod(sizes)).reshape(sizes[::-1])
    links: list[FileLink] = []
    switches: list[str] = []
    for number, size in enumerate(sizes):
        block = values["topology"][number]
        block = "FullyConnected" if block == "AllToAll" else block
        rate, latency_ns = (
            _real(path, key, values[key][number]) for key in ("bandwidth", "latency")
        )
        if block not in _ASTRA_BLOCKS:
            raise UserError(
                f"got {path} with topology {block}; allowed: {', '.join(_ASTRA_BLOCKS)}"
            )
        lanes = _lanes(path, block, size, links_count[number])
        lines = np.moveaxis(chips, len(sizes) - 1 - number, -1).reshape(-1, size)
        for line in lines.tolist() if size > 1 else ():
            if block == "Switch":
                ends = [(chip, chips.size + len(switches)) for chip in line]
                switches.append(f"switch{len(switches)}")
            elif block == "Ring" and size > 2:
                ends = list(zip(line, [*line[1:], line[0]], strict=True))
            else:
                ends = list(combinations(line, 2))
            links += [FileLink(pair, rate * _ASTRA_GBPS, latency_ns, lanes) for pair in ends]
    return Network(tuple(map(str, range(chips.size))), tuple(switches), tuple(links))


def _listed(path: Path, content: Mapping[str, Any], key: str) -> list[Any]:
    """The values of a key by dimension."""
    value = content.get(key, content.get(_ASTRA_OLDER[key]))
    if (
        key == "topology"
        and value is None
        and str(content.get("topology-name")).startswith("Torus")
    ):
        return ["Ring"] * len(_listed(path, content, "npus_count"))
    if value is None:
        raise UserError(f"got {path} without {key}; allowed: a network of ASTRA-sim")
    return value if isinstance(value, list) else [value]


def _real(path: Path, key: str, value: Any) -> float:
    low = 0.0 if key == "latency" else 1e-12
    try:
        # YAML reads numbers like 1e-05 as words.
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number < 1e18:
        raise UserError(f"got {path} with {key} {value!r}; allowed: numbers, bandwidths above 0")
    return number


def _lanes(path: Path, block: str, size: int, links_count: Any) -> int:
    """Lanes of each link: an NPU's links of the dimension over those of one network."""
    if links_count is None:
        return 1
    single = {"Ring": 2, "FullyConnected": size - 1, "Switch": 1}[block]
    if type(links_count) is not int or links_count < single or links_count % single:
        raise UserError(
            f"got {path} with links-count {links_count!r} for {block}; allowed: a multiple of"
            f" {single}"
        )
    return links_count // single
