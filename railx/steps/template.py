"""The program of a stage: what its ranks compute, issue and wait for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Move:
    """One step of a stage's program (a row of :class:`railx.replay.programs.Programs`).

    ``lane`` is one of :data:`railx.steps.programs.PARALLELISMS`. ``number`` counts its
    operations in the step of training. ``tensor_ns`` is the part of ``gap_ns`` that
    collectives in the server take.
    """

    does: Literal["begin", "issue", "wait", "end"]
    gap_ns: int = 0
    tensor_ns: int = 0
    lane: str = ""
    number: int = -1
    kind: str = ""
    lasts_ns: int = 0
    payload_bytes: int = 0
    sent_bytes: float = 0.0


@dataclass
class Template:
    """The program of a stage: its moves, and how often each lane is used."""

    moves: list[Move] = field(default_factory=list)
    used: Counter[str] = field(default_factory=Counter)
    #: Bytes that each rank sends inside its server.
    tensor_bytes: float = 0.0
    _gap: float = 0.0
    _tensor: float = 0.0

    def compute(self, lasts_ns: float, *, tensor: bool = False) -> None:
        self._gap += lasts_ns
        self._tensor += lasts_ns if tensor else 0.0

    def begin(self) -> None:
        self.moves.append(Move("begin"))

    def issue(
        self, lane: str, kind: str, lasts_ns: float, payload: float = 0.0, sent: float = 0.0
    ) -> tuple[str, int]:
        """Issue an operation; returns its lane and number, for ``wait``."""
        number = self.used[lane]
        self.used[lane] += 1
        gap_ns, tensor_ns = self._taken()
        lasts_ns, payload = round(lasts_ns), round(payload)
        self.moves.append(
            Move("issue", gap_ns, tensor_ns, lane, number, kind, lasts_ns, payload, sent)
        )
        return lane, number

    def wait(self, operation: tuple[str, int]) -> None:
        self.moves.append(Move("wait", *self._taken(), *operation))

    def end(self) -> None:
        self.moves.append(Move("end", *self._taken()))

    def _taken(self) -> tuple[int, int]:
        taken = round(self._gap), round(self._tensor)
        self._gap = self._tensor = 0.0
        return taken
