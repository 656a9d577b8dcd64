"""Claims as data: the sentence of a paper, its number, and the query for our number.

A claim file is YAML: ``paper``, the key of one of resources/papers.yaml, and a list
``claims``, whose entries select published rows: a claim a row
(:mod:`railx.evidence.entries`). A claim has one SQL query (see
:mod:`railx.evidence.database` for the names of tables), or the reason why nobody
can test it here.

The query returns one row with the columns ``ours`` and ``fidelity``; for a trend it
returns a row per point with the column ``x``. Repeated values have a row per repeat or
seed, named by the column ``sample``. What the paper leaves open has a row per
``assumption``, one of which the claim has ``chosen``. Rows whose column ``disturbed``
is true are ignored: other processes used the machine. Batches have a ``weight``: ours
is their weighted mean (of ratios by their denominators: the ratio of the sums).
Conditions that a claim ``requires`` of its runs (a number of steps) are columns of
those names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from railx.evidence.entries import Definitions, expand
from railx.evidence.errors import ClaimError
from railx.evidence.papers import read_papers, read_settings
from railx.evidence.published import TABLES_FILE, Published, PublishedNumbers, PublishedTable
from railx.io import Fidelity
from railx.settings import NonNegative, NotEmpty, Positive, SettingsError, field_hints, load

Comparison = Literal["ratio", "at_most", "at_least", "trend", "exact"]
TrendValue = Literal["slope", "last_over_first"]
Kind = Literal["published", "derived", "check"]
#: Stated by the paper; following from its design and stated by us; a comparison of our
#: own tables with one another.
KINDS: tuple[Kind, ...] = get_args(Kind)

_LAST_OVER_FIRST = "last over first"
#: Columns that every query may return.
_COLUMNS = frozenset({"x", "ours", "fidelity", "sample", "disturbed", "weight", "assumption"})


@dataclass(frozen=True)
class PublishedReference:
    """The published number to compare with."""

    file: Annotated[str, NotEmpty()]
    """A CSV file of resources/published."""
    id: Annotated[str, NotEmpty()]
    """The id of the row."""
    column: Annotated[str, NotEmpty()] = "value"
    """The column that holds the number."""


@dataclass(frozen=True)
class NotTestable:
    """Why a claim is not tested here."""

    reason: Annotated[str, NotEmpty()]
    """The obstacle."""
    needs: Annotated[str, NotEmpty()]
    """What it would take."""


@dataclass(frozen=True)
class ClaimSettings:
    """A claim as its file gives it."""

    id: Annotated[str, NotEmpty()]
    """The unique name of the claim."""
    kind: Kind
    """published: the paper states it. derived: it follows from the paper's design and
    is stated by this project. check: it compares our own tables with one another."""
    sentence: Annotated[str, NotEmpty()]
    """What is claimed, for a reader."""
    place: Annotated[str, NotEmpty()]
    """Section, figure or table of the paper."""
    published: PublishedReference
    """The number to compare with."""
    comparison: Comparison
    """How our number is compared with the published one."""
    also: tuple[PublishedReference, ...] = ()
    """Other rows that state the same quantity: their places are the claim's too."""
    query: Annotated[str, NotEmpty()] | None = None
    """One SELECT over the run's tables that returns our value and its fidelity; null
    where nothing can be tested."""
    not_testable: NotTestable | None = None
    """Why there is no query; null where there is one."""
    unmeasured: NotTestable | None = None
    """Beside a query that reads recorded measurements: what to say as long as there are
    none. Null: what the tables lack."""
    headline: bool = False
    """Whether the report shows it among the first claims."""
    tolerance: Annotated[float, NonNegative()] | None = None
    """Relative for ratio, at_most and at_least, absolute for exact, and for trend the
    share of the range that a step against the direction may have; null without query.
    """
    fidelity_required: Fidelity | None = None
    """The least faithful origin that can reproduce the claim; null without query."""
    requires: dict[str, Annotated[float, Positive()]] = field(default_factory=dict)
    """The least that the runs behind the value must have of each of these columns of
    the query; below it nothing is reproduced and the claim is undecided."""
    neutral: float | None = None
    """The value that says "no effect" (1 for a speed-up): ours and the published number
    on the same side of it means that the direction holds. Null: there is none."""
    direction: Literal["increasing", "decreasing"] | None = None
    """Where a trend goes; null for every other comparison."""
    trend_value: TrendValue | None = None
    """The number that a trend is shown by, on both sides: the slope of its line (what
    is meant by null), or its last value over its first; null for every other
    comparison."""
    unit: str | None = None
    """The unit of both numbers; null: that of the published row."""
    notes: str = ""
    """What a reader should know besides."""
    inputs: tuple[str, ...] = ()
    """Numbers that ours is made from, beside those of its tables: names of
    resources/lineage.yaml."""
    chosen: str | None = None
    """The assumption that ours is shown for, where the query names assumptions; null
    where it names none."""
    insensitive: str = ""
    """Why the verdict stays where ours is off by 30 % either way; empty where it does
    not."""

    def __post_init__(self) -> None:
        bare, trend = self.query is None, self.comparison == "trend"
        if bare and self.not_testable is None:
            allowed = "one SELECT, or not_testable with its reason"
            raise SettingsError("query", f"is missing; allowed: {allowed}")
        if not bare and self.not_testable is not None:
            raise SettingsError("query", "got one beside not_testable; allowed: either of them")
        fidelities = ", ".join(get_args(Fidelity))
        required = {"tolerance": NonNegative.allowed, "fidelity_required": fidelities}
        for key in ("unmeasured", *required):
            if bare and getattr(self, key) is not None:
                raise SettingsError(key, "allowed: null without a query")
            if not bare and getattr(self, key) is None and key in required:
                raise SettingsError(key, f"is missing; allowed: {required[key]}")
        if reserved := ", ".join(set(self.requires) & _COLUMNS):
            allowed = f"columns of the query beside {', '.join(sorted(_COLUMNS))}"
            raise SettingsError("requires", f"got {reserved}; allowed: {allowed}")
        if bare and self.requires:
            raise SettingsError("requires", "allowed: empty without a query")
        if self.chosen is not None and self.comparison in ("trend", "exact"):
            raise SettingsError("chosen", "allowed: null for trend and exact")
        if trend != (self.direction is not None):
            allowed = "increasing or decreasing for a trend, null for every other comparison"
            raise SettingsError("direction", f"allowed: {allowed}")
        if self.comparison in ("trend", "exact") and self.neutral is not None:
            raise SettingsError("neutral", "allowed: null for trend and exact")
        if not trend and self.trend_value is not None:
            raise SettingsError("trend_value", "allowed: null for every comparison but a trend")


