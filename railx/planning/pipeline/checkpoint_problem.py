"""What checkpointing chooses for: a pipeline's chunks and the memory of its stages.

Compiled loops (``kernels``) and what calls them (``checkpoints``) share it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from railx.planning.packing import Floats, Integers

#: Share of a limit that rounding of sums may take.
SLACK = 1e-9


class CheckpointProblem(NamedTuple):
    """Chunks [n] in forward order on stages [d], all memory in bytes per rank.

    ``stored`` [d, n] are the activations of a chunk on a stage without recomputing,
    ``saved`` [n] the saving of each recomputed layer, ``capacity`` [d] the memory of a
    stage for activations, ``layers`` the most that a diagonal may count. ``backward``
    [n] are chunks in backward order, ``longest_split`` is N_split.
    """

    stored: Floats
    saved: Floats
    capacity: Floats
    layers: int
    backward: Integers
    longest_split: int

    @property
    def stages(self) -> int:
        return len(self.capacity)

    @property
    def chunks(self) -> int:
        return len(self.saved)

    @property
    def diagonals(self) -> int:
        return self.chunks + self.stages - 1

    @property
    def position(self) -> Integers:
        """Each chunk's place [n] in the backward order (f2b of the paper)."""
        positions = np.empty_like(self.backward)
        positions[self.backward] = np.arange(len(self.backward))
        return positions

    def counts(self, diagonals: Integers) -> Integers:
        """Layers [d, n] that each stage recomputes of each chunk (eq. 16)."""
        after = np.arange(self.stages)[::-1]
        layers: Integers = diagonals[self.position[None, :] + after[:, None]]
        return layers
