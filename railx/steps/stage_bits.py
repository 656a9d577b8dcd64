"""The circuits of Opus' controller: one bit for each stage of a rail.

A bit sets all ports of a stage on a rail: 1 for the pipeline, 0 for the ring of its
replicas (arXiv 2602.12521, the artifact's encoding). A message between two stages sets
the bits of both, every other operation clears the bit of its stage. So a stage has one
state on a rail for all replicas, a rail of p stages has 2^p states, and different bits
change at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable

from railx.errors import UserError
from railx.fabric.circuits import Configuration
from railx.replay.wiring import TableWiring, Wire


def bit(rail: int, stage: int, value: int) -> Wire:
    """The bit of a stage on a rail with its value: it has one value at a time."""
    return Wire(rail, (stage, value), ((rail, stage),))


class StageBits(TableWiring):
    """Which bits operations need; ranks are numbered stage by stage."""

    def __init__(self, gpus_per_server: int, ranks_per_stage: int) -> None:
        super().__init__()
        if ranks_per_stage % gpus_per_server:
            raise UserError(
                f"ranks_per_stage: got {ranks_per_stage}; allowed: a multiple of"
                f" {gpus_per_server}, the ranks of a server"
            )
        self.gpus_per_server, self.ranks_per_stage = gpus_per_server, ranks_per_stage

    def is_scale_up(self, members: Iterable[int]) -> bool:
        """Whether all members sit in one server, so that no bit is asked for."""
        return len({member // self.gpus_per_server for member in members}) <= 1

    def wires(self, configuration: Configuration) -> tuple[Wire, ...]:
        """The bits that ``configuration`` needs; none within a server."""
        if self.is_scale_up(configuration.members):
            return ()
        value = int(configuration.kind == "pair")
        bits = {
            bit(member % self.gpus_per_server, member // self.ranks_per_stage, value)
            for member in configuration.members
        }
        return tuple(sorted(bits))
