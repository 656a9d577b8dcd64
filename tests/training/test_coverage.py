"""What passes over plain gloo passes over railx, in every mode, with the same results;
the table in docs/backend.md says just that.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.training import coverage
from tests.training.coverage_cases import CASES

# Minutes where other work shares the processors.
pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> coverage.Written:
    return coverage.run(tmp_path_factory.mktemp("coverage"))


@pytest.mark.parametrize("ranks", coverage.RANKS)
@pytest.mark.parametrize("mode", coverage.MODES)
def test_what_gloo_can_railx_can(written: coverage.Written, mode: str, ranks: int) -> None:
    wrong = {}
    for case in CASES:
        of_gloo = coverage.verdict(written, case.title, "gloo", ranks)
        found = coverage.verdict(written, case.title, mode, ranks)
        if of_gloo == "passes" and found != "passes":
            wrong[case.title] = [
                written[rank][f"{mode} {ranks}"][case.title] for rank in range(ranks)
            ]
    assert not wrong, wrong


@pytest.mark.parametrize("mode", coverage.MODES)
def test_a_refusal_is_one_line(written: coverage.Written, mode: str) -> None:
    for of_rank in written:
        for outcome in of_rank[f"{mode} 4"].values():
            assert "\n" not in outcome.get("refused", "")


@pytest.mark.skipif(torch.__version__ < "2.13", reason="the table is that of the pinned torch")
def test_the_table_in_the_docs_is_what_was_found(written: coverage.Written) -> None:
    page = coverage.PAGE.read_text()
    shown = page.partition(coverage.BEGIN)[2].partition(coverage.END)[0]
    assert shown.strip() == coverage.table(written).strip(), (
        "python -m tests.training.coverage writes it anew"
    )


def test_titles_are_different() -> None:
    assert len({case.title for case in CASES}) == len(CASES)
    assert Path(coverage.PROGRAM).exists()
