"""A step of serving against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from railx.performance.closed import step_times
from railx.performance.devices import device_named
from railx.performance.layers import Layers, Setting
from railx.performance.models import Model, model_named
from railx.performance.networks import TwoLevelRing
from railx.performance.plans import Plan, Plans
from railx.performance.programs import constants_named, program_named
from railx.performance.serving import (
    decode_times,
    prefill_times,
    serving_memory_bytes,
)

#: Shares of the peaks that are reached: all, so that counts by hand are exact.
IDEAL = {"matmul_share": 1.0, "memory_share": 1.0, "attention_share": 1.0, "matmul_tile": 0.0}


def setting_of(name: str) -> Setting:
    device = device_named("h100")
    network = TwoLevelRing.of(device, fast_share=1.0, slow_share=1.0)
    constants = replace(constants_named("torchtitan_h100"), **IDEAL)
    return Setting(model_named(name), device, network, program_named("torchtitan"), constants)


def cache_bytes_per_token(model: Model) -> float:
    return model.layers * model.cached_width * 2.0


def plans_of(**degrees: int) -> Plans:
    return Plans.of([Plan(**degrees)])  # type: ignore[arg-type]


def test_the_cache_of_a_token_is_as_published() -> None:
    # 80 layers, 8 heads of keys and values, 128 wide, 2 bytes each.
    assert cache_bytes_per_token(model_named("llama3_70b")) == 80 * 2 * 8 * 128 * 2
    # arXiv 2412.19437, section 2: (512 + 64) values in each of 61 layers.
    assert cache_bytes_per_token(model_named("deepseek_v3")) == 61 * 576 * 2


def test_one_token_of_one_sequence_reads_all_weights_and_its_cache() -> None:
    setting = setting_of("llama3_8b")
    model, rate = setting.model, setting.device.memory_gb_s * 1e9
    times = decode_times(setting, plans_of(), 4096.0)
    products = model.active_parameters - model.table_weights
    assert times.parts["weights"][0] == pytest.approx(2 * products / rate)
    assert times.parts["cache"][0] == pytest.approx(4096 * cache_bytes_per_token(model) / rate)
    assert times.parts["output"][0] == pytest.approx(2 * model.table_weights / rate)
    assert times.parts["compute"][0] == 0
    assert times.total_s[0] == pytest.approx(
        sum(times.parts[name][0] for name in ("weights", "cache", "output"))
    )


def test_many_sequences_are_bound_by_their_products() -> None:
    setting = setting_of("llama3_8b")
    model = setting.model
    times = decode_times(setting, plans_of(micro_batch=4096), 0.0)
    products = model.active_parameters - model.table_weights
    seconds = 2 * 4096 * products / setting.product_flops
    assert times.parts["compute"][0] == pytest.approx(seconds)
    assert times.parts["weights"][0] == 0
    assert times.tokens_per_s[0] == pytest.approx(4096 / times.total_s[0])


def test_tensor_ranks_divide_weights_and_heads_of_the_cache() -> None:
    setting = setting_of("llama3_70b")
    plans = Plans.of([Plan(tensor=n) for n in (1, 8, 16)])
    times = decode_times(setting, plans, 8192.0)
    assert times.parts["weights"][1] == pytest.approx(times.parts["weights"][0] / 8)
    # Sixteen ranks share eight heads of keys and values: two read the same.
    assert times.parts["cache"][1] == pytest.approx(times.parts["cache"][0] / 8)
    assert times.parts["cache"][2] == times.parts["cache"][1]
    assert times.parts["tensor"][0] == 0 < times.parts["tensor"][1]


def test_heads_of_the_cache_are_whole() -> None:
    """Ten heads on four ranks: the fullest has three of them."""
    setting = setting_of("llama3_8b")
    setting = replace(setting, model=replace(setting.model, heads=40, kv_heads=10, head_width=128))
    plans = plans_of(tensor=4, micro_batch=16)
    three = 2.0 * setting.model.layers * 3 * 2 * 128 * 16 * 8192
    held = [serving_memory_bytes(setting, plans, tokens)[0] for tokens in (8192.0, 0.0)]
    assert held[0] - held[1] == pytest.approx(three)
    read = decode_times(setting, plans, 8192.0).parts["cache"][0]
    assert read == pytest.approx(three / (setting.device.memory_gb_s * 1e9))


def test_experts_that_no_token_visits_are_not_read() -> None:
    setting = setting_of("mixtral_8x22b")
    model = setting.model
    (kind,) = model.kinds
    one = sum(p.weights for p in kind.products if p.expert)
    rest = sum(p.weights for p in kind.products if not p.expert)
    rate = setting.device.memory_gb_s * 1e9
    for sequences in (1, 3, 64):
        times = decode_times(setting, plans_of(micro_batch=sequences), 0.0)
        visited = 8 * (1 - (1 - 2 / 8) ** sequences)
        weights = kind.count * 2 * (rest + visited * one) / rate
        assert times.parts["weights"][0] == pytest.approx(weights)


def test_a_prefill_is_the_forward_pass_of_training() -> None:
    setting = setting_of("llama3_8b")
    plans = plans_of(tensor=4, sequence_tokens=8192)
    times = prefill_times(setting, plans)
    passes = Layers(setting, plans).passes(setting.model.kinds[0])
    assert times.parts["compute"][0] == pytest.approx(32 * passes.forward[0])
    assert times.parts["tensor"][0] == pytest.approx(32 * passes.sent["tensor"][0][0])
    assert times.total_s[0] < step_times(setting, plans).total_s[0] / 2.5


def test_memory_is_weights_and_the_caches_of_all_sequences() -> None:
    setting = setting_of("llama3_8b")
    plans = plans_of(micro_batch=16)
    model = setting.model
    layers = sum(kind.count * sum(model.layer_weights(kind)) for kind in model.kinds)
    weights = 2 * (layers + 2 * model.table_weights)
    cache = 16 * 8192 * cache_bytes_per_token(model)
    assert serving_memory_bytes(setting, plans, 8192.0)[0] == pytest.approx(weights + cache)
    learned = replace(setting, model=replace(model, learned_positions=8192))
    positions = 2 * 8192 * model.hidden
    for plans in (plans_of(), plans_of(tensor=4, pipeline=2)):
        with_table, without = (serving_memory_bytes(s, plans, 0.0)[0] for s in (learned, setting))
        assert with_table - without == positions


def test_a_window_bounds_the_cache() -> None:
    setting = setting_of("gpt_oss_120b")
    long, longer = (decode_times(setting, plans_of(), cached) for cached in (1e5, 2e5))
    full = [kind for kind in setting.model.kinds if not kind.window]
    assert 0 < sum(kind.count for kind in full) < setting.model.layers
    added = longer.parts["cache"][0] - long.parts["cache"][0]
    per_layer = cache_bytes_per_token(setting.model) / setting.model.layers
    rate = setting.device.memory_gb_s * 1e9
    assert added == pytest.approx(1e5 * per_layer * sum(k.count for k in full) / rate)
    assert np.isfinite(added)
