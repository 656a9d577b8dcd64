"""Checked settings: every key, type and range, with the path of what is wrong, and in
the line of an error few names in full, of many the nearest.
"""

from dataclasses import dataclass, make_dataclass
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.errors import allowed_names
from railx.settings import (
    AtLeast,
    Between,
    OneOf,
    PowerOfTwo,
    Registered,
    SettingsError,
    load,
    mapping,
    to_dict,
)


@dataclass(frozen=True)
class Ring:
    family: Literal["ring"]
    nodes: Annotated[int, AtLeast(3)]
    gbps: float = 400.0


@dataclass(frozen=True)
class Grid:
    family: Literal["grid"]
    shape: tuple[int, int]
    wraps: bool = False

    def __post_init__(self) -> None:
        if self.wraps and min(self.shape) < 3:
            raise SettingsError(
                "shape", f"got {self.shape}; allowed: at least 3 on each side when wraps is true"
            )


@dataclass(frozen=True)
class Plan:
    networks: dict[str, Ring | Grid]
    degrees: tuple[Annotated[int, PowerOfTwo()], ...]
    share: Annotated[float | None, Between(0, 1)] = None
    solver: Annotated[str, OneOf("highs", "scip")] = "highs"
    order: Literal["first", "last"] | Literal["best"] = "first"
    limit: int | Literal["none"] = 1


GOOD = {
    "networks": {"a": {"family": "ring", "nodes": 4}, "b": {"family": "grid", "shape": [3, 4]}},
    "degrees": [1, 2, 4],
}


def test_loads_nested_unions_and_returns_the_same_plain_data() -> None:
    plan = load(Plan, GOOD)
    assert plan.networks == {"a": Ring("ring", 4), "b": Grid("grid", (3, 4))}
    assert plan.degrees == (1, 2, 4)
    assert load(Plan, to_dict(plan)) == plan


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"degree": [1]},
            "x.degree: unknown key; allowed: networks, degrees, share, solver, order, limit",
        ),
        ({"degrees": [1, 3]}, "x.degrees[1]: got 3; allowed: a power of two (1, 2, 4, ...)"),
        ({"degrees": 4}, "x.degrees: got 4; allowed: a list"),
        ({"share": 1.5}, "x.share: got 1.5; allowed: from 0 to 1"),
        ({"share": "half"}, "x.share: got 'half'; allowed: a number"),
        ({"solver": "glpk"}, "x.solver: got 'glpk'; allowed: highs, scip"),
        (
            {"networks": {"a": {"family": "rign", "nodes": 4}}},
            "x.networks.a.family: got 'rign'; allowed: ring, grid",
        ),
        (
            {"networks": {"a": {"family": "ring", "nodes": 2}}},
            "x.networks.a.nodes: got 2; allowed: at least 3",
        ),
        (
            {"networks": {"a": {"family": "ring", "nodes": True}}},
            "x.networks.a.nodes: got True; allowed: an integer",
        ),
        (
            {"networks": {"a": {"family": "ring", "nodes": 2.5}}},
            "x.networks.a.nodes: got 2.5; allowed: an integer",
        ),
        (
            {"networks": {"a": {"family": "ring"}}},
            "x.networks.a.nodes: is missing; allowed: an integer, at least 3",
        ),
        (
            {"networks": {"a": {"family": "grid", "shape": [2]}}},
            "x.networks.a.shape: got 1 items; allowed: exactly 2",
        ),
        (
            {"networks": {"a": {"family": "grid", "shape": [2, 2], "wraps": True}}},
            "x.networks.a.shape: got (2, 2); allowed: at least 3 on each side when wraps is true",
        ),
        ({"order": "worst"}, "x.order: got 'worst'; allowed: first, last, best"),
        ({"limit": "many"}, "x.limit: got 'many'; allowed: none or an integer"),
        ({"networks": {"a": 3}}, "x.networks.a: got 3; allowed: a mapping with the key family"),
    ],
)
def test_one_line_names_the_key_and_what_is_allowed(
    change: dict[str, object], expected: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load(Plan, {**GOOD, **change}, "x")
    assert str(caught.value) == expected
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("hint", "allowed"),
    [
        (Annotated[str, OneOf("highs", "scip")], "highs, scip"),
        (Literal["first", "last"], "first, last"),
        (int | Literal["none"], "none or an integer"),
        (Ring | Grid, "a mapping with the key family: ring, grid"),
        (Annotated[object, Registered("family", lambda: {"ring": Ring})], "the key family: ring"),
        (Ring, "a mapping with the keys family, nodes, gbps"),
        (dict[str, Ring], "a mapping of names to settings"),
        (tuple[int, ...], "a list"),
        (bool, "true or false"),
    ],
)
def test_what_is_missing_is_named_with_what_is_allowed(hint: Any, allowed: str) -> None:
    with pytest.raises(SettingsError, match=r"^x\.key: is missing; allowed: ") as caught:
        load(make_dataclass("Needs", [("key", hint)]), {}, "x")
    assert str(caught.value).endswith(allowed)


