"""Parts of sentences for captions and alternative texts."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from railx.figures.tables import records, refuse
from railx.figures.theme import label
from railx.figures.types import DataFrame, Series
from railx.io import FIDELITIES

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


def quantity(number: Any) -> str:
    """A number with three significant digits and a thousands separator."""
    value = float(number)
    # Plus 0: a negative zero has no sign.
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value + 0:.3g}"


def span(values: Any) -> str:
    """The smallest and the largest of some numbers: ``2 to 5``."""
    return f"{quantity(min(values))} to {quantity(max(values))}"


def listed(parts: Sequence[str], most: int = 6) -> str:
    """``a``, ``a and b``, ``a, b and c``; beyond ``most`` the rest is counted."""
    parts = [*parts[:most], f"{len(parts) - most} more"] if len(parts) > most + 1 else list(parts)
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def counted(number: int, thing: str, things: str = "") -> str:
    """``1 seed``, ``3 seeds``."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def spoken(name: Any) -> str:
    """A label inside a sentence: ``Fat tree, full`` is ``Fat tree (full)``."""
    head, _, rest = label(name).partition(", ")
    return f"{head} ({rest})" if rest else head


def ordered(fidelities: Iterable[str]) -> list[str]:
    """The distinct fidelities, least faithful first; ValueError for an unknown one."""
    distinct = set(fidelities)
    unknown = distinct - set(FIDELITIES)
    if unknown:
        refuse(f"unknown fidelity {', '.join(sorted(map(str, unknown)))}", FIDELITIES)
    return [fidelity for fidelity in FIDELITIES if fidelity in distinct]


def fidelity_line(
    fidelities: Iterable[str], note: str = "", *, shows: Mapping[str, str] | None = None
) -> str:
    """The line below a figure: every fidelity in it with its meaning, and a note.

    ``shows`` says which part of the figure has a fidelity.
    """
    parts = [
        f"{f'{shows[fidelity]}: ' if shows else ''}{fidelity} ({FIDELITY_MEANING[fidelity]})"
        for fidelity in ordered(fidelities)
    ]
    line = "Fidelity: " + "; ".join(parts) if parts else ""
    return ". ".join(filter(None, (line, note)))


#: Formats of :func:`phrase` besides Python's.
_FORMATS: dict[str, Callable[[Any], str]] = {
    "q": quantity,
    "q%": lambda share: f"{quantity(100 * float(share))} %",
    "label": label,
    "lower": lambda name: label(name).lower(),
    "spoken": spoken,
    "upper": lambda name: str(name).upper(),
}


class _Phrases(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        write = _FORMATS.get(format_spec)
        return write(value) if write else format(value, format_spec)


def phrase(template: str, row: Mapping[Any, Any] | Series[Any]) -> str:
    """``template`` with the values of a row, as :meth:`str.format` does.

    ``{seconds:q}`` is a :func:`quantity`, ``{share:q%}`` one in percent;
    ``{topology:label}`` is its label, ``lower`` that in lower case, ``spoken`` that
    inside a sentence; ``upper`` is the value in upper case.
    """
    return _Phrases().vformat(template, (), dict(row))


def phrase_list(rows: DataFrame, template: str) -> list[str]:
    """:func:`phrase` of every row."""
    return [phrase(template, row) for row in records(rows)]


def phrases(rows: DataFrame, template: str, separator: str = "; ") -> str:
    """:func:`phrase` of every row, joined."""
    return separator.join(phrase_list(rows, template))
