"""The catalogue. Shapes of models: published counts of parameters, products' weights
against closed formulas. Devices: a source for every number, published totals of nodes.
Entries, names and precisions that cannot be.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest

from railx.errors import UserError
from railx.performance.devices import BYTES, Device, device_named
from railx.performance.models import Model, model_named
from railx.performance.resources import catalogue
from railx.settings import SettingsError
from tests.builders import ROOT

MODELS: Mapping[str, Model] = catalogue("models.yaml", Model)

#: Parameters in the published weights, and how many :class:`Model` leaves out: norms of
#: queries and keys (Qwen3), the router's correction (DeepSeek V3), sinks of the
#: attention less biases of norms, which that model lacks (GPT-OSS).
WEIGHTS = {
    "llama3_8b": (8_030_261_248, 0),
    "llama3_70b": (70_553_706_496, 0),
    "llama3_405b": (405_853_388_800, 0),
    "qwen3_32b": (32_762_123_264, 64 * 2 * 128),
    "qwen3_235b_a22b": (235_093_634_560, 94 * 2 * 128),
    "deepseek_v3": (671_026_419_200, 58 * 256),
    "gpt_oss_120b": (116_829_156_672, 36 * 64 - (2 * 36 + 1) * 2880),
    "mixtral_8x22b": (140_620_634_112, 0),
}
#: Billions of parameters that a token uses, as published (to the last digit printed).
ACTIVE = {
    "qwen3_235b_a22b": (22, 0),
    "deepseek_v3": (37, 0),
    "gpt_oss_120b": (5.1, 1),
    "mixtral_8x22b": (39, 0),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_parameters_are_those_of_the_published_weights(name: str) -> None:
    weights, left_out = WEIGHTS[name]
    assert MODELS[name].parameters == weights - left_out


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_the_published_ones(name: str) -> None:
    billions, digits = ACTIVE[name]
    assert round(MODELS[name].active_parameters / 1e9, digits) == billions


@pytest.mark.parametrize(
    ("name", "billions"),
    [("gpt3_175b", 175), ("megatron_22b", 22), ("turing_530b", 530), ("megatron_1t", 1008)],
)
def test_gpt_has_the_parameters_of_megatrons_formula(name: str, billions: int) -> None:
    """12 l h² (1 + 13 / (12 h) + (V + s) / (12 l h)) of arXiv 2104.04473, and the final
    norm, which the formula leaves out.
    """
    model = MODELS[name]
    layers, hidden = model.layers, model.hidden
    tables = (model.vocabulary + 2048) * hidden
    formula = 12 * layers * hidden**2 + 13 * layers * hidden + tables
    assert model.parameters == formula + 2 * hidden
    assert round(formula / 1e9) == billions


def test_mpt_has_the_parameters_that_its_measured_runs_print() -> None:
    with (ROOT / "resources" / "measured" / "mosaic_fsdp.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    shapes = {(row["Model"], int(row["SeqLen (T)"]), int(row["NumParams"])) for row in rows}
    assert len(shapes) > 9
    for size, tokens, parameters in shapes:
        model = replace(model_named(f"mpt_{size}"), learned_positions=tokens)
        assert (size, tokens, model.parameters) == (size, tokens, parameters)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_source(name: str) -> None:
    assert MODELS[name].source


@pytest.mark.parametrize("name", MODELS)
def test_products_have_the_weights_of_closed_formulas(name: str) -> None:
    """Attention: h (a + 2 k) d + a d h, or the low ranks; feed-forward: m h f."""
    model = MODELS[name]
    hidden, heads, width = model.hidden, model.heads, model.key_width
    if model.kv_rank:
        plain = width - model.rope_width
        attention = (
            (hidden + heads * width) * model.query_rank
            + hidden * (model.kv_rank + model.rope_width)
            + model.kv_rank * heads * (plain + model.values_width)
            + heads * model.values_width * hidden
        )
    else:
        attention = hidden * width * (2 * heads + 2 * model.kv_heads)
    matrices = 3 if model.activation == "swiglu" else 2
    for kind in model.kinds:
        shared = sum(product.weights for product in kind.products if not product.expert)
        expert = sum(product.weights for product in kind.products if product.expert)
        if kind.experts:
            assert expert == matrices * hidden * model.expert_feed_forward
            assert shared == attention + hidden * (
                model.experts + matrices * model.shared_feed_forward
            )
        else:
            assert expert == 0
            assert shared == attention + matrices * hidden * model.feed_forward


@pytest.mark.parametrize("name", MODELS)
def test_kinds_share_out_the_layers(name: str) -> None:
    model = MODELS[name]
    kinds = model.kinds
    assert sum(kind.count for kind in kinds) == model.layers
    assert sum(kind.count for kind in kinds if kind.window) == model.window_layers
    with_experts = model.layers - model.dense_layers if model.experts else 0
    assert sum(kind.count for kind in kinds if kind.experts) == with_experts


def test_a_causal_query_sees_half_the_sequence_or_its_window() -> None:
    model = MODELS["gpt_oss_120b"]
    full, windowed = sorted(model.kinds, key=lambda kind: kind.window)
    assert model.attended_tokens(full, 8192) == 4096
    assert model.attended_tokens(windowed, 8192) == 128 - 128**2 / (2 * 8192)
    assert model.attended_tokens(windowed, 128) == 64


def test_flops_of_a_token_are_twice_the_active_weights_and_the_scores() -> None:
    """Llama 3 8B, 8,192 tokens: 2 (6.98e9 + 128256 h) and 4 l h s / 2."""
    model = MODELS["llama3_8b"]
    weights = 32 * 4096 * (128 * (2 * 32 + 2 * 8) + 3 * 14336) + 128256 * 4096
    assert model.active_parameters == weights
    assert model.flops_per_token(8192) == 2 * weights + 2 * 32 * 4096 * 8192


def test_unknown_names_list_the_models() -> None:
    with pytest.raises(UserError, match=r"^model: got llama; allowed: "):
        model_named("llama")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_heads": 3}, "kv_heads: got 3; allowed: a divisor of heads, 32"),
        ({"hidden": 4095}, "hidden: got 4095; allowed: a multiple of heads, 32"),
        ({"experts": 4}, "experts: got 4 with experts_per_token 0 and"),
        (
            {"experts": 4, "experts_per_token": 5, "expert_feed_forward": 8},
            "experts_per_token: got 5; allowed: at most 4, the experts",
        ),
        ({"dense_layers": 33}, "dense_layers: got 33; allowed: at most 32, the layers"),
        ({"window_layers": 33}, "window_layers: got 33; allowed: at most 32, the layers"),
    ],
)
def test_impossible_shapes_end_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        replace(MODELS["llama3_8b"], **changes)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


DEVICES: Mapping[str, Device] = catalogue("devices.yaml", Device)
#: Numbers that one source covers.
NODE = ("node_devices", "fast_gb_s", "slow_gb_s")
#: Their source is in the field's docstring.
LATENCIES = ("fast_latency_s", "slow_latency_s")


@pytest.mark.parametrize("name", DEVICES)
def test_every_number_has_a_source_and_every_source_a_number(name: str) -> None:
    device = DEVICES[name]
    numbers = {
        "node" if field.name in NODE else field.name
        for field in fields(Device)
        if field.name not in ("name", "sources", *LATENCIES) and getattr(device, field.name)
    }
    assert set(device.sources) == numbers
    assert all(device.sources.values())


@pytest.mark.parametrize("name", DEVICES)
def test_latencies_are_those_that_the_class_names_a_source_for(name: str) -> None:
    device = DEVICES[name]
    assert (device.fast_latency_s, device.slow_latency_s) == (2.5e-6, 5e-6)


@pytest.mark.parametrize("name", DEVICES)
def test_narrower_operands_are_no_slower(name: str) -> None:
    peaks = DEVICES[name].peak_tflops
    assert set(peaks) <= set(BYTES)
    ordered = [peaks[precision] for precision in BYTES if precision in peaks]
    assert ordered == sorted(ordered)
    assert peaks.get("fp16", peaks["bf16"]) == peaks["bf16"]


@pytest.mark.parametrize("name", DEVICES)
def test_the_fast_domain_is_the_faster_one(name: str) -> None:
    device = DEVICES[name]
    assert device.memory_gb_s > device.fast_gb_s > device.slow_gb_s


def test_totals_of_a_node_are_the_published_ones() -> None:
    """DGX B200: 1,440 GB, 64 TB/s, 14.4 TB/s. GB200 NVL72: 13.4 TB, 576 TB/s, 130 TB/s,
    360 PFLOPS of FP8. GB300 NVL72: 20 TB, 1,080 PFLOPS of FP4. MI300X: 7 links of
    128 GB/s. TPU v5p: 1,200 GB/s over three axes, 95 GiB.
    """

    def total(name: str, field: str, unit: float) -> float:
        device = DEVICES[name]
        value: float = getattr(device, field)
        return round(value * device.node_devices / unit, 1)

    assert total("b200", "capacity_gb", 1) == 1440
    assert total("b200", "memory_gb_s", 1e3) == 64
    assert total("b200", "fast_gb_s", 1e3) * 2 == 14.4
    assert total("gb200", "capacity_gb", 1e3) == 13.4
    assert total("gb200", "memory_gb_s", 1e3) == 576
    assert int(total("gb200", "fast_gb_s", 1e3) * 2) == 129  # printed as 130
    assert DEVICES["gb200"].peak_tflops["fp8"] * 72 == 360e3
    assert int(total("gb300", "capacity_gb", 1e3)) == 20
    assert DEVICES["gb300"].peak_tflops["fp4"] * 72 == 1080e3
    assert DEVICES["mi300x"].fast_gb_s * 2 == 7 * 128
    assert DEVICES["tpu_v5p"].fast_gb_s * 2 * 3 == 1200
    assert round(DEVICES["tpu_v5p"].capacity_gb * 1e9 / 2**30) == 95


@pytest.mark.parametrize("name", [name for name in DEVICES if DEVICES[name].all_reduce])
def test_measured_all_reduces_are_there(name: str) -> None:
    file, device = DEVICES[name].all_reduce.split(":")
    with (ROOT / "resources" / "measured" / file).open(newline="") as table:
        assert any(device in row.values() for row in csv.DictReader(table))


def test_peak_is_in_operations_per_second() -> None:
    assert device_named("a100_80gb").peak_flops("bf16") == 312e12


def test_a_familys_name_is_its_first_entry() -> None:
    assert device_named("h100") == DEVICES["h100_80gb"]
    assert device_named("a100") == DEVICES["a100_80gb"]
    assert device_named("a100_40gb") == DEVICES["a100_40gb"]
    assert device_named("b200") == DEVICES["b200"]


def test_a_precision_that_the_device_lacks_ends_in_one_line() -> None:
    message = "precision: got fp8 on a100_80gb; allowed: fp16, bf16"
    with pytest.raises(UserError, match=f"^{message}$"):
        device_named("a100_80gb").peak_flops("fp8")


@pytest.mark.parametrize("name", ["v100", "h10", "b2000"])
def test_unknown_names_list_the_devices(name: str) -> None:
    allowed = re.escape(", ".join(DEVICES))
    with pytest.raises(UserError, match=f"^devices: got {name}; allowed: {allowed}$"):
        device_named(name)
