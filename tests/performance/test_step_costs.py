"""The step model's costs of sequences: the coefficients give its times again, and the
clusters of conf/ have its bandwidths.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from railx.performance.cluster import ClusterSettings
from railx.performance.decoder import ModelSettings
from railx.performance.devices import Device, device_named
from railx.performance.layers import Layers, Setting
from railx.performance.networks import TwoLevelRing
from railx.performance.plans import Plan, Plans
from railx.performance.programs import constants_named, default_constants, program_named
from railx.performance.sequence_cost import StepCostSettings, build_cost_model
from railx.performance.step_costs import with_step_model
from railx.settings import SettingsError, load
from railx.vocabulary.arrays import IntArray
from workflow.config import read_choice

DEVICES = {"a100_80gb_64": "a100_80gb", "h100_64": "h100", "b200_64": "b200"}


def cluster_of(name: str) -> ClusterSettings:
    cluster: ClusterSettings = load(ClusterSettings, read_choice("cluster", name), "cluster")
    return cluster


def model_of(name: str = "llama_7b") -> ModelSettings:
    model: ModelSettings = load(ModelSettings, read_choice("model", name), "model")
    return model


@pytest.mark.parametrize("device", DEVICES.values())
@pytest.mark.parametrize("tokens", [8_192, 24_576, 131_072])
def test_the_coefficients_give_the_times_of_the_step_model(device: str, tokens: int) -> None:
    """Also of lengths that had no part in them."""
    model = model_of()
    costs = with_step_model(StepCostSettings(kind="step", device=device), model)
    constants = constants_named(costs.constants or "")
    network = TwoLevelRing.of(device_named(device), fast_share=1.0, slow_share=1.0)
    setting = Setting(
        model.shape(), device_named(device), network, program_named(constants.program), constants
    )
    layers = Layers(setting, Plans.of([Plan(sequence_tokens=tokens)]))
    passes = layers.passes(setting.model.kinds[0])
    expected = float((model.layers * (passes.forward + passes.backward) + layers.head())[0])
    expected += float(layers.lookup()[0])
    cost = build_cost_model(costs, cluster_of("h100_64"), model, tokens)
    got = cost.group_time_ms([tokens], 1)
    assert got.compute_ms == pytest.approx(expected * 1e3, rel=1e-9)
    assert got.all_to_all_ms == 0.0


def all_to_all_table(chip: Device, degrees: IntArray) -> dict[int, float]:
    """GB/s of a device in a large all-to-all by degree, in its usual nodes."""
    constants = default_constants(chip.name, "torchtitan")
    network = TwoLevelRing.of(
        chip, fast_share=constants.fast_share, slow_share=constants.slow_share
    )
    size_bytes, inside = np.full(len(degrees), 1e12), np.minimum(degrees, network.node_devices)
    times_s = network.time_s("all_to_all", size_bytes, degrees, inside)
    return dict(zip(degrees.tolist(), (1e3 / times_s).tolist(), strict=True))


@pytest.mark.parametrize(("name", "device"), DEVICES.items())
def test_clusters_of_conf_have_the_numbers_of_the_step_model(name: str, device: str) -> None:
    cluster, chip = cluster_of(name), device_named(device)
    table = all_to_all_table(chip, np.array([2, 4, 8, 16, 32, 64]))
    assert {int(d): v for d, v in cluster.all_to_all_gb_s.items()} == pytest.approx(table, rel=1e-3)
    assert cluster.memory_gib == pytest.approx(0.9 * chip.capacity_gb * 1e9 / 2**30, abs=0.01)
    assert cluster.device_tflop_s == chip.peak_tflops["bf16"]
    # A ring of d ranks sends (d - 1) / d of what a rank exchanges.
    if device == "h100":
        assert table[8] == pytest.approx(450 * 0.8 * 8 / 7, rel=1e-3)


def test_what_is_filled_in_stays_and_belongs_to_its_model() -> None:
    settings = StepCostSettings(kind="step", device="h100")
    filled = with_step_model(settings, model_of())
    assert with_step_model(filled, model_of("gpt_13b")) is filled
    added = with_step_model(replace(settings, constant_ms=5.0), model_of())
    assert added.constant_ms == pytest.approx(filled.constant_ms + 5.0)
    for costs in (settings, filled):
        with pytest.raises(SettingsError, match=r"cost_model\.model: got coefficients for"):
            build_cost_model(costs, cluster_of("h100_64"), model_of("gpt_13b"), 1_000)
    with pytest.raises(SettingsError, match=r"cost_model\.device: got h1000; allowed"):
        with_step_model(StepCostSettings(kind="step", device="h1000"), model_of())


def test_other_constants_give_other_times() -> None:
    settings = StepCostSettings(kind="step", device="a100_80gb", constants="llm_foundry_a100")
    usual = with_step_model(replace(settings, constants=None), model_of())
    assert with_step_model(settings, model_of()).linear_ms_per_token != usual.linear_ms_per_token
