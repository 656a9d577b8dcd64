"""Documents that share a micro-batch never attend to one another: whatever one of them
says, losses and gradients of the others stay as they are.

The ranks are real processes; one launch runs all plans.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import python
from tests.training import documents_program
from training.data import plan_lengths

pytestmark = pytest.mark.system

PROGRAM = Path(documents_program.__file__)

Moves = dict[str, dict[str, dict[str, float]]]


@pytest.fixture(scope="module")
def moves() -> Moves:
    done = python(PROGRAM, timeout_s=200)
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
