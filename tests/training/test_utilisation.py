"""Operations of a step and their share of a device's peak."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from railx.performance.decoder import ModelSettings
from railx.planning.format.parts import Pipeline
from tests.plans import chunk, micro_batch, pipeline_plan, sequence_parallel_plan
from training import results, utilisation
from workflow.stages import STAGES

MODEL = ModelSettings("one", 2, 8, 2, 1, 16, 10)


def test_a_step_counts_forward_and_backward_of_every_sequence() -> None:
    """By hand: a layer's matrices are q and o (8 x 8), k and v (8 x 4) and three of the
    feed-forward (8 x 16); a query of a causal mask sees half of the keys.
    """
    weights = 2 * (2 * 64 + 2 * 32 + 3 * 128) + 80
    expected = sum(3 * (2 * weights * tokens + 2 * 2 * 8 * tokens**2) for tokens in (5, 3))
    plan = sequence_parallel_plan(2, [micro_batch(((0, 1), {0: 5})), micro_batch(((0,), {1: 3}))])
    assert utilisation.batch_flops(MODEL, plan.batches[0]) == expected


def test_slices_of_a_pipeline_count_once() -> None:
    sliced = (chunk((0, 0, 2, 5)), chunk((0, 2, 5, 5), (1, 0, 3, 3)))
    pipelined = pipeline_plan(2, [Pipeline(2, 0, sliced)])
    whole = sequence_parallel_plan(1, [micro_batch(((0,), {0: 5, 1: 3}))])
    assert utilisation.batch_flops(MODEL, pipelined.batches[0]) == utilisation.batch_flops(
        MODEL, whole.batches[0]
    )


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
        ("NVIDIA H100 NVL", "bfloat16", 835.5),
        ("NVIDIA H200", "bfloat16", 989.4),
        ("NVIDIA H200 NVL", "bfloat16", 835.5),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312.0),
        ("NVIDIA H100 80GB HBM3", "float32", None),
        ("cpu", "bfloat16", None),
    ],
)
def test_peaks_are_those_that_are_published(name: str, precision: str, peak: float | None) -> None:
    assert utilisation.peak_tflop_s(name, precision) == peak


def test_a_setting_has_the_operations_of_its_iterations_and_the_fullest_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(utilisation.PEAK_TFLOP_S, "cpu", 200.0)
    long, short = micro_batch(((0,), {0: 5})), micro_batch(((0,), {1: 3}))
    plan = sequence_parallel_plan(1, [long], [short])
    rows = [
        {"iteration": iteration, "peak_memory_bytes": size}
        for iteration, size in ((1, 70), (2, 90), (3, 80))
    ]
    timed = [
        {"iteration": iteration, "iteration_ms": time_ms}
        for iteration, time_ms in ((1, 2.0), (2, 1.0), (3, 4.0))
    ]
    found, shared = (
        utilisation.used(MODEL, plan, rows, timed, torch.device("cpu"), devices, "bfloat16")
        for devices in (2, 1)
    )
    one, two = (utilisation.batch_flops(MODEL, batch) for batch in plan.batches)
    # Iterations 1 and 3 take the second batch.
    assert found["model_tflop"] == pytest.approx((one + 2 * two) / 3 / 1e12)
    tflop_s = sorted((two / 2, one / 1, two / 4))[1] / 1e9
    assert found["mfu"] == pytest.approx(tflop_s / 200.0 / 2)
    assert shared["mfu"] == pytest.approx(tflop_s / 200.0)
    assert found["peak_memory_bytes"] == 90
    unknown = utilisation.used(MODEL, plan, rows, timed, torch.device("cpu"), 1, "float32")
    assert unknown["mfu"] is None


def test_figures_of_a_setting_are_in_the_order_of_its_table() -> None:
    row = {"iteration": 0, "rank": 0, "tokens": 8, "loss": 1.0, "gradient_norm": 1.0}
    row |= dict.fromkeys((*results._TIMES, *results._COUNTS), 2.0)
    figures = list(results._times(SimpleNamespace(rows=[row])).columns)  # type: ignore[arg-type]
    declared = STAGES["training"].outputs["settings"].declared()  # type: ignore[union-attr]
    assert figures == [name for name in declared if name in figures]
