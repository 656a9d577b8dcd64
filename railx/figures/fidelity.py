"""What each fidelity means, in words a reader of a figure or report understands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from railx.errors import UserError
from railx.io import FIDELITIES

__all__ = ["FIDELITY_MEANING", "fidelity_line", "ordered"]

#: One line per fidelity, from the least to the most faithful to a real machine.
FIDELITY_MEANING: dict[str, str] = {
    "analytic": "calculated: closed form, exact static analysis or cost model",
    "flow": "simulated at the level of flows",
    "packet": "simulated at the level of packets",
    "replay": "a recorded or generated step replayed under a modelled fabric",
    "emulated": "a real run whose optical switches are emulated delays",
    "measured_cpu": "a real run measured on a CPU",
    "measured_gpu": "a real run measured on a GPU",
}


def ordered(fidelities: Iterable[str]) -> list[str]:
    """The distinct fidelities, least faithful first.

    Raises ValueError for one that is not known.
    """
    distinct = set(fidelities)
    unknown = distinct - set(FIDELITIES)
    if unknown:
        raise UserError(
            f"unknown fidelity {', '.join(sorted(map(str, unknown)))}; allowed:"
            f" {', '.join(FIDELITIES)}"
        )
    return [fidelity for fidelity in FIDELITIES if fidelity in distinct]


def fidelity_line(
    fidelities: Iterable[str], note: str = "", *, shows: Mapping[str, str] | None = None
) -> str:
    """The caption line inside a figure: every fidelity it shows with its meaning.

    With it stands what has it, and an optional note.
    """
    parts = []
    for fidelity in ordered(fidelities):
        what = f"{shows[fidelity]}: " if shows else ""
        parts.append(f"{what}{fidelity} ({FIDELITY_MEANING[fidelity]})")
    line = "Fidelity: " + "; ".join(parts) if parts else ""
    return ". ".join(filter(None, (line, note)))
