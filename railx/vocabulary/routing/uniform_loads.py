"""Exact loads of uniform all-to-all in closed form, at any size.

Every function returns a load per row of ``topology.links``: flits per cycle on a lane
when chips offer one flit per cycle on average, spread evenly over all other chips.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from railx.vocabulary.arrays import FloatArray
from railx.vocabulary.grid import Grid, mesh_links, rail_ports
from railx.vocabulary.routing.line_phases import (
    LineRouting,
    Phase,
    WalkOrder,
    by_line,
    by_node,
    mesh_steps,
    uniform_flow,
    walk_orders,
)
from railx.vocabulary.topology import INTERNAL, Topology, kind_code


def torus_lane_loads(topology: Topology, columns: int, rows: int, lanes: int) -> FloatArray:
    """Dimension order on a torus of columns x rows chips.

    Ties between the two directions are split evenly. By symmetry all links of a
    dimension and direction carry the same load. RailX counts the links inside its nodes
    as part of the torus.
    """
    others = topology.chips - 1
    per_direction = [
        # Distances from a place of a ring to all others add up to length^2 // 4.
        rest * (length**2 // 4) / (2 * others) / lanes
        for length, rest in ((columns, rows), (rows, columns))
    ]
    return along_lane_loads(topology, *per_direction)


def along_lane_loads(
    topology: Topology, x: float | FloatArray, y: float | FloatArray
) -> FloatArray:
    """The load x for all links along x and the load y for all along y."""
    links = topology.links
    along_x = np.isin(links.kind, [kind_code("rail_x"), kind_code("torus_x")])
    along_x |= (
        (links.kind == INTERNAL)
        & (np.abs(links.src.astype(np.int64) - links.dst) == 1)
        & (math.isqrt(topology.chips // topology.nodes) > 1)
    )
    return np.where(along_x, x, y)


def half_way_round_ns(grid: Grid) -> float:
    """Bound of the latency on a torus of nodes: half way round a row and a column."""
    total = 0.0
    for length in (grid.columns, grid.rows):
        # Half way round a ring of chips every m-th link is a rail, perhaps the first.
        nodes, inside = -(-(grid.m * length // 2) // grid.m), grid.m - 1
        total += nodes * grid.external_latency_ns + (nodes + 1) * inside * grid.internal_latency_ns
    return total


def phase_lane_loads(
    topology: Topology, phases: Sequence[Phase], routing: LineRouting
) -> FloatArray:
    """Loads of a RailX setting that corrects one coordinate after the other."""
    nodes, m, chips = topology.nodes, phases[0].m, phases[0].chips
    flows, arrived = uniform_flow(phases, nodes, routing)
    orders = walk_orders(phases, routing)
    ports = rail_ports(topology).link
    load = np.zeros(len(topology.links))
    walks = np.zeros((nodes, len(mesh_links(m))))
    for phase, flow, order in zip(phases, flows, orders, strict=False):
        rows = by_line(phase.rail_rows(ports).astype(np.float64), phase).astype(np.int64)
        load[rows[rows >= 0]] = np.broadcast_to(flow.rails(), rows.shape)[rows >= 0]
        walks += by_node(_walked(flow.walks(), m, order), phase, nodes)
    # Every chip of the last node is equally likely; traffic already at its chip does
    # not walk.
    spread = np.broadcast_to(arrived[:, :, None] / chips, (nodes, chips, chips))
    walks += _walked(spread, m, orders[-1])
    # The links inside the nodes come first in the table, node by node.
    load[: walks.size] = walks.ravel()
    return load / topology.links.lanes


def _walked(flow: FloatArray, m: int, order: WalkOrder) -> FloatArray:
    """Load of each mesh link (float[..., mesh link]) of flows between chips of a node.

    Flows: float[..., c, c].
    """
    loads: FloatArray = flow.reshape(-1, m**4) @ _mesh_paths(m, order).T
    return loads.reshape(*flow.shape[:-2], len(mesh_links(m)))


def _mesh_paths(m: int, order: WalkOrder) -> Any:
    """Mesh links of the path from chip c to d: sparse [mesh link, c * m^2 + d]."""
    from scipy.sparse import csr_array

    links, steps, path = mesh_links(m), mesh_steps(m, order), np.arange(m**4)
    link = np.zeros((m * m, m * m), dtype=np.int64)
    link[tuple(links.T)] = np.arange(len(links))
    at, target = np.divmod(path, m * m)
    rows, columns = [path[:0]], [path[:0]]
    for _ in range(2 * (m - 1)):
        on = at != target
        path, at, target = path[on], at[on], target[on]
        rows.append(link[at, steps[at, target]])
        columns.append(path)
        at = steps[at, target]
    where = (np.concatenate(rows), np.concatenate(columns))
    paths = csr_array((np.ones(len(where[0])), where), shape=(len(links), m**4))
    paths.sort_indices()
    return paths