def test_members_of_a_list_are_looked_up_when_settings_are_read() -> None:
    known: dict[str, type] = {"ring": Ring}
    shape = Annotated[object, Registered("family", lambda: known)]
    grid = {"family": "grid", "shape": [3, 4]}
    with pytest.raises(SettingsError) as caught:
        load(shape, grid, "x")
    assert str(caught.value) == "x.family: got 'grid'; allowed: ring"
    known["grid"] = Grid
    assert load(shape, grid, "x") == Grid("grid", (3, 4))
    with pytest.raises(SettingsError) as caught:
        load(shape, {**grid, "shapes": 1}, "x")
    assert str(caught.value) == "x.shapes: unknown key; allowed: family, shape, wraps"


@given(st.integers(3, 10**9), st.floats(0, 1e9, allow_nan=False))
def test_round_trip(nodes: int, gbps: float) -> None:
    ring = Ring("ring", nodes, gbps)
    assert load(Ring, to_dict(ring)) == ring


@given(
    st.one_of(
        st.integers(),
        st.text(),
        st.lists(st.integers()),
        st.floats(allow_nan=True),
        st.booleans(),
        st.none(),
    )
)
def test_anything_else_is_refused_with_a_settings_error(value: object) -> None:
    with pytest.raises(SettingsError):
        load(Ring, value, "ring")


def test_a_choice_may_be_looked_up_when_settings_are_read() -> None:
    solvers = ["highs", "scip"]
    solver = Annotated[str, OneOf(lambda: tuple(solvers))]
    with pytest.raises(SettingsError) as refused:
        load(solver, "gurobi", "solver")
    assert str(refused.value) == "solver: got 'gurobi'; allowed: highs, scip"
    solvers.append("gurobi")
    assert load(solver, "gurobi", "solver") == "gurobi"
    assert OneOf(lambda: tuple(solvers)).keywords == {"enum": ["highs", "scip", "gurobi"]}


@dataclass(frozen=True)
class Choices:
    bytes_each: Literal[1, 2, 4]
    exact: Literal[True] = True


def test_true_is_no_choice_among_numbers_nor_one_a_truth() -> None:
    assert load(Choices, {"bytes_each": 2.0}) == Choices(2)
    assert isinstance(load(Choices, {"bytes_each": 2.0}).bytes_each, int)
    with pytest.raises(SettingsError, match=r"bytes_each: got True; allowed: 1, 2, 4"):
        load(Choices, {"bytes_each": True})
    with pytest.raises(SettingsError, match=r"exact: got 1; allowed: True"):
        load(Choices, {"bytes_each": 2, "exact": 1})


@dataclass(frozen=True)
class Words:
    jobs: dict[str, str] = mapping(dense="Dense", experts="Experts")


def test_settings_do_not_share_the_mapping_that_is_their_default() -> None:
    first, second = Words(), load(Words, {})
    first.jobs["dense"] = "Else"
    assert second.jobs == {"dense": "Dense", "experts": "Experts"} == Words().jobs


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


def test_a_long_number_is_counted() -> None:
    with pytest.raises(SettingsError, match=r"^n: got a number of 41 digits; allowed: at most"):
        load(int, 10**40, "n")


def test_a_name_that_is_there_is_the_nearest() -> None:
    for name in FAMILIES:
        assert allowed_names(name, FAMILIES).startswith(f"{name}, ")
