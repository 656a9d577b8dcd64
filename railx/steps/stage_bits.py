"""The circuits of Opus' controller: one bit for each stage of a rail.

A bit sets all ports of a stage on a rail: 1 for the pipeline, 0 for the ring of its
replicas (arXiv 2602.12521, the artifact's encoding). A message between two stages sets
the bits of both, every other operation clears the bit of its stage. So a stage has one
state on a rail for all replicas, a rail of p stages has 2^p states, and different bits
change at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from railx.errors import UserError
from railx.fabric.circuits import Configuration

__all__ = ["Bit", "StageBits"]


class Bit(NamedTuple):
    """The bit of a stage on a rail with its value, the setting of the ports."""

    rail: int
    stage: int
    value: int

    @property
    def ports(self) -> tuple[tuple[str, int, int], ...]:
        """The resource with one value at a time: the bit itself."""
        return (("bit", self.rail, self.stage),)

    @property
    def right(self) -> int:
        """The rail, which identifies the switch of the bit."""
        return self.rail


@dataclass(frozen=True)
class StageBits:
    """Which bits operations need; ranks are numbered stage by stage."""

    gpus_per_server: int
    ranks_per_stage: int

    def __post_init__(self) -> None:
        if self.ranks_per_stage % self.gpus_per_server:
            raise UserError(
                f"ranks_per_stage: got {self.ranks_per_stage}; allowed: a multiple of"
                f" {self.gpus_per_server}, the ranks of a server"
            )

    def rail(self, right: int) -> int:
        """The rail of a bit, by its ``right``."""
        return right

    def is_scale_up(self, members: Iterable[int]) -> bool:
        """Whether all members sit in one server, so that no bit is asked for."""
        return len({member // self.gpus_per_server for member in members}) <= 1

    def circuits(self, configuration: Configuration) -> tuple[Bit, ...]:
        """The bits that ``configuration`` needs; none within a server."""
        if self.is_scale_up(configuration.members):
            return ()
        value = int(configuration.kind == "pair")
        return tuple(
            sorted(
                {
                    Bit(member % self.gpus_per_server, member // self.ranks_per_stage, value)
                    for member in configuration.members
                }
            )
        )

    def conflict(self, first: Configuration, second: Configuration) -> bool:
        """Whether the two cannot be up together: a bit would need both values."""
        values = {bit.ports: bit.value for bit in self.circuits(first)}
        return any(values.get(bit.ports, bit.value) != bit.value for bit in self.circuits(second))

    def rails(self, circuits: Iterable[Bit]) -> dict[int, tuple[Bit, ...]]:
        """The bits of each rail, rails in order."""
        by_rail: dict[int, list[Bit]] = {}
        for bit in sorted(circuits):
            by_rail.setdefault(bit.rail, []).append(bit)
        return {rail: tuple(bits) for rail, bits in by_rail.items()}

    def cleared(self, ranks: int) -> tuple[Bit, ...]:
        """All bits 0, as the artifact's controller starts."""
        return tuple(
            Bit(rail, stage, 0)
            for rail in range(self.gpus_per_server)
            for stage in range(ranks // self.ranks_per_stage)
        )
