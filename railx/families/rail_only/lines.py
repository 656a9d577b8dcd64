"""Groups of a job on electrical rails: a rail switch joins any servers."""

from __future__ import annotations

from dataclasses import replace

from railx.families.rail_only.settings import RailOnlySettings
from railx.vocabulary.lines import Lines

__all__ = ["LINES"]


def _wirings(settings: RailOnlySettings, nodes: int) -> tuple[str, ...]:
    return ("packets",) if nodes <= settings.servers else ()


def _alone(settings: RailOnlySettings, nodes: int, wiring: str) -> RailOnlySettings:
    """A tree without oversubscription gives a group what one switch does."""
    return replace(settings, servers=nodes, tiers=1, switch_radix=max(2, nodes))


LINES = Lines(
    axes=(("x", "y"),),
    wirings=_wirings,
    alone=_alone,
    shares=lambda settings: 1,
    nodes=lambda settings: settings.servers,
)
