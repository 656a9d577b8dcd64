"""A claim and its verdict, as ``railx claim`` and ``railx sql --claim`` show them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from railx.errors import UserError, allowed_names
from workflow.commands.shared import print_facts
from workflow.resources import all_claims
from workflow.stage import Config
from workflow.stages import claim_files, results_folder

if TYPE_CHECKING:
    from railx.evidence import Claim

__all__ = ["claim_by_id", "judged", "print_judged"]


def claim_by_id(name: str, option: str) -> Claim:
    """The claim of resources/claims with this id.

    Raises ValueError naming the ``option`` that held it and the nearest ids.
    """
    claims = {claim.id: claim for claim in all_claims()}
    if name not in claims:
        raise UserError(f"{option}: got {name!r}; allowed: {allowed_names(name, claims)}")
    return claims[name]


def judged(claim: Claim, experiment: Config, folder: Path) -> dict[str, Any]:
    """The row of a claim in evidence/claims.parquet, from the tables in ``folder``."""
    from railx.evidence import judge

    named = results_folder(experiment)
    files = [str(file.relative_to(named)) for file in claim_files(experiment)]
    (row,) = judge([claim], folder, [file for file in files if (folder / file).is_file()])
    return row


def print_judged(row: dict[str, Any], options: argparse.Namespace) -> None:
    """The claim in lines that a reader can take in, or as a JSON object."""
    if options.json:
        print(json.dumps(row, indent=2))
        return
    lines = [
        ("claim", f"{row['claim']} ({row['paper']}, {row['kind']})"),
        ("sentence", row["sentence"]),
        ("published", f"{row['published_text']} ({row['place']}; source: {row['source']})"),
        ("ours", _ours(row)),
        ("fidelity", _fidelity(row)),
        ("verdict", row["verdict"]),
        ("reason", row["reason"]),
        ("needs", row["needs"]),
        ("notes", row["notes"]),
    ]
    print_facts({key: words for key, words in lines if words})


def _ours(row: dict[str, Any]) -> str:
    from railx.evidence import number_text

    if row["low"] is None:
        return str(row["ours_text"])
    low, high = number_text(row["low"]), number_text(row["high"])
    return f"{row['ours_text']} (95 % interval {low} to {high}, {row['samples']} samples)"


def _fidelity(row: dict[str, Any]) -> str:
    if row["fidelity"] is None:
        return ""
    return f"{row['fidelity']} (the claim requires {row['fidelity_required']})"
