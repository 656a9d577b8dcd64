"""What topologies are compared at: equal injection bandwidth, and equal cost of the
network.
"""

from __future__ import annotations

from dataclasses import replace

from railx.economics import NetworkDesign, chips_of, count_network, price_network, read_catalogue
from railx.families import family_of
from railx.mapping.settings import MappingSettings
from railx.mapping.step import Basis
from railx.settings import SettingsError
from railx.vocabulary.topology import Topology

__all__ = ["comparison_bases", "equal_bandwidth", "injection_gb_s_per_chip"]

_BITS_PER_BYTE = 8


def injection_gb_s_per_chip(topology: Topology) -> float:
    """Injection bandwidth of a chip, one direction: all ports that leave its node
    together.
    """
    settings = topology.settings
    return family_of(settings).ports_per_chip(settings) * settings.port_gbps / _BITS_PER_BYTE


def equal_bandwidth(settings: MappingSettings, topology: Topology) -> Basis:
    """All links scaled by what brings the ports to the wanted injection bandwidth;
    without a cost.
    """
    factor = settings.injection_gb_s_per_chip / injection_gb_s_per_chip(topology)
    return Basis("equal_bandwidth", factor, factor, None)


def comparison_bases(settings: MappingSettings, topology: Topology, name: str) -> list[Basis]:
    """``equal_bandwidth`` and, where topology ``name`` has a design, ``equal_cost``.

    A network costs in proportion to the rate of its ports, so that at equal bandwidth
    it costs its USD per GB/s of injection times the injection bandwidth, and at equal
    cost its ports have the bandwidth that the reference's cost buys. Links inside a
    node (and scale-up switches) stand in no bill: at equal cost they keep the rate of
    equal bandwidth. Raises SettingsError where a design does not describe its topology,
    and as :func:`railx.economics.price_network`.
    """
    equal, design = equal_bandwidth(settings, topology), settings.topologies[name].design
    if design is None:
        return [equal]
    _check_design(design, topology, name)
    reference = settings.topologies[settings.reference].design
    assert reference is not None  # the settings' own check
    cost, affordable = (
        settings.injection_gb_s_per_chip * _usd_per_injection_gb_s(settings, key, priced)
        for key, priced in ((name, design), (settings.reference, reference))
    )
    return [
        replace(equal, cost_per_chip_usd=cost),
        Basis("equal_cost", equal.ports * affordable / cost, equal.inside, affordable),
    ]


def _check_design(design: NetworkDesign, topology: Topology, name: str) -> None:
    key = f"mapping.topologies.{name}.design"
    if chips_of(design) != topology.chips:
        raise SettingsError(
            key,
            f"has {chips_of(design)} chips; allowed: {topology.chips}, the chips of the topology",
        )
    priced, injection = (
        count_network(design).injection_gb_s_per_chip,
        injection_gb_s_per_chip(topology),
    )
    if abs(priced - injection) > 1e-6 * injection:
        raise SettingsError(
            key,
            f"has {priced:g} GB/s of injection a chip; allowed: {injection:g} GB/s, that of the"
            " topology",
        )


def _usd_per_injection_gb_s(settings: MappingSettings, name: str, design: NetworkDesign) -> float:
    counts = count_network(design)
    bill = price_network(name, design, settings.price_set, read_catalogue(settings.catalogue))
    usd: float = sum(row["total_usd"] for row in bill)
    return usd / counts.chips / counts.injection_gb_s_per_chip
