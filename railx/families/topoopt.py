"""TopoOpt: servers joined in rings by optical switches that are set once for a job.

Wang et al., NSDI'23 (arXiv 2202.00433). Each ring joins server i to i + p for a stride
p that is coprime to the number of servers (TotientPerms). Strides are close to a
geometric series, so that few hops lead anywhere (SelectPermutations). Servers forward
packets. All ports are in rings: those that the paper matches to the traffic of model
parallelism are not built, as its division of the ports between the two is known in
outline only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from railx.families.routers import RouterGraph, RouterSettings, router_family
from railx.settings import AtLeast, SettingsError
from railx.vocabulary.counts import Ports

__all__ = ["FAMILY", "TopoOptSettings", "geometric_strides"]


@dataclass(frozen=True)
class TopoOptSettings(RouterSettings):
    """Rings over all servers, of different strides."""

    family: Literal["topoopt"]

    servers: Annotated[int, AtLeast(3)] = 64
    """Servers. Default: the size of the facts on strides."""
    chips_per_server: Annotated[int, AtLeast(1)] = 8
    """Chips of a server, each with one port in every plane."""
    strides: tuple[Annotated[int, AtLeast(1)], ...] | None = None
    """Strides of the rings of a plane, two ports of a server each; null: as many rings
    as the chips of a server have ports for, with geometric strides."""

    def __post_init__(self) -> None:
        for stride in self.strides or ():
            if math.gcd(stride, self.servers) > 1 or stride > self.servers // 2:
                near = geometric_strides(self.servers, 4)
                raise SettingsError(
                    "strides",
                    f"got {stride}; allowed: up to {self.servers // 2}, coprime to"
                    f" {self.servers} servers, as {', '.join(map(str, near))}",
                )
        if len(set(self.rings)) < len(self.rings):
            raise SettingsError("strides", f"got {list(self.rings)}; allowed: each stride once")

    @property
    def rings(self) -> tuple[int, ...]:
        """Strides of the rings of a plane."""
        if self.strides is not None:
            return self.strides
        return geometric_strides(self.servers, max(1, self.chips_per_server // 2))

    @property
    def routers(self) -> int:
        return self.servers

    @property
    def links(self) -> int:
        return self.servers * len(self.rings)

    @property
    def chips(self) -> int:
        return self.servers * self.chips_per_server


def geometric_strides(servers: int, rings: int) -> tuple[int, ...]:
    """Strides coprime to ``servers``, nearest to the powers of servers^(1/rings).

    Fewer than ``rings`` where there are fewer that differ in their ring.
    """
    left = [p for p in range(1, servers // 2 + 1) if math.gcd(p, servers) == 1]
    chosen: list[int] = []
    for power in range(min(rings, len(left))):
        ideal = servers ** (power / rings)
        nearest = min(left, key=lambda stride: (abs(stride - ideal), stride))
        chosen.append(nearest)
        left.remove(nearest)
    return tuple(sorted(chosen))


def graph(settings: TopoOptSettings) -> RouterGraph:
    """A plane: servers as routers, all rings."""
    server = np.arange(settings.servers)
    pairs = [np.stack([server, (server + p) % settings.servers], axis=1) for p in settings.rings]
    return RouterGraph(np.concatenate(pairs), np.repeat(server, settings.chips_per_server))


def resize(settings: TopoOptSettings, chips: int) -> TopoOptSettings:
    """The fewest servers; strides follow."""
    return replace(settings, servers=max(3, -(-chips // settings.chips_per_server)), strides=None)


def _ports(settings: TopoOptSettings) -> Ports:
    """Two ports of an optical switch and two transceivers a link; servers forward."""
    routed = _ROUTED.bill
    assert routed is not None
    ends = 2 * settings.links * settings.planes
    return replace(
        routed.ports(settings), cables={"router": ends}, electrical_switch_ports=0, ocs_ports=ends
    )


_ROUTED = router_family("topoopt", TopoOptSettings, graph, resize)
assert _ROUTED.bill is not None
FAMILY = replace(_ROUTED, bill=replace(_ROUTED.bill, ports=_ports))
