"""Names in the line of an error: few in full, of many the nearest."""

from hypothesis import given
from hypothesis import strategies as st

from railx.errors import allowed_names

FAMILIES = tuple(f"family_{number}" for number in range(50))


def test_few_names_are_listed_in_their_order() -> None:
    assert allowed_names("ring", ("torus", "mesh", 3)) == "torus, mesh, 3"


def test_of_many_names_the_nearest_three_are_listed() -> None:
    names = [*FAMILIES, "torus_2d", "torus_3d", "railx_torus"]
    assert allowed_names("torus_2dd", names) == "torus_2d, torus_3d, railx_torus, ... (53 in all)"


@given(st.one_of(st.text(), st.none(), st.integers()), st.lists(st.text(), unique=True))
def test_every_listed_name_is_allowed(got: object, names: list[str]) -> None:
    said = allowed_names(got, names)
    if len(names) <= 12:
        assert said == ", ".join(names)
    else:
        assert said.endswith(f", ... ({len(names)} in all)")


def test_a_name_that_is_there_is_the_nearest() -> None:
    for name in FAMILIES:
        assert allowed_names(name, FAMILIES).startswith(f"{name}, ")
