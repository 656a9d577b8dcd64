"""Networks that the tests of this room write for other tools, and what they hold."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from railx.families import build_topology
from railx.vocabulary.topology import (
    FamilySettings,
    Links,
    Topology,
    chip_nodes,
    duplex_links,
    join_rows,
)
from workflow.config import compose_stage

__all__ = ["NETWORKS", "capacities", "chosen", "drawn", "lane_counts"]

#: A network of each make: products, switches, planes, lanes, rails, circuits.
NETWORKS = {
    "torus": ("topology=torus_2d", "topology.x_scale=5", "topology.y_scale=4"),
    "cube": ("topology=torus_3d", "topology.x_scale=2", "topology.y_scale=3", "topology.z_scale=4"),
    "hyperx": ("topology=hyperx", "topology.shape=[3,4]"),
    "mesh": ("topology=mesh_2d",),
    "rails": ("topology=rail_only", "topology.servers=3"),
    "photonic": ("topology=opus_rails", "topology.servers=5"),
    "railx": ("topology=railx_hyperx", "topology.m=2", "topology.n=1"),
    "dragonfly": ("topology=dragonfly",),
    "file": ("topology=imported",),
}


def chosen(*overrides: str) -> Topology:
    """The topology of a choice of conf/ with changes."""
    return build_topology(compose_stage(overrides, ("topology",))["topology"])


def drawn(pairs: list[tuple[int, int]], chips: int, switches: int = 0, **said: Any) -> Topology:
    """A network of these links, alike in all but what ``said`` gives as lists."""
    settings: FamilySettings = compose_stage(["topology=imported"], ("topology",))["topology"]
    links = join_rows(
        [
            duplex_links(
                np.array([one]),
                np.array([other]),
                "local",
                **(
                    {"gbps": 400.0, "latency_ns": 10.0}
                    | {key: values[number] for key, values in said.items()}
                ),
            )
            for number, (one, other) in enumerate(pairs)
        ]
    )
    return Topology(settings, chips, chips, switches, chip_nodes(chips, 1), links, None)


def _pairs(links: Links, values: Any) -> dict[tuple[int, int], float]:
    found: Counter[tuple[int, int]] = Counter()
    for src, dst, value in zip(
        links.src.tolist(), links.dst.tolist(), values.tolist(), strict=True
    ):
        if src < dst:
            found[src, dst] += value
    return dict(found)


def capacities(topology: Topology) -> dict[tuple[int, int], float]:
    """The bandwidth between any two joined vertices, counted link by link."""
    return _pairs(topology.links, topology.links.capacity_gbps)


def lane_counts(topology: Topology) -> dict[tuple[int, int], float]:
    """The lanes between any two joined vertices."""
    return _pairs(topology.links, topology.links.lanes)
