"""Checks of traffic patterns on topologies, from settings alone."""

from __future__ import annotations

from railx.families.sizes import small_graph
from railx.network.settings import TrafficSettings
from railx.network.traffic import MOST_EXPLICIT_CHIPS, traffic_flows
from railx.settings import SettingsError
from railx.vocabulary.topology import FamilySettings

__all__ = ["check_pattern", "is_large"]


def is_large(settings: FamilySettings) -> bool:
    """Whether there are too many chips to list the traffic of every pair."""
    graph = small_graph(settings)
    return graph is None or graph.chips > MOST_EXPLICIT_CHIPS


def check_pattern(
    settings: FamilySettings, name: str, traffic: TrafficSettings, seed: int, key: str
) -> None:
    """Refuse a pattern, below ``key``, that does not suit the chips of a topology."""
    if traffic.pattern in ("uniform", "all_to_all"):
        return
    graph = small_graph(settings)
    if graph is None:
        return
    try:
        traffic_flows(graph, traffic, seed)
    except SettingsError as error:
        raise SettingsError(f"{key}.{error.key}", f"on {name}: {error.message}") from None
