"""README's table of verdicts counts the expected verdicts of resources/expected/."""

from __future__ import annotations

from collections import Counter

import pytest
import yaml

from tests.builders import ROOT

VERDICTS = ("reproduced", "partly", "not reproduced", "not attempted")


@pytest.mark.parametrize("experiment", ["quick", "paper"])
def test_readme_counts_the_expected_verdicts(experiment: str) -> None:
    text = (ROOT / f"resources/expected/{experiment}.yaml").read_text(encoding="utf-8")
    counts = Counter(yaml.safe_load(text).values())
    row = f"| `{experiment}` | " + " | ".join(str(counts[v]) for v in VERDICTS) + " |"
    assert row in (ROOT / "README.md").read_text(encoding="utf-8")