@dataclass(frozen=True)
class _ClaimFile:
    """A claim file: the paper, what it claims and what its claims share."""

    paper: Annotated[str, NotEmpty()]
    """The key of the paper in resources/papers.yaml."""
    claims: Annotated[tuple[Any, ...], NotEmpty()]
    """Its claims, in the order of the report (:mod:`railx.evidence.entries`)."""
    queries: dict[str, Annotated[str, NotEmpty()]] = field(default_factory=dict)
    """Queries by name, for the claims of every file."""
    lookups: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """Columns joined by the value of another, for the claims of the paper's files."""


@dataclass(frozen=True)
class Claim:
    """A checked claim with its published number.

    ``paper`` is the key of the paper, ``file`` the name of the file that holds the
    claim, ``shape`` the name of its query where claims share it.
    """

    paper: str
    file: str
    settings: ClaimSettings
    published: Published
    shape: str = ""

    @property
    def id(self) -> str:
        return self.settings.id

    @property
    def unit(self) -> str:
        """The unit of both sides: the claim's own, or that of the published number."""
        return self.published.unit if self.settings.unit is None else self.settings.unit


def load_claims(
    claims_dir: str | Path, published_dir: str | Path, papers_file: str | Path
) -> tuple[Claim, ...]:
    """All claims of the YAML files in ``claims_dir``, each with its published number.

    They are in the order of the papers, then of file names. Raises
    :class:`ClaimError`, one line naming file, claim and key, for unknown keys and
    papers, wrong types, missing published rows, rows without source, ids used twice and
    queries that no claim uses.
    """
    papers = read_papers(papers_file)
    paths = sorted(Path(claims_dir).glob("*.yaml"))
    if not paths:
        raise ClaimError(f"{claims_dir}: no claim file; allowed: at least one .yaml")
    files: dict[str, _ClaimFile] = {}
    for path in paths:
        content = files[path.name] = read_settings(_ClaimFile, path)
        if content.paper not in papers:
            got = f"paper: got {content.paper!r}; allowed: {', '.join(papers)}"
            raise ClaimError(f"{path.name}: {got}")
    queries = _merged({name: content.queries for name, content in files.items()}, "queries")
    numbers = PublishedNumbers(published_dir)
    claims: dict[str, Claim] = {}
    for paper in papers:
        of_paper = {name: content for name, content in files.items() if content.paper == paper}
        definitions = Definitions(queries, _lookups(of_paper))
        for name, content in of_paper.items():
            for claim in _claims(name, content, definitions, numbers):
                if claim.id in claims:
                    got = f"{name}: claim {claim.id}: id: is used twice"
                    raise ClaimError(f"{got}; allowed: an id of its own")
                claims[claim.id] = claim
    used = {claim.shape for claim in claims.values()}
    for file, content in files.items():
        for name in content.queries:
            if name not in used:
                got = f"{file}: queries.{name}: no claim uses it"
                raise ClaimError(f"{got}; allowed: one that a claim names")
    return tuple(claims.values())


