"""Exact static channel loads: of uniform all-to-all in closed form where a family has
one, else over its routing table.

Every function returns one load per row of ``topology.links``: flits a cycle on one lane
when chips offer one flit a cycle on average, for uniform traffic spread evenly over all
other chips. A cycle moves one flit over an external port. Sources: the MIN routing of
the RailX simulator; dimension-order routing for tori; equal-cost multi-path for fat
trees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from railx.families import build_routing, family_of
from railx.families.fat_tree.settings import FatTreeSettings
from railx.families.railx_hyperx import routing as railx_hyperx
from railx.families.railx_hyperx.settings import RailXHyperXSettings
from railx.families.railx_split import routing as railx_split
from railx.families.railx_split.settings import RailXSplitSettings
from railx.families.railx_torus.settings import RailXTorusSettings
from railx.families.railx_twisted_torus.graph import wrap_shift
from railx.families.railx_twisted_torus.settings import RailXTwistedTorusSettings
from railx.families.torus_2d.settings import Torus2DSettings
from railx.network.settings import AllToAllTraffic, TrafficSettings, UniformTraffic
from railx.network.traffic import traffic_flows
from railx.vocabulary.grid import mesh_links, rail_ports
from railx.vocabulary.routing.analysis import table_lane_loads
from railx.vocabulary.routing.line_phases import (
    LineRouting,
    Phase,
    WalkOrder,
    by_line,
    by_node,
    uniform_flow,
    walk_orders,
)
from railx.vocabulary.topology import INTERNAL, Topology, kind_code

__all__ = ["lane_loads", "static_routings", "uniform_lane_loads"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Routing = Literal["min", "balanced"]

#: Above this a table over all pairs takes minutes, and a gigabyte a block.
_MOST_TABLE_CHIPS = 6_000
_BLOCK = 1_024
_CLOSED_FORMS = (
    RailXHyperXSettings,
    RailXSplitSettings,
    RailXTorusSettings,
    RailXTwistedTorusSettings,
    Torus2DSettings,
    FatTreeSettings,
)


def static_routings(topology: Topology) -> tuple[Routing, ...]:
    """The routings whose loads can be computed on a topology; none where it is too
    large for a table over all pairs.
    """
    if isinstance(topology.settings, _CLOSED_FORMS):
        return ("min", "balanced")
    if topology.chips > _MOST_TABLE_CHIPS:
        return ()
    offered = family_of(topology).routings
    return tuple(routing for routing in ("min", "balanced") if routing in offered)


def lane_loads(
    topology: Topology, traffic: TrafficSettings, routing: Routing, seed: int
) -> FloatArray:
    """As :func:`uniform_lane_loads` for any traffic pattern; those other than uniform
    and all-to-all at up to 6,000 chips.
    """
    if isinstance(traffic, UniformTraffic | AllToAllTraffic):
        return uniform_lane_loads(topology, routing)
    _check_size(topology, f"{traffic.pattern} traffic")
    return _table_loads(topology, routing, traffic_flows(topology, traffic, seed).demand())


def uniform_lane_loads(topology: Topology, routing: Routing) -> FloatArray:
    """Load of one lane of each link row under uniform all-to-all, in flits/cycle per
    flit/chip/cycle offered.

    The mean of the lanes of each row. Exact; at any size for RailX as HyperX, split,
    torus or twisted torus, 2D tori and fat trees, at up to 6,000 chips for the other
    families, ValueError above. ``routing`` as in
    :class:`railx.network.StaticNetworkSettings`.
    """
    settings = topology.settings
    if isinstance(settings, RailXHyperXSettings):
        return (
            _all_to_all_loads(topology, railx_hyperx.phases_of(topology), routing)
            / topology.links.lanes
        )
    if isinstance(settings, RailXSplitSettings):
        return (
            _all_to_all_loads(topology, railx_split.phases_of(topology), routing)
            / topology.links.lanes
        )
    if isinstance(settings, RailXTorusSettings):
        return _torus_loads(
            topology, settings.m * settings.x_scale, settings.m * settings.y_scale, settings.n
        )
    if isinstance(settings, RailXTwistedTorusSettings):
        return _twisted_loads(topology, settings)
    if isinstance(settings, Torus2DSettings):
        return _torus_loads(topology, settings.x_scale, settings.y_scale, settings.n)
    if isinstance(settings, FatTreeSettings):
        return _fat_tree_loads(topology, settings)
    _check_size(topology, f"family {topology.family}")
    return _table_loads(topology, routing, None)


def _check_size(topology: Topology, what: str) -> None:
    if topology.chips > _MOST_TABLE_CHIPS:
        raise ValueError(
            f"topology: {topology.chips:,} chips are too many for a table over all pairs, which"
            f" {what} needs; allowed: at most {_MOST_TABLE_CHIPS:,}, or uniform traffic on a family"
            " with closed forms: railx_hyperx, railx_split, railx_torus, railx_twisted_torus,"
            " torus_2d, fat_tree"
        )


def _table_loads(topology: Topology, routing: Routing, demand: FloatArray | None) -> FloatArray:
    """The loads of a routing table over all pairs (None: uniform), a block of
    destinations at a time.
    """
    blocks = np.split(
        np.arange(topology.chips, dtype=np.int32), range(_BLOCK, topology.chips, _BLOCK)
    )
    loads = [
        table_lane_loads(
            topology,
            build_routing(topology, routing, block),
            None if demand is None else demand[:, block],
        )
        for block in blocks
    ]
    total: FloatArray = np.sum(loads, axis=0)
    return total


def _torus_loads(topology: Topology, columns: int, rows: int, lanes: int) -> FloatArray:
    """Dimension order on a torus of columns x rows chips, ties between the two ways
    round split evenly.

    By symmetry all links of a dimension and direction carry the same. RailX counts the
    links inside its nodes as part of the torus.
    """
    others = topology.chips - 1
    per_direction = [
        rest * _ring_distance(length) / (2 * others) / lanes
        for length, rest in ((columns, rows), (rows, columns))
    ]
    return _along(topology, *per_direction)


def _along(topology: Topology, x: float, y: float) -> FloatArray:
    """One load for all links along x and one for all along y."""
    links = topology.links
    along_x = np.isin(links.kind, [kind_code("rail_x"), kind_code("torus_x")])
    along_x |= (
        (links.kind == INTERNAL)
        & (np.abs(links.src.astype(np.int64) - links.dst) == 1)
        & (_node_side(topology) > 1)
    )
    return np.where(along_x, x, y)


def _twisted_loads(topology: Topology, settings: RailXTwistedTorusSettings) -> FloatArray:
    """Shortest ways x first, equally short ones in equal shares: a shift of all chips
    is a symmetry, so one source stands for all.

    A way to (x, y) crosses the wrap of the columns -1, 0 or 1 times, each time half a
    row further, and goes one way round in x.
    """
    rows, columns = settings.m * settings.y_scale, settings.m * settings.x_scale
    y, x = np.indices((rows, columns))
    crossings = np.array([-1, 0, 1])[:, None, None]
    ahead = (x + crossings * settings.m * wrap_shift(settings)) % columns
    x_steps = np.stack(
        [ahead, np.where(ahead > 0, columns - ahead, 4 * columns)]
    )  # up, down; both the same at 0
    y_steps = np.broadcast_to(np.abs(y + crossings * rows), x_steps.shape)
    length = x_steps + y_steps
    share = (length == length.min(axis=(0, 1))).astype(np.float64)
    share /= share.sum(axis=(0, 1))
    # Steps of one chip's traffic over the two directions and n lanes of its links.
    per_lane = [
        float((share * steps).sum()) / (topology.chips - 1) / (2 * settings.n)
        for steps in (x_steps, y_steps)
    ]
    return _along(topology, *per_lane)


def _ring_distance(length: int) -> int:
    """Sum of the distances from one place of a ring to all others."""
    return sum(min(step, length - step) for step in range(length))


def _node_side(topology: Topology) -> int:
    return math.isqrt(topology.chips // topology.nodes)


def _fat_tree_loads(topology: Topology, settings: FatTreeSettings) -> FloatArray:
    """Equal-cost multi-path: a chip spreads over its planes, a switch over its upward
    ports; up and down carry the same.

    A tapered leaf has fewer ports up than down, and each of them carries so much more;
    so do those of the tier above.
    """
    taper = settings.leaf_down / settings.leaf_up
    pod = settings.leaf_down * settings.switch_radix // 2
    load = np.zeros(len(topology.links))
    for kind, inside, share in (
        ("leaf", 1, 1.0),
        ("aggregation", settings.leaf_down, taper),
        ("core", pod, taper),
    ):
        outside = (topology.chips - inside) / (topology.chips - 1)
        load[topology.links.kind == kind_code(kind)] = outside * share / settings.planes
    return load


def _all_to_all_loads(
    topology: Topology, phases: Sequence[Phase], routing: LineRouting
) -> FloatArray:
    """Load of each link row (all lanes together) of a RailX setting whose coordinates
    are corrected one after the other.
    """
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
    # Every chip of the last node is equally likely; what is at home already does not
    # walk.
    spread = np.broadcast_to(arrived[:, :, None] / chips, (nodes, chips, chips))
    walks += _walked(spread, m, orders[-1])
    # The links inside the nodes come first in the table, node by node.
    load[: walks.size] = walks.ravel()
    return load


def _walked(flow: FloatArray, m: int, order: WalkOrder) -> FloatArray:
    """Load of each mesh link (float[..., mesh link]) of flows from chip to chip of a
    node (float[..., c, c]).
    """
    loads: FloatArray = flow.reshape(-1, m**4) @ _mesh_paths(m, order).T
    return loads.reshape(*flow.shape[:-2], len(mesh_links(m)))


def _mesh_paths(m: int, order: WalkOrder) -> Any:
    """Which mesh links the path from chip c to chip d takes: a sparse matrix [mesh
    link, c * m^2 + d] of ones.
    """
    from scipy.sparse import csr_array

    source, target = np.divmod(np.arange(m**4), m * m)
    sy, sx = np.divmod(source, m)
    ty, tx = np.divmod(target, m)
    # Along x in the source's chip row, then along y in the target's chip column; or the
    # other way about.
    row, column = (sy, tx) if order == "xy" else (ty, sx)
    rows, columns = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for link, (a, b) in enumerate(mesh_links(m).tolist()):
        (ay, ax), (by, bx) = divmod(a, m), divmod(b, m)
        taken = (
            (row == ay) & _between(sx, tx, ax, bx)
            if ay == by
            else (column == ax) & _between(sy, ty, ay, by)
        )
        path = np.flatnonzero(taken)
        rows.append(np.full(len(path), link))
        columns.append(path)
    where = (np.concatenate(rows), np.concatenate(columns))
    return csr_array((np.ones(len(where[0])), where), shape=(len(mesh_links(m)), m**4))


def _between(start: IntArray, stop: IntArray, a: int, b: int) -> NDArray[np.bool_]:
    """Whether a straight walk from start to stop takes the step from a to b = a +- 1."""
    return (start <= a) & (stop >= b) if b > a else (start >= a) & (stop <= b)
