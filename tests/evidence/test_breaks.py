"""Claims that hold fail where their value is another by 30 %."""

from __future__ import annotations

import pytest

from railx.evidence import POSITIVE, Claim, Recorded, read_expected
from railx.evidence.intervals import Estimate
from railx.evidence.verdicts import compare
from tests.builders import ROOT
from tests.evidence.test_published import CLAIMS

#: A value is multiplied by these; what holds under both does not follow its value.
FACTORS = (0.7, 1.3)
MOST_INSENSITIVE = 0.05


def holds(claim: Claim, recorded: Recorded, factor: float) -> bool:
    """Whether the claim's rule is kept by a multiple of its value and its interval."""
    ours, low, high = (
        None if value is None else factor * value
        for value in (recorded.ours, recorded.low, recorded.high)
    )
    assert ours is not None
    samples = None if low is None else recorded.samples
    return compare(claim, Estimate(ours, low, high, samples)).verdict == "reproduced"


@pytest.mark.parametrize("experiment", ["quick", "paper"])
def test_few_published_claims_hold_at_any_size_and_say_why(experiment: str) -> None:
    recorded = read_expected(ROOT / f"resources/expected/{experiment}.yaml")
    positive = [
        claim
        for claim in CLAIMS
        if claim.settings.kind == "published" and recorded[claim.id].verdict in POSITIVE
    ]
    assert len(positive) > 10
    insensitive = [
        claim
        for claim in positive
        if claim.settings.comparison == "trend"
        or all(holds(claim, recorded[claim.id], factor) for factor in FACTORS)
    ]
    assert len(insensitive) <= MOST_INSENSITIVE * len(positive), [c.id for c in insensitive]
    assert [c.id for c in insensitive if not c.settings.insensitive] == []
    # A reason stands at no claim that needs none.
    needless = {claim.id for claim in positive if claim.settings.insensitive}
    assert needless <= {claim.id for claim in insensitive}


def test_what_is_recorded_follows_from_its_value() -> None:
    """The rule gives the recorded verdict back, so that its multiples mean something."""
    recorded = read_expected(ROOT / "resources/expected/paper.yaml")
    counted = 0
    for claim in CLAIMS:
        entry = recorded[claim.id]
        if entry.verdict in POSITIVE and claim.settings.comparison != "trend":
            assert holds(claim, entry, 1.0), claim.id
            counted += 1
    assert counted > 100
