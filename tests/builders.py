"""What many tests build: choices of conf/ with changes, and topologies from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from railx.families import TopologySettings, build_topology
from railx.settings import load
from railx.vocabulary.topology import Topology
from workflow.config import read_choice

__all__ = ["CONF", "build", "choice", "topology_settings"]

CONF = Path(__file__).resolve().parents[1] / "conf"


def choice(group: str, name: str, **changes: Any) -> dict[str, Any]:
    """The plain settings of conf/``group``/``name``.yaml with ``changes``."""
    return read_choice(CONF / group / f"{name}.yaml") | changes


def topology_settings(name: str, **changes: Any) -> Any:
    """The settings of a topology of conf/ with ``changes``, checked."""
    return load(TopologySettings, choice("topology", name, **changes), "topology")


def build(name: str, **changes: Any) -> Topology:
    """The graph of a topology of conf/ with ``changes``."""
    return build_topology(topology_settings(name, **changes))
