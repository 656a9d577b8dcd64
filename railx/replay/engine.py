"""Programs of ranks, as a replay carries them out on a virtual clock.

A program is a rank's sequence of steps: it computes, issues operations, and waits for
some of them. Operations run on lanes, one for each channel, one after another,
while the program goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from railx.fabric.circuits import Configuration
from railx.fabric.holdings import OperationKey

__all__ = [
    "IMPATIENT_NS",
    "PATIENCE_NS",
    "ReplayedIteration",
    "ReplayedOperation",
    "Step",
    "stuck_message",
]

#: The longest wait of a collective behind a message whose receiver does not come, and
#: the shortest one: those of a run (``railx_torch.session``).
PATIENCE_NS = 2_000_000_000
IMPATIENT_NS = 20_000_000


@dataclass(frozen=True)
class ReplayedOperation:
    """One collective or message of a replay.

    It has its key (alike on all members), what it needs between servers, and how long
    it takes a member (``lasts_ns``) once all have come and its circuits are up. Members
    in ``alone`` wait for nobody else, as the sender of a message that is buffered.
    """

    key: OperationKey
    configuration: Configuration
    lasts_ns: Mapping[int, int]
    alone: frozenset[int] = frozenset()
    kind: str = ""
    sender: int | None = None


@dataclass(frozen=True)
class Step:
    """One step of a program, ``gap_ns`` after the step before it.

    * ``begin`` an iteration: all together, ``gap_ns`` after the last rank is there.
    * ``issue`` an operation. It begins ``pickup_ns`` after it is the first of its lane.
    * ``wait`` for an operation. The program goes on ``resume_ns`` after it has ended.
    * ``end`` of the iteration.
    """

    iteration: int
    does: Literal["begin", "issue", "wait", "end"]
    gap_ns: int = 0
    operation: ReplayedOperation | None = None
    pickup_ns: int = 0
    resume_ns: int = 0


@dataclass
class ReplayedIteration:
    """One rank's iteration in a replay, in ns of the virtual clock.

    ``compute_ns`` is what its program computed. ``communication_ns`` is the time in
    which any of its operations was under way, all members there and circuits up;
    ``hidden_ns`` the part of it in which the program computed. The rest as in
    :class:`railx.fabric.core.GrantAction`.
    """

    iteration: int
    rank: int
    begin_ns: int
    end_ns: int
    compute_ns: int = 0
    communication_ns: int = 0
    hidden_ns: int = 0
    stall_ns: int = 0
    wait_ns: int = 0
    requests: int = 0
    reconfigurations: int = 0
    mispredictions: int = 0

    @property
    def duration_ns(self) -> int:
        """From the begin to the end of the iteration."""
        return self.end_ns - self.begin_ns


def stuck_message(
    rank: int, number: int, iteration: int, does: str, key: OperationKey | None
) -> str:
    """Why a replay cannot end: a rank's step (by its number) that never does."""
    what = "" if key is None else f" operation {key}"
    return f"rank {rank} never ends step {number} (iteration {iteration}): {does}{what}"
