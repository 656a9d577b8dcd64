"""Networks of ASTRA-sim's analytical backend as links: products of rings, full meshes
and switches.

Both forms are read: ``topology``, ``npus_count``, ``bandwidth`` and ``latency`` (YAML
or JSON), and the older JSON with ``topologies-per-dim`` or ``topology-name``,
``units-count``, ``link-bandwidth``, ``link-latency`` and ``links-count``. Rates are
2^30 byte/s of a link in one direction, latencies nanoseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from railx.errors import UserError
from railx.families.imported.network import FileLink, Network

_GBPS = 8 * 2**30 / 1e9
_BLOCKS = ("Ring", "FullyConnected", "Switch")
#: The words of the older form by those of the other one.
_OLDER = {
    "topology": "topologies-per-dim",
    "npus_count": "units-count",
    "bandwidth": "link-bandwidth",
    "latency": "link-latency",
}


def astra_network(path: Path, content: Mapping[str, Any]) -> Network:
    """The network; neighbours of the first dimension have consecutive numbers.

    A link of a ring or a full mesh leads both ways. A switch joins the NPUs of a line.
    UserError where a key is missing or its values do not fit.
    """
    values = {key: _listed(path, content, key) for key in _OLDER}
    sizes = values["npus_count"]
    if len({len(of_key) for of_key in values.values()}) > 1:
        raise UserError(
            f"got {path} with {', '.join(f'{len(v)} {k}' for k, v in values.items())}; allowed: as"
            " many of each, one for each dimension"
        )
    if not all(type(size) is int and size > 0 for size in sizes) or prod(sizes) < 2:
        raise UserError(f"got {path} with npus_count {sizes}; allowed: whole numbers above 0")
    links_count = content.get("links-count", [None] * len(sizes))
    chips = np.arange(prod(sizes)).reshape(sizes[::-1])
    links: list[FileLink] = []
    switches: list[str] = []
    for number, size in enumerate(sizes):
        block = {"AllToAll": "FullyConnected"}.get(values["topology"][number])
        block = block or values["topology"][number]
        rate, latency_ns = (
            _real(path, key, values[key][number]) for key in ("bandwidth", "latency")
        )
        if block not in _BLOCKS:
            raise UserError(f"got {path} with topology {block}; allowed: {', '.join(_BLOCKS)}")
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
            links += [FileLink(pair, rate * _GBPS, latency_ns, lanes) for pair in ends]
    return Network(tuple(map(str, range(chips.size))), tuple(switches), tuple(links))


def _listed(path: Path, content: Mapping[str, Any], key: str) -> list[Any]:
    """The values of a key by dimension."""
    value = content.get(key, content.get(_OLDER[key]))
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
