"""Verdicts that a run should have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from railx.evidence import ClaimError, flipped, read_expected


def row(claim: str, verdict: str, fidelity: str | None = "analytic") -> dict[str, Any]:
    return {
        "claim": claim,
        "verdict": verdict,
        "fidelity": fidelity,
        "ours_text": "2 hops",
        "published_text": "at most 4 hops",
        "reason": "ours, 2 hops, is at most 4",
        "set_aside": 0,
    }


def test_a_flipped_verdict_is_told_with_both_numbers_and_the_reason() -> None:
    rows = [row("a", "reproduced"), row("b", "partly")]
    assert flipped(rows, {"a": "reproduced", "b": "partly"}) == []
    (line,) = flipped(rows, {"a": "reproduced", "b": "reproduced"})
    assert line == (
        "b: partly; ours: 2 hops; published: at most 4 hops; ours, 2 hops, is at most 4; expected:"
        " reproduced"
    )


def test_only_what_rests_on_timing_may_be_left_out() -> None:
    (line,) = flipped([row("new", "reproduced")], {})
    assert line.startswith("new: reproduced; ")
    assert line.endswith("expected: nothing, as it is not in the list")
    for fidelity in ("emulated", "measured_cpu", "measured_gpu"):
        assert flipped([row("timed", "undecided", fidelity)], {}) == []
    assert flipped([row("timed", "undecided", None) | {"set_aside": 1}], {}) == []
    assert flipped([row("timed", "partly", "emulated")], {"timed": "reproduced"}) != []


def test_a_claim_that_was_not_judged_is_told() -> None:
    assert flipped([], {"a": "partly"}) == ["a: was not judged"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: maybe", "quick.yaml: a: got 'maybe'; allowed: reproduced, partly"),
        ("gone: partly", "quick.yaml: gone: no such claim"),
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
