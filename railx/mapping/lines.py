"""Networks with lines of rails that a job wires, and transfers on them.

The rate between nodes is in proportion to the rails of a use; the rest of the line's
rails do nothing for it. Rates of a group are those of its nodes alone on a line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from railx.families import build_topology, family_of, rank_placement
from railx.mapping.layout import group_members
from railx.mapping.phases import Plan, Use
from railx.mapping.settings import LayoutSettings, SwitchedNetwork
from railx.performance.networks import Kind
from railx.performance.topologies import ExactLoads


@dataclass(frozen=True, eq=False)
class WiredPlan:
    """A plan for the uses of circuits, and how each use is wired."""

    plan: Plan
    wirings: Mapping[Use, str]

    @property
    def set_once(self) -> bool:
        """Whether no kind of line changes its circuits."""
        return len(self.plan.turns) == len({use.axes for use in self.wirings})

    @property
    def every_phase(self) -> bool:
        """Whether each use has its line alone while it lasts."""
        return len(self.plan.turns) == len(self.wirings)

    def words(self, *, axes: bool) -> str:
        """The plan as text, uses of a turn joined by +, on their lines or not."""
        names = {}
        for use, wiring in self.wirings.items():
            line = f" on {'/'.join(use.axes)}" if axes else ""
            names[use] = f"{'/'.join(use.over)}{line} {wiring}"
        return "; then ".join(
            " + ".join(f"{names[use]} x{rails}" for use, rails in turn.items())
            for turn in self.plan.turns
        )


W = TypeVar("W", bound=WiredPlan)


def plans_by_mode(candidates: Sequence[W], *, packets: bool) -> dict[str, list[W]]:
    """The plans that each mode may take; ``packets``: switches with nothing to set."""
    set_once = [candidate for candidate in candidates if candidate.set_once]
    if packets:
        return {"packets": set_once}
    return {
        "set_once": set_once,
        "every_phase": [candidate for candidate in candidates if candidate.every_phase],
        "where_it_pays": list(candidates),
    }


class LineNetwork:
    """A network whose nodes share lines of rails."""

    def __init__(self, chosen: SwitchedNetwork) -> None:
        lines = family_of(chosen.topology).lines
        assert lines is not None  # checked when the settings are read
        self.chosen, self.lines = chosen, lines
        self.rails = lines.shares(chosen.topology)
        self._alone: dict[tuple[int, str], ExactLoads] = {}

    @property
    def nodes(self) -> int:
        """Nodes of the whole network."""
        return self.lines.nodes(self.chosen.topology)

    def wirings(self, nodes: int) -> tuple[str, ...]:
        """Ways to wire so many nodes of a line; empty where they do not fit."""
        return self.lines.wirings(self.chosen.topology, nodes)

    def fewest(self, wirings: Mapping[Use, str]) -> dict[Use, int]:
        """The fewest rails of each use."""
        return {use: self.lines.fewest(wiring, use.nodes) for use, wiring in wirings.items()}

    def alone(self, nodes: int, wiring: str) -> ExactLoads:
        """So many nodes that are alone on a line."""
        if (nodes, wiring) not in self._alone:
            topology = build_topology(self.lines.alone(self.chosen.topology, nodes, wiring))
            offered = family_of(topology).routings
            routings = [routing for routing in self.chosen.routings if routing in offered]
            self._alone[nodes, wiring] = ExactLoads(topology, routings)
        return self._alone[nodes, wiring]


def transfer_ns(
    network: ExactLoads,
    layout: LayoutSettings,
    over: Sequence[str],
    kind: Kind,
    size_bytes: float,
    ports: float,
    inside: float,
) -> float:
    """Time of a transfer within the groups of a layout that span some parallelisms.

    ``ports`` and ``inside`` scale the links between and inside nodes.
    """
    chips = rank_placement(network.topology, layout.sizes).chips
    groups = group_members(layout, chips, over)
    return network.fastest(groups, kind, size_bytes, ports, inside)[0]
