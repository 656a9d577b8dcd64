"""Every plan trains the model that one process trains: losses, gradients and parameters
after several steps, in double precision. Documents that share a micro-batch never
attend to one another: whatever one of them says, losses and gradients of the others
stay as they are.

The ranks are real processes that talk through the backend ``railx``; one launch for
each number of ranks runs all its cases, one the plans of documents.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands import python
from tests.training import documents_program, parallel_program
from training.data import plan_lengths

pytestmark = pytest.mark.system

PROGRAM = Path(parallel_program.__file__)

#: Sums are taken in another order, in double precision; AdamW divides by small second
#: moments, which enlarges differences.
TOLERANCES = {"loss": 1e-13, "norm": 1e-13, "gradient": 1e-13, "parameter": 1e-9}


CASES = {ranks: [case.name for case in parallel_program.cases(ranks)] for ranks in (2, 4)}


@pytest.fixture(scope="module")
def launches() -> dict[int, dict[str, Any]]:
    return {}


def launched(ranks: int, launches: dict[int, dict[str, Any]]) -> dict[str, Any]:
    if ranks not in launches:
        done = python(PROGRAM, str(ranks), "railx")
        assert done.returncode == 0, done.stderr
        launches[ranks] = json.loads(done.stdout)
    return launches[ranks]


@pytest.mark.parametrize(
    ("ranks", "case"), [(ranks, case) for ranks, cases in CASES.items() for case in cases]
)
def test_the_plan_trains_the_same_model_as_one_process(
    ranks: int, case: str, launches: dict[int, dict[str, Any]]
) -> None:
    result = launched(ranks, launches)[case]
    for quantity, tolerance in TOLERANCES.items():
        assert result["errors"][quantity] <= tolerance, quantity
    assert result["peaks"] == result["planned_peaks"]
    for rank in result["memory"]:
        assert rank["kept_still"] == rank["sent_still"] == rank["foreign_bytes"] == 0


def test_every_rank_of_a_stage_keeps_slices_and_sends(
    launches: dict[int, dict[str, Any]],
) -> None:
    """Eight chunks in the first and third steps, one in the second."""
    memory = launched(4, launches)["stages_of_two"]["memory"]
    # Three slices that later ones read, keys and values of two layers.
    assert [rank["kept"] for rank in memory] == [2 * 3 * 2 * 2] * 4
    assert [rank["sent"] for rank in memory] == [2 * 8 + 1] * 4


DOCUMENTS_PROGRAM = Path(documents_program.__file__)

Moves = dict[str, dict[str, dict[str, float]]]


@pytest.fixture(scope="module")
def moves() -> Moves:
    done = python(DOCUMENTS_PROGRAM)
    assert done.returncode == 0, done.stderr
    found: Moves = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", documents_program.PLANS)
def test_a_document_that_changes_changes_no_other(name: str, moves: Moves) -> None:
    documents = plan_lengths(documents_program.PLANS[name])
    assert set(moves[name]) == {str(document) for document in documents}
    for document, moved in moves[name].items():
        # Double precision; the same sums over the same numbers.
        assert moved["others"] <= 1e-14, document
        assert moved["gradient"] > 1e-3, document
        if documents[int(document)] > 1:
            assert moved["own"] > 1e-4, document
