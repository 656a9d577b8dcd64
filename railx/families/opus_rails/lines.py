"""Rings of groups on photonic rails: all servers share the switches of a rank."""

from __future__ import annotations

from dataclasses import replace

from railx.families.opus_rails.settings import OpusRailsSettings
from railx.vocabulary.lines import Lines

__all__ = ["LINES"]


def _wirings(settings: OpusRailsSettings, nodes: int) -> tuple[str, ...]:
    return ("ring",) if nodes <= settings.servers else ()


LINES = Lines(
    axes=(("x", "y"),),
    wirings=_wirings,
    alone=lambda settings, nodes, wiring: replace(settings, servers=nodes),
    shares=lambda settings: settings.rings_per_chip,
    nodes=lambda settings: settings.servers,
)
