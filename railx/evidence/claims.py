"""Claims as data: what a paper says, where its number stands, and how to compute ours
from the result tables.

A claim file is YAML: ``paper`` and a list ``claims``. Every claim refers to a published
number by file and id and gives an expression over the columns of one result table
(``table`` and ``filter``) or of several ``selections`` (see
:mod:`railx.evidence.expressions`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import yaml

from railx.evidence.errors import ClaimError
from railx.evidence.published import Published, read_published
from railx.io import Fidelity
from railx.settings import NonNegative, NotEmpty, SettingsError, load

__all__ = [
    "Claim",
    "ClaimSettings",
    "Comparison",
    "Ours",
    "PublishedReference",
    "Selection",
    "load_claims",
]

Comparison = Literal["ratio", "at_most", "at_least", "trend", "exact"]


@dataclass(frozen=True)
class PublishedReference:
    """Where the published number stands: a CSV file of resources/published, the row's
    id, the column that holds the number.
    """

    file: Annotated[str, NotEmpty()]
    id: Annotated[str, NotEmpty()]
    column: Annotated[str, NotEmpty()] = "value"


@dataclass(frozen=True)
class Selection:
    """Rows of a result table: its path below the results folder, and what their columns
    must be (a value, a list, a range).

    A JSON file is one row; ``rows`` names the keys (dotted) of lists of equal length
    whose items become rows instead.
    """

    table: Annotated[str, NotEmpty()]
    filter: dict[str, Any] = field(default_factory=dict)
    rows: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        path = PurePosixPath(self.table)
        if path.is_absolute() or ".." in path.parts or path.suffix not in (".parquet", ".json"):
            raise SettingsError(
                "table",
                f"got {self.table!r}; allowed: a .parquet or .json path below the results folder",
            )
        if self.rows and path.suffix != ".json":
            raise SettingsError("rows", f"allowed: only for a .json file, not {self.table}")


@dataclass(frozen=True)
class Ours:
    """How to compute our value: one ``table`` with ``filter`` and ``rows``, or named
    ``selections``; an expression over them.

    ``fidelity`` is that of tables which carry none themselves (the metrics of a
    topology are analytic).
    """

    expression: Annotated[str, NotEmpty()]
    table: str | None = None
    filter: dict[str, Any] = field(default_factory=dict)
    rows: tuple[str, ...] = ()
    selections: dict[str, Selection] = field(default_factory=dict)
    fidelity: Fidelity | None = None

    def __post_init__(self) -> None:
        if (self.table is None) == (not self.selections):
            raise SettingsError(
                "table",
                "allowed: either one table (with its filter) or selections, not both and not none",
            )
        for key in ("filter", "rows"):
            if self.table is None and getattr(self, key):
                raise SettingsError(
                    key, f"allowed: only beside table; a selection has its own {key}"
                )
        if self.table is not None:
            Selection(self.table, self.filter, self.rows)  # the same rules hold for the short form

    @property
    def chosen(self) -> dict[str, Selection]:
        """The selections by name; the only one of a claim with one table is named by
        the empty string.
        """
        return (
            self.selections
            if self.table is None
            else {"": Selection(self.table, self.filter, self.rows)}
        )


@dataclass(frozen=True)
class ClaimSettings:
    """A claim as its file gives it.

    ``tolerance`` is relative for ``ratio``, ``at_most`` and ``at_least``, absolute for
    ``exact``, and for ``trend`` the share of the range that a step against the
    direction may have. ``neutral`` is the value that says "no effect" (1 for a
    speed-up): ours and the published number on the same side of it means that the
    direction holds. ``direction`` belongs to ``trend`` alone.
    """

    id: Annotated[str, NotEmpty()]
    sentence: Annotated[str, NotEmpty()]
    place: Annotated[str, NotEmpty()]
    published: PublishedReference
    ours: Ours
    comparison: Comparison
    tolerance: Annotated[float, NonNegative()]
    fidelity_required: Fidelity
    neutral: float | None = None
    direction: Literal["increasing", "decreasing"] | None = None
    unit: str | None = None
    notes: str = ""

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
    claims: Annotated[tuple[ClaimSettings, ...], NotEmpty()]


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
    """All claims of the YAML files in ``claims_dir``, in the order of file names, each
    with its published number.

    Raises :class:`ClaimError`: one line naming file, claim and key, for unknown keys,
    wrong types, missing published rows and ids used twice.
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
