"""What stands in for constants that InfiniPipe does not publish, worked out again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from railx.performance.decoder import parameter_count
from railx.performance.sequence_cost import build_cost_model
from tests.builders import checked, published_rows

_CONSTANTS = {
    (row["model"], row["quantity"]): float(row["value"])
    for row in published_rows("flexsp_cost_constants.csv")
}
SIZES = ("7b", "13b", "30b")


def _published(size: str, quantity: str) -> float:
    return _CONSTANTS.get((f"gpt_{size}", quantity), 0.0)


def _kept_mib() -> tuple[float, float]:
    """What a whole layer and its MLP keep of a token, by hidden unit.

    From the 7B model, whose MLPs are recomputed in 12 layers or in all.
    """
    fewer, more = (
        _published("7b", f"mlp_recomputed_layers{where}") for where in ("", "_on_16_devices")
    )
    kept = _published("7b", "activation_mib_per_token")
    least = _published("7b", "activation_mib_per_token_on_16_devices")
    mlp = (kept - least) / (more - fewer) / 4096
    return (kept + fewer * mlp * 4096) / 32 / 4096, mlp


@pytest.mark.parametrize("size", SIZES)
def test_memory_without_recomputation_is_that_of_a_layer_of_the_7b_model(size: str) -> None:
    model, derived = checked("model", f"gpt_{size}"), checked("cost_model", f"flexsp_{size}_kept")
    layer, mlp = _kept_mib()
    whole = layer * model.hidden * model.layers
    assert derived.activation_mib_per_token == pytest.approx(whole, rel=1e-8)
    assert derived.logits_bytes_per_token == 2 * model.vocabulary
    if size != "30b":  # whose attention is recomputed too, and keeps nobody knows what
        recomputed = _published(size, "mlp_recomputed_layers")
        without = whole - recomputed * mlp * model.hidden
        assert without == pytest.approx(_published(size, "activation_mib_per_token"), rel=0.012)
    # In the words of the file.
    assert layer * 2**20 == pytest.approx(44.5, abs=0.05)


@pytest.mark.parametrize("size", SIZES)
def test_times_without_recomputation_are_the_published_ones_less_a_forward_pass(size: str) -> None:
    model, derived = checked("model", f"gpt_{size}"), checked("cost_model", f"flexsp_{size}_kept")
    square = model.hidden**2
    forward = 12 * square * model.layers + model.vocabulary * model.hidden
    attention = _published(size, "attention_recomputed_layers")
    again = 8 * square * _published(size, "mlp_recomputed_layers") + 4 * square * attention
    linear = _published(size, "linear_ms_per_token") / (1 + again / forward / 3)
    quadratic = _published(size, "quadratic_ms_per_token2") / (1 + attention / model.layers / 3)
    assert derived.linear_ms_per_token == pytest.approx(linear, rel=1e-7)
    assert derived.quadratic_ms_per_token2 == pytest.approx(quadratic, rel=1e-7)
    assert derived.constant_ms == _published(size, "constant_ms")
    peak = {"7b": 0.75, "13b": 0.98, "30b": 1.01}[size]
    assert 6 * forward / linear / 1e9 / 312 == pytest.approx(peak, abs=0.005)
    if size != "7b":
        timed = checked("cost_model", f"flexsp_{size}_kept_as_timed")
        published = checked("cost_model", f"flexsp_{size}")
        assert timed == replace(
            published,
            activation_mib_per_token=derived.activation_mib_per_token,
            logits_bytes_per_token=derived.logits_bytes_per_token,
        )


@pytest.mark.parametrize("size", SIZES)
def test_the_constant_as_traffic_of_sharding_is_the_published_time(size: str) -> None:
    model, cluster = checked("model", f"gpt_{size}"), checked("cluster", "a100_64")
    derived = checked("cost_model", f"flexsp_{size}_kept_zero3")
    roomy = replace(cluster, memory_gib=60.0)
    cost = build_cost_model(derived, roomy, model, 192_000)
    assert derived.constant_ms == pytest.approx(0.3 * model.layers)
    assert cost.sharding_ms == pytest.approx(cost.constant_ms - derived.constant_ms)
    assert cost.constant_ms == pytest.approx(_published(size, "constant_ms"), rel=1e-6)
    plain, traffic = checked("cost_model", f"flexsp_{size}_kept"), derived.sharding
    often = checked("cost_model", f"flexsp_{size}_kept_zero3_chunk")
    assert often == replace(derived, sharding=replace(traffic, pipelines_gather="chunk"))
    assert replace(derived, constant_ms=plain.constant_ms, sharding=None) == plain


def test_the_published_constants_are_proportional_to_the_parameters() -> None:
    each = [
        _published(size, "constant_ms") / parameter_count(checked("model", f"gpt_{size}"), 192_000)
        for size in SIZES
    ]
    assert max(each) / min(each) < 1.025


def test_the_cluster_and_its_variants() -> None:
    cluster = checked("cluster", "a800_32")
    tables: dict[str, dict[str, float]] = {}
    for row in published_rows("flexsp_all_to_all_bandwidth.csv"):
        tables.setdefault(row["table"], {})[row["degree"]] = float(row["gb_s"])
    used = tables["4k_seq_2_ib"]
    inside = {degree: gb_s for degree, gb_s in used.items() if int(degree) <= 8}
    assert (cluster.all_to_all_gb_s, cluster.gather_gb_s) == (used, inside)
    assert cluster.point_to_point_gb_s == _CONSTANTS["any", "point_to_point_gb_s_least"]
    twice = checked("cluster", "a800_32_infiniband")
    # Degree 64 is beyond its devices.
    comment = {**tables["4k_seq_comment"], "64": used["64"]}
    assert twice == replace(cluster, name="a800_32_infiniband", all_to_all_gb_s=comment)
    slower = checked("cluster", "a800_32_nvlink")
    scaled = {degree: round(gb_s * 400 / 600, 2) for degree, gb_s in inside.items()}
    assert slower.gather_gb_s == scaled
    assert slower.all_to_all_gb_s == {**used, **scaled}


@pytest.mark.parametrize("size", SIZES)
def test_an_analytic_model_reaches_half_of_the_peak(size: str) -> None:
    settings, model = checked("cost_model", "analytic_a800"), checked("model", f"gpt_{size}")
    cost = build_cost_model(settings, checked("cluster", "a800_32"), model, 48_000)
    weights = 12 * model.hidden**2 * model.layers + model.vocabulary * model.hidden
    assert cost.linear_ms == pytest.approx(6 * weights / 156e9)
    assert cost.constant_ms == 10
