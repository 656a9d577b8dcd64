"""Closed forms of transformer arithmetic against published sizes and hand counts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.performance.decoder import (
    ModelSettings,
    activation_bytes_per_token,
    all_to_all_bytes_per_token,
    attention_flops,
    forward_flops,
    linear_flops_per_token,
    parameter_count,
)
from railx.settings import SettingsError, load
from tests.builders import checked, choice, published_rows


def _published() -> dict[tuple[str, str], float]:
    rows = published_rows("flexsp_cost_constants.csv")
    return {(row["model"], row["quantity"]): float(row["value"]) for row in rows}


MODELS = ("gpt_7b", "gpt_13b", "gpt_30b")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("positions", [192_000, 384_000])
def test_parameters_are_the_published_ones(name: str, positions: int) -> None:
    published = _published()[name, f"parameters_at_{positions}_positions"]
    assert parameter_count(checked("model", name), positions) / 2**30 == pytest.approx(
        published, abs=6e-6
    )


@pytest.mark.parametrize("name", MODELS)
def test_shapes_are_the_published_ones(name: str) -> None:
    model, published = checked("model", name), _published()
    assert (model.layers, model.hidden, model.heads, model.vocabulary) == tuple(
        published[name, key] for key in ("layers", "hidden", "heads", "vocabulary")
    )


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama_1b", 1.35), ("llama_7b", 6.74), ("llama_13b", 13.02), ("llama_30b", 32.53)],
)
def test_llama_shapes_have_the_sizes_that_their_authors_give(name: str, billions: float) -> None:
    """Table 2 of arXiv 2302.13971 rounds to 6.7, 13.0 and 32.5; the counts here are by
    hand.
    """
    model = checked("model", name)
    assert parameter_count(model, 0) / 1e9 == pytest.approx(billions, abs=0.006)
    assert model.head_width == 128


def test_the_model_of_convergence_runs_has_ten_million_parameters() -> None:
    model = checked("model", "llama_10m")
    assert 10e6 <= parameter_count(model, 0) < 11e6
    assert model.vocabulary == 4096


@pytest.mark.parametrize(
    ("name", "mib"), [("gpt_7b", 2.0), ("gpt_13b", 3.125), ("gpt_30b", 6.09375)]
)
def test_all_to_all_is_16_l_h_bytes(name: str, mib: float) -> None:
    model = checked("model", name)
    assert all_to_all_bytes_per_token(model) == 16 * model.layers * model.hidden == mib * 2**20


def test_grouped_query_attention_exchanges_fewer_keys_and_values() -> None:
    model = checked("model", "gpt_7b")
    grouped = replace(model, kv_heads=16)
    assert all_to_all_bytes_per_token(grouped) == 10 * model.layers * model.hidden  # 8 l (h + h/4)


def test_tiny_model_by_hand() -> None:
    model = checked("model", "tiny")
    layer = 128 * 128 * 2 + 2 * 128 * 64 + 3 * 128 * 352 + 2 * 128
    assert parameter_count(model, 1024) == 4 * layer + 2 * 257 * 128 + 128
    assert linear_flops_per_token(model) == 2 * (4 * (layer - 2 * 128) + 257 * 128)
    assert 3 * forward_flops(model, 7) == 3 * (7 * linear_flops_per_token(model) + 2 * 4 * 128 * 49)


def test_activation_bytes_of_a_gelu_layer_without_grouping() -> None:
    model = checked("model", "gpt_7b")
    assert activation_bytes_per_token(model) == 32 * model.layers * model.hidden


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=6))
def test_slices_add_up_to_the_whole_sequence(slices: list[int]) -> None:
    model = checked("model", "tiny")
    starts = [sum(slices[:index]) for index in range(len(slices))]
    assert sum(
        attention_flops(model, new, context) for context, new in zip(starts, slices, strict=True)
    ) == attention_flops(model, sum(slices))
    assert sum(
        forward_flops(model, new, context) for context, new in zip(starts, slices, strict=True)
    ) == forward_flops(model, sum(slices))


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("hidden", 130, "multiple of heads"),
        ("kv_heads", 3, "divisor of heads"),
        ("heads", 128, "even width"),
        ("layers", 0, "at least 1"),
    ],
)
def test_impossible_shapes_name_the_key(key: str, value: int, allowed: str) -> None:
    plain = choice("model", "tiny") | {key: value}
    if key == "heads":
        plain["kv_heads"] = 128
    with pytest.raises(SettingsError, match=rf"^model\.{key}: .*{allowed}"):
        load(ModelSettings, plain, "model")
