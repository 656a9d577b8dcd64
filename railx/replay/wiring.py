"""The circuits of an operation: the replay's interface to a fabric.

:class:`railx.fabric.circuits.Layout` is our controller's. Another rule is a
:class:`TableWiring` with the wires of each configuration; the rest follows from their
ports.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from itertools import groupby
from typing import NamedTuple, TypeAlias

from railx.fabric.circuits import Configuration, Layout


class Wire(NamedTuple):
    """A setting of one or more ports of a rail's switch, with a name."""

    rail: int
    name: Hashable
    ports: tuple[Hashable, ...]


class TableWiring(ABC):
    """A circuit model by a rule that gives each configuration its wires.

    A port has one wire at most. Operations that need the same wire share it. Names of
    the wires of a rail have to be comparable with each other.
    """

    def __init__(self) -> None:
        self._wires: dict[Configuration, tuple[Wire, ...]] = {}

    @abstractmethod
    def wires(self, configuration: Configuration) -> tuple[Wire, ...]:
        """The wires that ``configuration`` needs; none share a port."""

    @abstractmethod
    def is_scale_up(self, members: Iterable[int]) -> bool:
        """Whether a group needs no wires."""

    def circuits(self, configuration: Configuration) -> tuple[Wire, ...]:
        """The wires that ``configuration`` needs, from a cache."""
        wires = self._wires.get(configuration)
        if wires is None:
            wires = self._wires[configuration] = self.wires(configuration)
        return wires

    def conflict(self, first: Configuration, second: Configuration) -> bool:
        """Whether a port would need two wires."""
        taken = {port: wire for wire in self.circuits(first) for port in wire.ports}
        return any(
            taken.get(port, wire) != wire for wire in self.circuits(second) for port in wire.ports
        )

    def rails(self, circuits: Iterable[Wire]) -> dict[int, tuple[Wire, ...]]:
        """The wires of each rail, rails in order."""
        groups = groupby(sorted(circuits), key=lambda wire: wire.rail)
        return {rail: tuple(wires) for rail, wires in groups}


#: Which circuits operations need, and which exclude each other.
CircuitModel: TypeAlias = Layout | TableWiring
