"""Pieces of the sentences that captions and alternative texts are made of."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["counted", "listed", "sentence", "span", "spoken"]


def listed(parts: Sequence[str], most: int = 6) -> str:
    """``a``, ``a and b``, ``a, b and c``; beyond ``most`` the rest is counted."""
    parts = [*parts[:most], f"{len(parts) - most} more"] if len(parts) > most + 1 else list(parts)
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def counted(number: int, thing: str, things: str = "") -> str:
    """``1 seed``, ``3 seeds``."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def span(texts: Sequence[str]) -> str:
    """``a to b`` of the first and the last; ``a`` where they read the same."""
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


def sentence(*parts: str) -> str:
    """The parts that are not empty, one after the other, as a paragraph."""
    return " ".join(part.strip() for part in parts if part.strip())


def spoken(name: str) -> str:
    """A label inside a sentence: ``Fat tree, full`` is ``Fat tree (full)``."""
    head, _, rest = name.partition(", ")
    return f"{head} ({rest})" if rest else name
