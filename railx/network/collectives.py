"""Ring all-reduce in closed form: latency of the longest chain of steps plus serialisation at the bottleneck port.

A ring all-reduce over P participants is a reduce-scatter and an all-gather of P - 1 steps each; in every step each participant
passes on 1/P of the ring's share of the payload. Time = 2 (latency along P - 1 hops + (P - 1)/P * share / rate). Sources: the
ring algorithm (Patarasuk and Yuan 2009); RailX, abstract: the rails of a line are r independent rings, 2 r with both directions,
in the torus and in the all-to-all setting alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from railx.network.settings import CollectiveSettings
from railx.topology import (
    FatTreeSettings,
    RailXHyperXSettings,
    RailXTorusSettings,
    Topology,
    Torus2DSettings,
    railx_hyperx,
    railx_torus,
    settings_of,
)
from railx.topology.railx_grid import Grid

__all__ = ["ring_all_reduce"]


@dataclass(frozen=True)
class _Rings:
    """Rings of one dimension: ``participants`` on each, ``rings`` at once (both directions counted), one port a ring.

    ``chain_latency_ns``: latency along participants - 1 hops.
    """

    participants: int
    rings: int
    chain_latency_ns: float


@dataclass(frozen=True)
class _Scope:
    """Who reduces with whom: rings of one dimension, or of two with the dimensions in both orders on halves of the payload."""

    name: str
    dimensions: tuple[_Rings, ...]

    @property
    def participants(self) -> int:
        product = 1
        for rings in self.dimensions:
            product *= rings.participants
        return product

    @property
    def rings(self) -> int:
        return sum(rings.rings for rings in self.dimensions)


def ring_all_reduce(topology: Topology, collective: CollectiveSettings, name: str) -> list[dict[str, Any]]:
    """Time of ring all-reduce for every scope of the topology and every payload, one row each.

    Scopes: ``row`` and ``column`` (one line), ``nodes`` (RailX: all nodes, rows and columns at once), ``chips`` (all chips; rings
    run through the chips of each line, two dimensions at once; one ring over all chips in every plane of a fat tree). A
    participant is a node in the scopes row, column and nodes of RailX (the payload is the node's) and a chip elsewhere.
    ``rings``: rings at once through a participant, both directions counted; each uses one port. Over P participants with all
    ports of rate b busy, the time tends to 2 D (P - 1)/P / (ports * b).
    """
    settings = settings_of(topology)
    port_gb_s = settings.port_gbps / 8
    rows = []
    for scope in _scopes(topology):
        for payload in collective.payload_bytes:
            time_ms = _time_ns(scope, payload, port_gb_s) / 1e6
            rows.append(
                {
                    "topology": name,
                    "family": topology.family,
                    "collective": collective.collective,
                    "scope": scope.name,
                    "participants": scope.participants,
                    "rings": scope.rings,
                    "payload_bytes": payload,
                    "time_ms": time_ms,
                    "algorithm_gb_s": payload / 1e6 / time_ms,
                    "fidelity": "analytic",
                }
            )
    return rows


def _time_ns(scope: _Scope, payload_bytes: float, port_gb_s: float) -> float:
    """The all-gather starts when all have reduced and mirrors it, so twice the reduce-scatter; bytes over GB/s are ns."""
    if len(scope.dimensions) == 1:
        return 2 * _reduce_scatter_ns(scope.dimensions[0], payload_bytes, port_gb_s)
    first, second = scope.dimensions
    half = payload_bytes / 2
    # Half the payload goes x then y, the other half y then x; a phase ends when both halves have ended it.
    phases = (
        max(_reduce_scatter_ns(first, half, port_gb_s), _reduce_scatter_ns(second, half, port_gb_s)),
        max(
            _reduce_scatter_ns(second, half / first.participants, port_gb_s),
            _reduce_scatter_ns(first, half / second.participants, port_gb_s),
        ),
    )
    return 2 * sum(phases)


def _reduce_scatter_ns(rings: _Rings, payload_bytes: float, port_gb_s: float) -> float:
    steps = rings.participants - 1
    return rings.chain_latency_ns + steps / rings.participants * payload_bytes / (rings.rings * port_gb_s)


def _scopes(topology: Topology) -> list[_Scope]:
    settings = settings_of(topology)
    if isinstance(settings, RailXHyperXSettings):
        return _railx_scopes(railx_hyperx.grid_of(settings))
    if isinstance(settings, RailXTorusSettings):
        return _railx_scopes(railx_torus.grid_of(settings))
    if isinstance(settings, Torus2DSettings):
        return _torus_scopes(settings)
    return [_Scope("chips", (_fat_tree_ring(settings),))]


def _railx_scopes(grid: Grid) -> list[_Scope]:
    """Rings through nodes use all 2 r rails of a line; rings through the chips of one chip row use its 2 n.

    Between two rails a ring of nodes crosses the m - 1 internal links of a chip row.
    """
    hop = grid.external_latency_ns + (grid.m - 1) * grid.internal_latency_ns
    row, column = (_Rings(length, 2 * grid.rails, (length - 1) * hop) for length in (grid.columns, grid.rows))
    chip_row, chip_column = (
        _Rings(grid.m * length, 2 * grid.n, _chip_chain_ns(grid, length)) for length in (grid.columns, grid.rows)
    )
    return [
        _Scope("row", (row,)),
        _Scope("column", (column,)),
        _Scope("nodes", (row, column)),
        _Scope("chips", (chip_row, chip_column)),
    ]


def _chip_chain_ns(grid: Grid, nodes: int) -> float:
    """The slowest chain of hops around a ring of m chips in each of ``nodes`` nodes: all hops but the fastest one."""
    around = nodes * grid.external_latency_ns + nodes * (grid.m - 1) * grid.internal_latency_ns
    return around - (min(grid.internal_latency_ns, grid.external_latency_ns) if grid.m > 1 else grid.external_latency_ns)


def _torus_scopes(settings: Torus2DSettings) -> list[_Scope]:
    row, column = (
        _Rings(length, 2 * settings.n, (length - 1) * settings.latency_ns) for length in (settings.x_scale, settings.y_scale)
    )
    return [_Scope("row", (row,)), _Scope("column", (column,)), _Scope("chips", (row, column))]


def _fat_tree_ring(settings: FatTreeSettings) -> _Rings:
    """One ring over the chips in order, in every plane: one hop per leaf switch leaves it, one hop per pod leaves the pod."""
    half = settings.switch_radix // 2
    in_leaf = 2 * settings.leaf_latency_ns
    leaf_changes, pod_changes = 2 * half**2, 2 * half
    around = settings.chips * in_leaf + leaf_changes * 2 * settings.global_latency_ns + pod_changes * 2 * settings.global_latency_ns
    return _Rings(settings.chips, settings.planes, around - in_leaf)