def check_rows_judged(
    claims: Sequence[Claim],
    tables: Sequence[PublishedTable],
    inputs: Collection[tuple[str, str]] = (),
) -> None:
    """Check that every row of the tables that promise it has a claim or is an input.

    ``inputs`` are files and ids of rows that this project computes with. Raises
    :class:`ClaimError` naming file and row.
    """
    judged = set(inputs)
    for claim in claims:
        judged.add((claim.published.file, claim.published.id))
        judged.update((row.file, row.id) for row in claim.settings.also)
    for table in tables:
        for row in table.rows if table.every_row_judged else ():
            if (table.file, row["id"]) not in judged:
                got = f"{table.file}: {row['id']}: no claim judges this row"
                allowed = "a row that `published` of a claim selects, or every_row_judged: false"
                raise ClaimError(f"{got}; allowed: {allowed} in {TABLES_FILE}")


def _claims(
    file: str, content: _ClaimFile, definitions: Definitions, numbers: PublishedNumbers
) -> Iterator[Claim]:
    """The claims of a file, entry by entry and row by row."""
    for number, entry in enumerate(content.claims, start=1):
        label = name = f"number {number}"
        try:
            plain: dict[str, Any] = load(dict[str, Any], entry)
            label = name = plain.get("id", name)
            for judged in expand(plain, definitions, numbers, field_hints(ClaimSettings)):
                label = judged.settings.get("id", name)
                settings: ClaimSettings = load(ClaimSettings, judged.settings)
                settings = replace(settings, place=_places(settings, numbers))
                claim = Claim(content.paper, file, settings, judged.published, judged.shape)
                _check(claim)
                yield claim
                label = name
        except SettingsError as error:
            raise ClaimError(f"{file}: claim {label}: {error}") from None


def _places(settings: ClaimSettings, numbers: PublishedNumbers) -> str:
    """The places of the claim, with the number of each other row."""
    places = [settings.place]
    for other in settings.also:
        row = numbers.row(other.file, other.id)
        value = numbers.number(other.file, row, other.column).value
        places.append(f"{row.get('place') or other.file} ({value:g})")
    return "; ".join(places)


def _check(claim: Claim) -> None:
    """The published number has a source, and that of a trend the same words as ours."""
    if not claim.published.source:
        row = f"{claim.published.id} of {claim.published.file}"
        allowed = "a row that says where its number stands"
        raise SettingsError("published.id", f"{row} has no source; allowed: {allowed}")
    if claim.settings.comparison != "trend":
        return
    slope = claim.settings.trend_value != "last_over_first"
    if (" per " in claim.unit) if slope else claim.unit in ("", _LAST_OVER_FIRST):
        return
    allowed = "words with ' per ' for a slope" if slope else f"{_LAST_OVER_FIRST!r} or none"
    raise SettingsError("unit", f"got {claim.unit!r}; allowed: {allowed}")


def _merged(parts: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, Any]:
    """What several files define under ``key``; ClaimError where two define one name."""
    merged: dict[str, Any] = {}
    for file, part in parts.items():
        for name in part:
            if name in merged:
                raise ClaimError(f"{file}: {key}.{name}: is used twice; allowed: another name")
        merged |= part
    return merged


def _lookups(files: Mapping[str, _ClaimFile]) -> dict[str, dict[str, Any]]:
    """The lookups of a paper's files by column."""
    columns = {column for content in files.values() for column in content.lookups}
    of_column = {
        column: {name: content.lookups.get(column, {}) for name, content in files.items()}
        for column in sorted(columns)
    }
    return {column: _merged(parts, f"lookups.{column}") for column, parts in of_column.items()}
