"""Profiles: settings that make one, the fit, and the cost model that takes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.performance.layer_profile import (
    ProfileFit,
    ProfileSettings,
    compared,
    fit_profile,
    layer_points,
    predicted_forward_ms,
    predicted_ms,
    validation_points,
)
from railx.performance.sequence_cost import (
    CostModel,
    ProfiledCostSettings,
    build_cost_model,
    with_profile,
)
from railx.settings import SettingsError, load, to_dict
from tests.builders import checked, choice, profile_row, profile_rows, published_rows

SETTINGS: ProfileSettings = checked("profile", "tiny")
COEFFICIENTS = (3e-5, 0.02, 1.5)
coefficient = st.floats(1e-3, 1e3)


def rows(time: tuple[float, float, float] = COEFFICIENTS, **changes: float) -> list[dict[str, Any]]:
    return profile_rows(time, **changes)


@given(
    coefficient, coefficient, coefficient, st.floats(0.1, 0.9), st.floats(0, 2), st.integers(0, 900)
)
def test_the_passes_recomputation_and_exchanges_are_apart(
    a1: float, a2: float, b1: float, part: float, again: float, exchanges: float
) -> None:
    time = (a1 * 1e-5, a2 * 1e-2, b1)
    made = [
        profile_row(point, time, exchanges=exchanges, again=again, attention_forward=part)
        for point in layer_points(SETTINGS)
    ]
    fit = fit_profile(made, 1)
    assert fit.forward_quadratic_ms_per_token2 == pytest.approx(part * a1 * 1e-5, rel=1e-5)
    assert fit.quadratic_ms_per_token2 == pytest.approx(a1 * 1e-5, rel=1e-5)
    assert fit.forward_linear_ms_per_token == pytest.approx(a2 * 1e-2 / 3, rel=1e-3, abs=1e-9 * a1)
    assert fit.forward_constant_ms == pytest.approx(b1 / 3, rel=1e-3, abs=1e-6 * a1)
    assert fit.recompute_over_forward == pytest.approx(again, rel=1e-9, abs=1e-9)
    assert fit.activation_bytes_per_token == pytest.approx(8000)
    assert fit.exchange_bytes_per_token == pytest.approx(exchanges, abs=1e-6)
    assert fit.checkpoint_bytes_per_token == pytest.approx(576)
    errors = [fit.held_out_forward_error, fit.held_out_backward_error]
    errors += [fit.held_out_recompute_error or 0.0, fit.held_out_checkpoint_memory_error or 0.0]
    assert max(*errors, fit.held_out_memory_error) < 1e-6
    for one in made:
        if one["part"] == "layer":
            point = one["tokens"], one["context"], one["degree"]
            assert predicted_forward_ms(fit, *point) == pytest.approx(one["forward_ms"])
            assert predicted_ms(fit, *point, one["checkpointed"]) == pytest.approx(
                one["forward_ms"] + one["backward_ms"]
            )


@given(coefficient, coefficient, coefficient, st.floats(100, 1e6))
def test_known_coefficients_are_found(a1: float, a2: float, b1: float, keeps: float) -> None:
    fit = fit_profile(rows((a1 * 1e-5, a2 * 1e-2, b1), keeps=keeps), 1)
    assert fit.quadratic_ms_per_token2 == pytest.approx(a1 * 1e-5, rel=1e-5)
    assert fit.linear_ms_per_token == pytest.approx(a2 * 1e-2, rel=1e-3, abs=1e-9 * a1)
    assert fit.constant_ms == pytest.approx(b1, rel=1e-3, abs=1e-6 * a1)
    assert fit.activation_bytes_per_token == pytest.approx(keeps)
    assert fit.context_bytes_per_token == pytest.approx(512)
    assert fit.forward_share == pytest.approx(1 / 3)
    assert fit.ends_linear_ms_per_token == pytest.approx(0.004)
    assert max(fit.held_out_largest_error, fit.held_out_memory_error) < 1e-6


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_coefficient_of_zero_stays_zero(missing: int) -> None:
    time = [*COEFFICIENTS]
    time[missing] = 0.0
    fit = fit_profile(rows((time[0], time[1], time[2])), 1)
    found = (fit.quadratic_ms_per_token2, fit.linear_ms_per_token, fit.constant_ms)
    assert found == pytest.approx(time, rel=1e-6, abs=1e-9)
    assert min(found) >= 0


def test_the_error_is_that_of_points_without_part_in_the_fit() -> None:
    exact = rows()
    layers = [one for one in exact if one["part"] == "layer" and not one["checkpointed"]]
    points = validation_points(layers, 3)
    held = [
        one
        for one in exact
        if one["part"] == "layer"
        and not one["checkpointed"]
        and (one["degree"], one["context"], one["tokens"]) in points
    ]
    assert len(held) == 5
    assert points != validation_points(layers, 4)
    assert points == validation_points(layers[::-1], 3)
    for one in held:
        one["forward_ms"] *= 2
        one["backward_ms"] *= 2
    fit = fit_profile(exact, 3)
    assert fit.linear_ms_per_token == pytest.approx(COEFFICIENTS[1])
    assert fit.held_out == 5
    assert fit.held_out_error == pytest.approx(0.5)
    assert fit.held_out_largest_error == pytest.approx(0.5)
    (published,) = (
        row for row in published_rows("flexsp.csv") if row["id"] == "cost_model_error_most"
    )
    assert fit.published_error == float(published["value"])
    # The table says the same of each point.
    table = compared(exact, fit, 3)
    off = [one["error"] for one in table if one["held_out"] and not one["checkpointed"]]
    assert off == pytest.approx([0.5] * 5)
    others = [one["error"] for one in table if one["held_out"] is False]
    assert len(others) == 2 * 19 + 4
    assert max(others) < 1e-6
    assert {one["published_error"] for one in table} == {0.06}
    whole = [one for one in table if one["part"] == "layer" and not one["context"]]
    assert max(one["memory_error"] for one in whole) < 1e-9
    assert all(one["predicted_kept_bytes"] > 0 for one in whole)
    (typical,) = (
        row for row in published_rows("infinipipe.csv") if row["id"] == "cost_model_error_most"
    )
    assert fit.published_pipeline_error == float(typical["value"])


def test_errors_of_passes_recomputation_and_memory_are_those_of_points_left_out() -> None:
    def off(name: str, factor: float, recomputed: bool) -> ProfileFit:
        changed = rows()
        points = validation_points([one for one in changed if _plain(one)], 1)
        for one in changed:
            here = (one["degree"], one["context"], one["tokens"]) in points
            if here and one["part"] == "layer" and one["checkpointed"] == recomputed:
                one[name] *= factor
        return fit_profile(changed, 1)

    assert off("forward_ms", 2.0, False).held_out_forward_error == pytest.approx(0.5)
    assert off("forward_ms", 2.0, False).held_out_backward_error < 1e-6
    assert off("backward_ms", 2.0, False).held_out_backward_error == pytest.approx(0.5)
    assert off("kept_bytes", 2.0, False).held_out_memory_error == pytest.approx(0.5)
    assert off("kept_bytes", 2.0, True).held_out_checkpoint_memory_error == pytest.approx(0.5)
    # A forward pass, two backward and nine tenths of a forward pass once more.
    slow = off("backward_ms", 2.0, True).held_out_recompute_error
    assert slow == pytest.approx(1 - 3.9 / (1 + 2 * 2.9))


def test_exchanges_that_were_measured_take_the_place_of_the_clusters() -> None:
    settings = replace(SETTINGS, exchange_degrees=(2, 4))
    given = [profile_row(point, COEFFICIENTS) for point in layer_points(settings)]
    fit = fit_profile(given, 1)
    assert fit.all_to_all_gb_s == pytest.approx({"2": 0.2, "4": 0.4})
    assert fit.all_to_all_latency_ms == pytest.approx({"2": 0.5, "4": 0.5})
    assert fit.held_out_all_to_all_error == pytest.approx(0, abs=1e-9)
    table = [one for one in compared(given, fit, 1) if one["part"] == "all_to_all"]
    assert [one["held_out"] for one in table].count(True) == 2
    assert max(one["error"] for one in table) < 1e-9
    changes = to_dict(fit)
    priced = cost(**{key: changes[key] for key in ("all_to_all_gb_s", "all_to_all_latency_ms")})
    assert priced.all_to_all_ms == pytest.approx(
        {1: 0.0, 2: 4 * 4 * 4 * 192 / 2 / 2e5, 4: 4 * 4 * 4 * 192 / 4 / 4e5}
    )
    # The point that was left out is not in the fit. Where bytes cost nothing, there is
    # no bandwidth.
    held = next(one for one in table if one["held_out"] and one["degree"] == 2)
    for one in given:
        if one["part"] == "all_to_all":
            if (one["degree"], one["tokens"]) == (2, held["tokens"]):
                one["forward_ms"] *= 2
                one["backward_ms"] *= 2
            if one["degree"] == 4:
                one["forward_ms"] = one["backward_ms"] = 1.0
    fit = fit_profile(given, 1)
    assert fit.all_to_all_gb_s == pytest.approx({"2": 0.2})
    assert fit.held_out_all_to_all_error == pytest.approx(0.5)


def test_rounding_is_no_bandwidth() -> None:
    settings = replace(SETTINGS, exchange_degrees=(2,))
    given = [profile_row(point, COEFFICIENTS) for point in layer_points(settings)]
    for equal_ms in np.random.default_rng(1).random(50).tolist():
        for one in given:
            if one["part"] == "all_to_all":
                one["forward_ms"] = one["backward_ms"] = equal_ms
        assert fit_profile(given, 1).all_to_all_gb_s == {}, equal_ms


def test_recomputed_layers_have_no_part_in_the_fit_of_the_others() -> None:
    without = fit_profile([one for one in rows() if not one["checkpointed"]], 1)
    assert without == replace(
        fit_profile(rows(), 1),
        recompute_over_forward=None,
        checkpoint_bytes_per_token=None,
        held_out_recompute_error=None,
        held_out_checkpoint_memory_error=None,
    )


def test_a_profile_without_groups_has_no_exchanges() -> None:
    alone = fit_profile([one for one in rows() if one["degree"] == 1], 1)
    assert alone.exchange_bytes_per_token == 0
    assert alone.activation_bytes_per_token == pytest.approx(8000)


def _plain(one: dict[str, Any]) -> bool:
    return bool(one["part"] == "layer" and not one["checkpointed"])


def cost(**changes: Any) -> CostModel:
    fit = replace(fit_profile(rows(), 1), **changes)
    settings = with_profile(checked("cost_model", "profile_tiny"), to_dict(fit))
    return build_cost_model(
        settings,
        replace(checked("cluster", "cpu_4"), tokens_per_device=None),
        checked("model", "tiny"),
        1024,
    )


def test_a_model_has_its_layers_and_its_ends_once() -> None:
    found = cost()
    assert found.quadratic_ms == pytest.approx(4 * 3e-5)
    assert found.linear_ms == pytest.approx(4 * 0.02 + 0.004)
    assert found.constant_ms == pytest.approx(4 * 1.5 + 0.3)
    assert found.forward_share == pytest.approx(1 / 3)
    kept = 4 * 8000 + 1024
    assert found.split_memory == pytest.approx(1 + 4 * 512 / kept)
    assert found.tokens_per_device == pytest.approx(4 * 2**30 / kept, rel=0.01)
    # 4 tensors of single precision a layer, queries and outputs 128 wide, keys and
    # values 64.
    assert found.all_to_all_ms == pytest.approx(
        {1: 0.0, 2: 4 * 4 * 4 * 192 / 2 / 1e5, 4: 4 * 4 * 4 * 192 / 4 / 0.5e5}
    )


def test_recomputed_layers_of_a_profile_take_and_keep_what_was_measured() -> None:
    fit = fit_profile(rows(exchanges=512.0), 1)
    settings = with_profile(checked("cost_model", "profile_tiny"), to_dict(fit))
    cluster = replace(checked("cluster", "cpu_4"), tokens_per_device=None)
    none, half = (
        build_cost_model(
            replace(settings, checkpoint_layers=count), cluster, checked("model", "tiny"), 1024
        )
        for count in (0, 2)
    )
    # Two of four layers: a forward pass is a third, nine tenths of it once more.
    assert half.quadratic_ms == pytest.approx(none.quadratic_ms * (1 + 0.5 * 0.9 / 3))
    assert half.linear_ms == pytest.approx(4 * 0.02 * (1 + 0.5 * 0.9 / 3) + 0.004)
    assert half.all_to_all_ms[2] == pytest.approx(none.all_to_all_ms[2] * 1.25)
    for cost, kept in ((none, 4 * 8512 + 1024), (half, 2 * 8512 + 2 * 576 + 1024)):
        assert cost.tokens_per_device == pytest.approx(4 * 2**30 / kept, rel=0.01)


def test_without_a_context_the_shapes_say_what_keys_and_values_take() -> None:
    kept = 4 * 8000 + 1024
    without = cost(context_bytes_per_token=None).split_memory
    assert without == pytest.approx(1 + 4 * 2 * 4 * 64 / kept)


FIT = fit_profile(rows(), 1)
WITHOUT_ENDS = cost(ends_linear_ms_per_token=0.0, ends_constant_ms=0.0)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=6), st.sampled_from([1, 2, 4]))
def test_slices_add_up_to_the_whole_but_for_the_constant(slices: list[int], degree: int) -> None:
    fit = FIT
    starts = np.cumsum([0, *slices[:-1]]).tolist()
    parts = [
        predicted_ms(fit, tokens, start, degree) - fit.constant_ms
        for start, tokens in zip(starts, slices, strict=True)
    ]
    whole = predicted_ms(fit, sum(slices), 0, degree) - fit.constant_ms
    assert sum(parts) == pytest.approx(whole, rel=1e-9)
    # A model of whole layers counts as the planners do.
    found = WITHOUT_ENDS
    planned = found.group_time_ms([sum(slices)], degree).compute_ms - found.constant_ms
    assert planned == pytest.approx(4 * whole)


def test_a_cost_model_without_its_profile_or_of_another_model_is_refused() -> None:
    cluster, model = checked("cluster", "cpu_4"), checked("model", "tiny")
    settings: ProfiledCostSettings = checked("cost_model", "profile_tiny")
    with pytest.raises(SettingsError, match=r"^cost_model\.profile: got 'tiny'; allowed by hand"):
        build_cost_model(settings, cluster, model, 64)
    fit = to_dict(replace(fit_profile(rows(), 1), model="llama_1b"))
    with pytest.raises(
        SettingsError,
        match=r"^cost_model\.profile: got 'tiny', measured for llama_1b; allowed: .* tiny",
    ):
        build_cost_model(with_profile(settings, fit), cluster, model, 64)
    with pytest.raises(SettingsError, match=r"^cost_model\.fit\.constant_ms"):
        with_profile(settings, {**fit, "constant_ms": -1.0})


def test_a_fit_reads_as_it_was_written() -> None:
    fit = fit_profile(rows(), 1)
    assert load(ProfileFit, to_dict(fit)) == fit


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"degrees": (3,)}, r"degrees: got 3; allowed: divisors of the heads of tiny, .* 8"),
        ({"lengths": (256, 514)}, "lengths: got 514; allowed: multiples of 4"),
        ({"lengths": (256, 256)}, r"lengths: got \[256, 256\]; allowed: .* each once"),
        ({"contexts": ()}, r"contexts: got \[\]; allowed: one value or more"),
        ({"checkpointing": (True,)}, "checkpointing: .*with false among them"),
        ({"exchange_degrees": (16,)}, r"degrees: got 16; allowed: divisors of the heads"),
        ({"lengths": (256,)}, "lengths: .* after contexts .*three different"),
        ({"lengths": (256,), "degrees": (1,)}, "lengths: got 2 points .*allowed: 5 or more"),
    ],
)
def test_what_makes_no_profile_is_refused_in_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{said}") as refused:
        replace(SETTINGS, **changes)
    assert "\n" not in str(refused.value)


def test_slices_beyond_a_models_positions_are_refused() -> None:
    learned: Any = load(ProfileSettings, choice("profile", "tiny")).model
    learned = replace(learned, positions="learned", max_positions=1535)
    with pytest.raises(SettingsError, match=r"got 1024 after a context of 512; .* at most 1535"):
        replace(SETTINGS, model=learned)
    replace(SETTINGS, model=replace(learned, max_positions=1536))
