"""What published numbers this project computes with, and which claims rest on them.

``resources/lineage.yaml`` names the inputs: constants of a paper (measured or fitted
there, so that they carry its result) and settings (what was run). An input says which
rows of the published tables it is, which rows it was fitted to, which other inputs it
rests on, and where it stands in conf/ and resources/. A claim rests on the inputs that
it names and on those of the tables that its query reads.

A claim that rests on its own published row, or on constants of its own paper, proves
less than one that does not: it is consistent at best.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from railx.evidence.claims import Claim
from railx.evidence.entries import RowSelection
from railx.evidence.errors import ClaimError
from railx.evidence.papers import read_yaml
from railx.evidence.published import PublishedNumbers, PublishedTable
from railx.settings import NotEmpty, SettingsError, load


@dataclass(frozen=True)
class Input:
    """Published numbers that this project computes with."""

    title: Annotated[str, NotEmpty()]
    """What the numbers are, in a sentence's middle."""
    kind: Literal["constants", "settings"]
    """constants: measured or fitted by the paper. settings: what the paper ran."""
    published: tuple[RowSelection, ...] = ()
    """The rows that the numbers are."""
    fitted_to: tuple[RowSelection, ...] = ()
    """The rows that they were fitted to or read back from."""
    rests_on: tuple[str, ...] = ()
    """Other inputs that went into them."""
    tables: tuple[str, ...] = ()
    """The results made from them: names of tables, with stars."""
    values: dict[str, dict[str, str]] = field(default_factory=dict)
    """Where they stand: the id of the published row by file and key of conf/ or
    resources/. A test holds both numbers equal."""

    def __post_init__(self) -> None:
        if not self.published and not self.fitted_to and not self.rests_on:
            allowed = "rows of a published table, here or in fitted_to"
            raise SettingsError("published", f"is missing; allowed: {allowed}")


@dataclass(frozen=True)
class Lineage:
    """The inputs by name, with the published rows that each rests on.

    ``rows`` and ``papers`` count what an input takes from others too.
    """

    inputs: Mapping[str, Input]
    rows: Mapping[str, frozenset[tuple[str, str]]]
    papers: Mapping[str, frozenset[str]]

    def of(self, claim: Claim, tables: Sequence[str]) -> tuple[str, ...]:
        """The inputs that a claim on these tables rests on, in the file's order."""
        return tuple(
            name
            for name, entry in self.inputs.items()
            if name in claim.settings.inputs
            or any(fnmatchcase(table, pattern) for pattern in entry.tables for table in tables)
        )

    def limit(self, claim: Claim, names: Sequence[str]) -> str:
        """Why a claim on these inputs is consistent at best; empty: it is not."""
        judged = (claim.published.file, claim.published.id)
        circular = [self.inputs[name].title for name in names if judged in self.rows[name]]
        if circular:
            return f"but it rests on its own published number ({'; '.join(circular)})"
        constants = [self.inputs[name].title for name in names if claim.paper in self.papers[name]]
        if constants and claim.settings.kind == "published":
            return f"but it rests on constants of the paper ({'; '.join(constants)})"
        return ""


def read_lineage(
    path: str | Path,
    numbers: PublishedNumbers,
    tables: Sequence[PublishedTable],
    claims: Sequence[Claim] = (),
) -> Lineage:
    """The lineage in a file.

    Raises :class:`ClaimError`, one line naming input and key, for unknown keys, rows
    that no published table has, inputs that rest on one another in a circle, and a
    claim that names an unknown input.
    """
    path = Path(path)
    try:
        inputs: dict[str, Input] = load(dict[str, Input], read_yaml(path))
        papers = {table.file: table.paper for table in tables}
        rows, of_papers = {}, {}
        for name in inputs:
            closure = list(_closure(name, inputs))
            of_input = (_rows(other, inputs[other], numbers) for other in closure)
            rows[name] = frozenset(chain.from_iterable(of_input))
            of_papers[name] = frozenset(
                papers[selection.file]
                for other in closure
                if inputs[other].kind == "constants"
                for selection in (*inputs[other].published, *inputs[other].fitted_to)
            )
    except SettingsError as error:
        raise ClaimError(f"{path.name}: {error}") from None
    for claim in claims:
        for name in claim.settings.inputs:
            if name not in inputs:
                got = f"inputs: got {name!r}; allowed: {', '.join(inputs)}"
                raise ClaimError(f"{claim.file}: claim {claim.id}: {got}")
    return Lineage(inputs, rows, of_papers)


def _rows(name: str, entry: Input, numbers: PublishedNumbers) -> Iterator[tuple[str, str]]:
    for key in ("published", "fitted_to"):
        for selection in getattr(entry, key):
            try:
                for row in selection.rows(numbers):
                    yield selection.file, row["id"]
            except SettingsError as error:
                raise error.under(key).under(name) from None


def _closure(name: str, inputs: Mapping[str, Input], above: tuple[str, ...] = ()) -> Iterator[str]:
    """An input and all that it rests on."""
    if name in above:
        circle = " -> ".join((*above[above.index(name) :], name))
        raise SettingsError(f"{name}.rests_on", f"got the circle {circle}; allowed: none")
    yield name
    for other in inputs[name].rests_on:
        if other not in inputs:
            raise SettingsError(f"{name}.rests_on", f"got {other!r}; allowed: {', '.join(inputs)}")
        yield from _closure(other, inputs, (*above, name))
