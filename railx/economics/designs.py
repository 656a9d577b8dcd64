"""What each network is built of and how much bandwidth it gives, in closed form.

RailX and the fat tree follow the counts per chip port of RailX (m x m chips a node, n ports a side, r = m n rails); the electrical
rail-optimised network and the photonic rails follow the released cost script of Opus (fig. 15). One direction of a port counts as
its bandwidth. Chips, links inside a node and fibres are in no bill: no source gives their price, and RailX alone would have to pay
for wide links inside its nodes (``in_node_lanes_per_chip`` counts them, so that a break-even price can be shown).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from railx.economics.settings import FatTreeSettings, NetworkDesign, OpusRailsSettings, RailOptimisedSettings, RailXSettings

__all__ = [
    "NetworkCounts",
    "count_network",
    "in_node_lanes_per_chip",
    "optical_switches",
    "railx_all_to_all_ports",
    "railx_external_hops",
]

_BITS_PER_BYTE = 8


@dataclass(frozen=True)
class NetworkCounts:
    """Components of a network and its bandwidth per chip, one direction (all-to-all: None where no closed form holds)."""

    chips: int
    components: dict[str, int]
    injection_gb_s_per_chip: float
    all_to_all_gb_s_per_chip: float | None


def count_network(design: NetworkDesign) -> NetworkCounts:
    """Component counts and bandwidths (GB/s per chip) of a network design."""
    if isinstance(design, RailXSettings):
        return _count_railx(design)
    if isinstance(design, FatTreeSettings):
        return _count_fat_tree(design)
    if isinstance(design, RailOptimisedSettings):
        return _count_rail_optimised(design)
    return _count_opus_rails(design)


def optical_switches(design: RailXSettings) -> int:
    """Number of OCSes: one per rail in each of the R/2 rows and R/2 columns, R r in all (RailX, physical organisation)."""
    return design.optical_switch_radix * design.m * design.n


def railx_external_hops(design: RailXSettings) -> float:
    """Mean optical hops of a packet under uniform traffic, 2 (N - N/(r+1)) / (N-1) with N chips (RailX, bandwidth formulas)."""
    chips = _railx_chips(design)
    return 2 * (chips - chips / (design.m * design.n + 1)) / (chips - 1)


def railx_all_to_all_ports(design: RailXSettings) -> float:
    """Upper bound of uniform all-to-all per chip in ports, 4 n / (m h) with h external hops (ports of 1 flit per cycle)."""
    return 4 * design.n / (design.m * railx_external_hops(design))


def in_node_lanes_per_chip(design: RailXSettings) -> float:
    """Width of the links inside a node, in external ports per chip: 2 m (m-1) neighbour pairs, n links each, k ports wide."""
    return 2 * (design.m - 1) * design.n * design.in_node_width / design.m


def _count_railx(design: RailXSettings) -> NetworkCounts:
    ports = optical_switches(design) * design.optical_switch_radix
    port_gb_s = design.port_gbps / _BITS_PER_BYTE
    return NetworkCounts(
        chips=_railx_chips(design),
        components={"transceiver": ports, "ocs_port": ports},
        injection_gb_s_per_chip=4 * design.n * port_gb_s,
        all_to_all_gb_s_per_chip=railx_all_to_all_ports(design) * port_gb_s,
    )


def _railx_chips(design: RailXSettings) -> int:
    return (design.optical_switch_radix // 2) ** 2 * design.m**2


def _count_fat_tree(design: FatTreeSettings) -> NetworkCounts:
    """Per end port: 2 T - 1 switch ports and 2 T transceivers in T tiers (RailX, cost model); the top tier has no ports upwards."""
    end_ports = design.chips * design.ports_per_chip
    components = {
        "electrical_switch_port": end_ports * (2 * design.tiers - 1),
        "transceiver": end_ports * (2 * design.tiers - (2 if design.copper_to_leaf else 0)),
    }
    if design.copper_to_leaf:
        components["copper_cable"] = end_ports
    bandwidth = design.ports_per_chip * design.port_gbps / _BITS_PER_BYTE
    return NetworkCounts(
        chips=design.chips,
        components={name: count for name, count in components.items() if count},
        injection_gb_s_per_chip=bandwidth,
        all_to_all_gb_s_per_chip=bandwidth,
    )


def _count_rail_optimised(design: RailOptimisedSettings) -> NetworkCounts:
    """S servers, g rails, k = round(sqrt(4 S)) ports: 2 floor(S / floor(k/2)) leaves a rail, g S / k spines (Opus, fig. 15)."""
    servers, rails = design.servers, design.gpus_per_server
    radix = round(math.sqrt(4 * servers))
    switches = rails * 2 * (servers // (radix // 2)) + rails * servers // radix
    ports, gpus = radix * switches, servers * rails
    bandwidth = design.port_gbps / _BITS_PER_BYTE
    return NetworkCounts(
        chips=gpus,
        components={"electrical_switch_port": ports, "transceiver": gpus + (ports if design.switch_side_transceivers else 0)},
        injection_gb_s_per_chip=bandwidth,
        all_to_all_gb_s_per_chip=bandwidth,
    )


def _count_opus_rails(design: OpusRailsSettings) -> NetworkCounts:
    gpus = design.servers * design.gpus_per_server
    return NetworkCounts(
        chips=gpus,
        components={"ocs_port": gpus * design.ocs_ports_per_gpu, "transceiver": gpus * design.transceivers_per_gpu},
        injection_gb_s_per_chip=design.port_gbps / _BITS_PER_BYTE,
        # Two circuits per GPU carry no all-to-all directly, and what is left over multiple hops depends on the job.
        all_to_all_gb_s_per_chip=None,
    )
