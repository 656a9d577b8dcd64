"""What a run found of the claims, and what differs from it. README's table of verdicts
counts the recorded ones of resources/expected/.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from railx.evidence import VERDICTS, ClaimError, Recorded, flipped, read_expected, recorded_lines
from tests.builders import ROOT


def row(claim: str, verdict: str, fidelity: str | None = "analytic") -> dict[str, Any]:
    return {
        "claim": claim,
        "verdict": verdict,
        "fidelity": fidelity,
        "ours": 2.0,
        "low": None,
        "high": None,
        "samples": None,
        "ours_text": "2 hops",
        "published_text": "at most 4 hops",
        "reason": "ours, 2 hops, is at most 4",
        "set_aside": 0,
    }


def test_a_flipped_verdict_is_shown_with_both_numbers_and_the_reason() -> None:
    rows = [row("a", "reproduced"), row("b", "depends")]
    assert flipped(rows, {"a": Recorded("reproduced"), "b": Recorded("depends")}) == []
    (line,) = flipped(rows, {"a": Recorded("reproduced"), "b": Recorded("reproduced")})
    assert line == (
        "b: depends; ours: 2 hops; published: at most 4 hops; ours, 2 hops, is at most 4; expected:"
        " reproduced"
    )


def test_only_what_rests_on_timing_may_differ() -> None:
    (line,) = flipped([row("new", "reproduced")], {})
    assert line.startswith("new: reproduced; ")
    assert line.endswith("expected: nothing, as it is not in the list")
    for fidelity in ("emulated", "measured_cpu", "measured_gpu"):
        assert flipped([row("timed", "undecided", fidelity)], {}) == []
    assert flipped([row("timed", "undecided", None) | {"set_aside": 1}], {}) == []
    there = {"timed": Recorded("reproduced", timed=True)}
    assert flipped([row("timed", "depends", "emulated")], there) == []
    assert flipped([row("timed", "not here", None)], there) == []
    assert flipped([row("timed", "depends")], {"timed": Recorded("reproduced")}) != []


def test_a_claim_that_was_not_judged_is_named() -> None:
    assert flipped([], {"a": Recorded("depends")}) == ["a: was not judged"]


def test_what_is_recorded_reads_back(tmp_path: Path) -> None:
    measured = row("b", "undecided", "emulated") | {"low": 1.25, "high": 1e-9, "samples": 3}
    path = tmp_path / "quick.yaml"
    path.write_text("".join(recorded_lines([row("a", "reproduced"), measured])), encoding="utf-8")
    assert read_expected(path) == {
        "a": Recorded("reproduced", 2.0, fidelity="analytic"),
        "b": Recorded("undecided", 2.0, 1.25, 1e-9, 3, "emulated", timed=True),
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: {verdict: maybe}", "quick.yaml: a.verdict: got 'maybe'; allowed: reproduced, cons"),
        ("gone: {verdict: depends}", "quick.yaml: gone: no such claim"),
        ("{}", "quick.yaml: got {}; allowed: not empty"),
        ("a: [", "quick.yaml, line 2: not valid YAML"),
    ],
)
def test_mistakes_in_the_list_are_one_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "quick.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ClaimError) as error:
        read_expected(path, ["a"])
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("experiment", ["quick", "paper"])
def test_readme_counts_the_recorded_verdicts(experiment: str) -> None:
    recorded = read_expected(ROOT / f"resources/expected/{experiment}.yaml")
    counts = Counter(entry.verdict for entry in recorded.values() if not entry.timed)
    row = f"| `{experiment}` | " + " | ".join(str(counts[v]) for v in VERDICTS) + " |"
    assert row in (ROOT / "README.md").read_text(encoding="utf-8")
