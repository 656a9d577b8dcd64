"""Rail-only network: chips of equal rank in all servers share a rail switch.

It is the rail-optimised network without its spine: a chip reaches chips of another rank
through the scale-up switch of its server. Source: Wang et al. 2023, "Optimized network
architectures for large language model training with billions of parameters".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from railx.families.family import check_even, shared_fields
from railx.families.rails import ElectricalRailSettings, build, electrical_family
from railx.settings import AtLeast, Between, SettingsError
from railx.vocabulary.counts import fewest_tiers, largest_tree
from railx.vocabulary.topology import check_size

__all__ = ["FAMILY", "RailOnlySettings", "group_network"]


@dataclass(frozen=True)
class RailOnlySettings(ElectricalRailSettings):
    """Servers whose chips of equal rank meet at rail switches, without a spine.

    Chip i of server a is number a * chips_per_server + i.
    """

    family: Literal["rail_only"]

    servers: Annotated[int, AtLeast(2)] = 16
    """Servers, at most one for each port of a rail switch."""

    switch_radix: Annotated[int, AtLeast(2)] = 16
    """Ports of a rail switch, all to servers."""

    tiers: Annotated[int, Between(1, 5)] = 1
    """Tiers of the tree that each rail is; the graph has 1, a rail switch per rank."""

    def __post_init__(self) -> None:
        if self.tiers > 1:
            self._check_tree()
        elif self.servers > self.switch_radix:
            raise SettingsError(
                "servers",
                f"got {self.servers}; allowed: 2 to switch_radix = {self.switch_radix}, a port for"
                f" each; the nearest is {self.switch_radix}, or switch_radix {self.servers}",
            )

    def _check_tree(self) -> None:
        k = self.switch_radix
        check_even("switch_radix", k, "half of the ports face up")
        most = largest_tree(self.tiers, k)
        if self.servers > most:
            raise SettingsError(
                "servers",
                f"got {self.servers}; allowed: 2 to {most} with {self.tiers} tiers of {k}-port"
                f" switches; the nearest is {most}",
            )

    @property
    def server_count(self) -> int:
        return self.servers


def check(settings: RailOnlySettings) -> None:
    """Refuse rails of several tiers, and more links than fit in memory."""
    if settings.tiers != 1:
        raise SettingsError("tiers", f"got {settings.tiers}; allowed: 1, one rail switch per rank")
    check_size("servers", 2 * settings.chips * (1 + settings.planes))


def resize(settings: RailOnlySettings, chips: int) -> RailOnlySettings:
    """The full servers with at least ``chips`` chips and the fewest tiers."""
    servers = max(2, math.ceil(chips / settings.chips_per_server))
    tiers = fewest_tiers(
        servers,
        settings.tiers,
        settings.switch_radix,
        None,
        chips=chips,
        chips_per_end=settings.chips_per_server,
    )
    return replace(settings, servers=servers, tiers=tiers)


def group_network(settings: ElectricalRailSettings, nodes: int, wiring: str) -> RailOnlySettings:
    """The network of a group of servers: a full-bandwidth tree acts as a switch.

    No group leaves its rail, so a spine makes no difference.
    """
    return RailOnlySettings(
        family="rail_only",
        servers=nodes,
        switch_radix=max(2, nodes),
        **shared_fields(settings, ElectricalRailSettings),
    )


FAMILY = electrical_family(
    "rail_only",
    RailOnlySettings,
    build=build,
    check=check,
    group_network=group_network,
    resize=resize,
)
