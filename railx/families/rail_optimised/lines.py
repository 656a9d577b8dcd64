"""Groups of a job on rails with a spine, which gives them what one switch would.

No group leaves its rail, so the graph is that of rails alone.
"""

from __future__ import annotations

from railx.families.rail_only.settings import RailOnlySettings
from railx.families.rail_optimised.settings import RailOptimisedSettings
from railx.vocabulary.lines import Lines

__all__ = ["LINES"]


def _wirings(settings: RailOptimisedSettings, nodes: int) -> tuple[str, ...]:
    return ("packets",) if nodes <= settings.servers else ()


def _alone(settings: RailOptimisedSettings, nodes: int, wiring: str) -> RailOnlySettings:
    return RailOnlySettings(
        family="rail_only",
        chips_per_server=settings.chips_per_server,
        servers=nodes,
        switch_radix=max(2, nodes),
        planes=settings.planes,
        port_gbps=settings.port_gbps,
        scale_up_width=settings.scale_up_width,
        scale_up_latency_ns=settings.scale_up_latency_ns,
        leaf_latency_ns=settings.leaf_latency_ns,
    )


LINES = Lines(
    axes=(("x", "y"),),
    wirings=_wirings,
    alone=_alone,
    shares=lambda settings: 1,
    nodes=lambda settings: settings.servers,
)
