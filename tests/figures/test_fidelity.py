"""The line under a figure that says how faithful its numbers are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from railx.figures.words import fidelity_line, ordered
from railx.io import FIDELITIES


@given(st.lists(st.sampled_from(FIDELITIES)))
def test_fidelities_are_listed_once_from_the_least_faithful(names: list[str]) -> None:
    found = ordered(names)
    assert sorted(found, key=FIDELITIES.index) == found
    assert set(found) == set(names)
    line = fidelity_line(names, "Note")
    assert all(line.count(f"{name} (") == 1 for name in found)
    assert line.endswith("Note")


def test_fidelity_line_says_what_is_measured_and_what_is_emulated() -> None:
    line = fidelity_line(
        ["measured_cpu", "emulated"], shows={"emulated": "on demand", "measured_cpu": "electrical"}
    )
    assert line.index("on demand: emulated (") < line.index("electrical: measured_cpu (")
