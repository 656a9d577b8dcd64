"""Claims as data: what a paper says, its number, and the query that finds ours.

A claim file is YAML: ``paper`` and a list ``claims``. Every claim refers to a published
number by file and id and holds one SQL query (see :mod:`railx.evidence.database` for
the names of tables). The query returns one row with the columns ``ours`` and
``fidelity``. For a trend it returns a row per point with the columns ``x``, ``ours``
and ``fidelity``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import yaml

from railx.evidence.errors import ClaimError
from railx.evidence.published import Published, read_published
from railx.io import Fidelity
from railx.settings import NonNegative, NotEmpty, SettingsError, load

__all__ = [
    "KINDS",
    "Claim",
    "ClaimSettings",
    "Comparison",
    "Kind",
    "PublishedReference",
    "load_claims",
]

Comparison = Literal["ratio", "at_most", "at_least", "trend", "exact"]
Kind = Literal["published", "derived", "check"]
#: Stated by the paper; following from its design and stated by us; a comparison of our
#: own tables with one another.
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class PublishedReference:
    """Where the number to compare with stands."""

    file: Annotated[str, NotEmpty()]
    """A CSV file of resources/published."""
    id: Annotated[str, NotEmpty()]
    """The id of the row."""
    column: Annotated[str, NotEmpty()] = "value"
    """The column that holds the number."""


@dataclass(frozen=True)
class ClaimSettings:
    """A claim as its file gives it."""

    id: Annotated[str, NotEmpty()]
    """A name of its own among all claims."""
    kind: Kind
    """published: the paper states it. derived: it follows from the paper's design and
    is stated by this project. check: it compares our own tables with one another."""
    sentence: Annotated[str, NotEmpty()]
    """What is claimed, for a reader."""
    place: Annotated[str, NotEmpty()]
    """Where in the paper it stands."""
    published: PublishedReference
    """The number to compare with."""
    query: Annotated[str, NotEmpty()]
    """One SELECT over the run's tables that finds our value and its fidelity."""
    comparison: Comparison
    """How ours is held against the published number."""
    tolerance: Annotated[float, NonNegative()]
    """Relative for ratio, at_most and at_least, absolute for exact, and for trend the
    share of the range that a step against the direction may have."""
    fidelity_required: Fidelity
    """The least faithful origin that can reproduce the claim."""
    neutral: float | None = None
    """The value that says "no effect" (1 for a speed-up): ours and the published number
    on the same side of it means that the direction holds. Null: there is none."""
    direction: Literal["increasing", "decreasing"] | None = None
    """Where a trend goes; null for every other comparison."""
    unit: str | None = None
    """The unit of both numbers; null: that of the published row."""
    notes: str = ""
    """What a reader should know besides."""

    def __post_init__(self) -> None:
        if (self.comparison == "trend") != (self.direction is not None):
            raise SettingsError(
                "direction",
                "allowed: increasing or decreasing for a trend, null for every other comparison",
            )
        if self.comparison in ("trend", "exact") and self.neutral is not None:
            raise SettingsError("neutral", "allowed: null for trend and exact")


@dataclass(frozen=True)
class ClaimFile:
    """A claim file: the paper and what it claims."""

    paper: Annotated[str, NotEmpty()]
    """The paper's short name and arXiv number."""
    claims: Annotated[tuple[ClaimSettings, ...], NotEmpty()]
    """Its claims, in the order of the report."""


@dataclass(frozen=True)
class Claim:
    """A checked claim with its published number."""

    paper: str
    settings: ClaimSettings
    published: Published

    @property
    def id(self) -> str:
        return self.settings.id

    @property
    def unit(self) -> str:
        """The claim's own unit, or that of the published number."""
        return self.published.unit if self.settings.unit is None else self.settings.unit


def load_claims(claims_dir: str | Path, published_dir: str | Path) -> tuple[Claim, ...]:
    """All claims of the YAML files in ``claims_dir``, each with its published number.

    They are in the order of file names. Raises :class:`ClaimError`, one line naming
    file, claim and key, for unknown keys, wrong types, missing published rows and ids
    used twice.
    """
    paths = sorted(Path(claims_dir).glob("*.yaml"))
    if not paths:
        raise ClaimError(f"{claims_dir}: no claim file; allowed: at least one .yaml")
    claims: list[Claim] = []
    for path in paths:
        content = _read(path)
        for settings in content.claims:
            if any(claim.id == settings.id for claim in claims):
                raise ClaimError(
                    f"{path.name}: claim {settings.id}: id: is used twice; allowed: an id of"
                    " its own"
                )
            reference = settings.published
            try:
                published = read_published(
                    published_dir, reference.file, reference.id, reference.column
                )
            except ValueError as error:
                raise ClaimError(f"{path.name}: claim {settings.id}: published.{error}") from None
            claims.append(Claim(content.paper, settings, published))
    return tuple(claims)


def _read(path: Path) -> ClaimFile:
    try:
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ClaimError(f"{path.name}: not valid YAML ({' '.join(str(error).split())})") from None
    entries = plain.get("claims") if isinstance(plain, dict) else None
    # Each claim is checked alone first, so that an error names it by its id and not by
    # its place in the list.
    for number, entry in enumerate(entries if isinstance(entries, list) else []):
        name = (
            entry.get("id", f"number {number + 1}")
            if isinstance(entry, dict)
            else f"number {number + 1}"
        )
        try:
            load(ClaimSettings, entry)
        except SettingsError as error:
            raise ClaimError(f"{path.name}: claim {name}: {error}") from None
    try:
        return load(ClaimFile, plain)
    except SettingsError as error:
        raise ClaimError(f"{path.name}: {error}") from None
