"""Parts of sentences for captions and alternative texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from railx.errors import UserError
from railx.io import FIDELITIES

__all__ = [
    "FIDELITY_MEANING",
    "counted",
    "fidelity_line",
    "listed",
    "ordered",
    "quantity",
    "sentence",
    "span",
    "spoken",
]

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


def quantity(value: float) -> str:
    """A number with three significant digits and a thousands separator."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def span(values: Any) -> str:
    """The least and the most of some numbers: ``2 to 5``."""
    return f"{quantity(float(min(values)))} to {quantity(float(max(values)))}"


def listed(parts: Sequence[str], most: int = 6) -> str:
    """``a``, ``a and b``, ``a, b and c``; beyond ``most`` the rest is counted."""
    parts = [*parts[:most], f"{len(parts) - most} more"] if len(parts) > most + 1 else list(parts)
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def counted(number: int, thing: str, things: str = "") -> str:
    """``1 seed``, ``3 seeds``."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def sentence(*parts: str) -> str:
    """The parts that are not empty, one after the other, as a paragraph."""
    return " ".join(part.strip() for part in parts if part.strip())


def spoken(name: str) -> str:
    """A label inside a sentence: ``Fat tree, full`` is ``Fat tree (full)``."""
    head, _, rest = name.partition(", ")
    return f"{head} ({rest})" if rest else name


def ordered(fidelities: Iterable[str]) -> list[str]:
    """The distinct fidelities, least faithful first.

    Raises ValueError for an unknown fidelity.
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
    """The line below a figure: every fidelity in it with its meaning, and a note.

    ``shows`` says which part of the figure has a fidelity.
    """
    parts = []
    for fidelity in ordered(fidelities):
        part = f"{shows[fidelity]}: " if shows else ""
        parts.append(f"{part}{fidelity} ({FIDELITY_MEANING[fidelity]})")
    line = "Fidelity: " + "; ".join(parts) if parts else ""
    return ". ".join(filter(None, (line, note)))
