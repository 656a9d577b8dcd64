"""The papers' own tables as the page prints them: every row of every file."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

__all__ = ["PublishedTable", "published_tables"]


@dataclass(frozen=True)
class PublishedTable:
    """A published table: its file, title, paper and rows.

    ``paper`` is a key of the papers; another word where it is of none of them. ``why``
    says what the table is for where no figure draws and no claim judges it.
    """

    file: str
    title: str
    paper: str
    why: str
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, str], ...]


def published_tables(directory: str | Path) -> Sequence[PublishedTable]:
    """Every CSV file of a folder, with what tables.yaml there says of it."""
    folder = Path(directory)
    listed = folder / "tables.yaml"
    words = yaml.safe_load(listed.read_text(encoding="utf-8")) if listed.is_file() else {}
    found = []
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            rows = tuple(reader)
        own = words.get(path.name, {})
        found.append(
            PublishedTable(
                path.name,
                own.get("title", path.stem.replace("_", " ").capitalize()),
                own.get("paper", path.stem.partition("_")[0]),
                own.get("why", ""),
                tuple(reader.fieldnames or ()),
                rows,
            )
        )
    return found
