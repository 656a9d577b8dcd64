"""Groups of a job on rows and columns of RailX, whose switches are apart.

A row or a column of nodes is wired as rings, or as an all-to-all where it has a rail
for every other node (rails that are over stay rings).
"""

from __future__ import annotations

from railx.families.railx_mixed.settings import RailXMixedSettings
from railx.families.railx_torus.settings import RailXTorusSettings
from railx.vocabulary.line_parts import PartSettings
from railx.vocabulary.lines import Lines

__all__ = ["LINES"]

#: Nodes in a column of the network that a group sees; its own row is all that is used.
_COLUMN = 2


def _wirings(settings: RailXTorusSettings, nodes: int) -> tuple[str, ...]:
    if nodes > min(settings.x_scale, settings.y_scale):
        return ()
    # Of 2 nodes and of 3 a ring is the all-to-all.
    return ("ring", "all_to_all") if 3 < nodes <= settings.m * settings.n + 1 else ("ring",)


def _alone(settings: RailXTorusSettings, nodes: int, wiring: str) -> RailXMixedSettings:
    rails = settings.m * settings.n
    all_to_all = rails // (nodes - 1) * (nodes - 1) if wiring == "all_to_all" else 0
    parts = [PartSettings("all_to_all", all_to_all, nodes, 1)] if all_to_all else []
    if all_to_all < rails:
        parts.append(PartSettings("ring", rails - all_to_all, nodes, 1))
    return RailXMixedSettings(
        family="railx_mixed",
        m=settings.m,
        n=settings.n,
        x_scale=nodes,
        y_scale=_COLUMN,
        parts_x=tuple(parts),
        parts_y=(PartSettings("ring", rails, _COLUMN, 1),),
        rings="undirected",
        ocs_radix=None,
        port_gbps=settings.port_gbps,
        internal_width=settings.internal_width,
        internal_latency_ns=settings.internal_latency_ns,
        external_latency_ns=settings.external_latency_ns,
    )


LINES = Lines(
    axes=(("x",), ("y",)),
    wirings=_wirings,
    alone=_alone,
    shares=lambda settings: settings.m * settings.n,
    nodes=lambda settings: settings.x_scale * settings.y_scale,
    fewest=lambda wiring, nodes: nodes - 1 if wiring == "all_to_all" else 1,
)
