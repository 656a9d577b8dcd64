"""README's table of verdicts counts the recorded verdicts of resources/expected/."""

from __future__ import annotations

from collections import Counter

import pytest

from railx.evidence import VERDICTS, read_expected
from tests.builders import ROOT


@pytest.mark.parametrize("experiment", ["quick", "paper"])
def test_readme_counts_the_recorded_verdicts(experiment: str) -> None:
    recorded = read_expected(ROOT / f"resources/expected/{experiment}.yaml")
    counts = Counter(entry.verdict for entry in recorded.values() if not entry.timed)
    row = f"| `{experiment}` | " + " | ".join(str(counts[v]) for v in VERDICTS) + " |"
    assert row in (ROOT / "README.md").read_text(encoding="utf-8")
