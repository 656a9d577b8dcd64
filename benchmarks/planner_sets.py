"""Plans against proven optima: 300 small batches and 60 tiny pipelines; monotony.

    python benchmarks/planner_sets.py

Instances and the searches that prove their optima are in tests/planning
(sequence_optima, pipeline_optima). Monotony: 501 batches of three kinds (nearly equal,
cut off at a context, tight memory) are planned again with shorter sequences, more
memory, more devices and more degrees; the worst ratio and the number above 1 are
printed. A number of batches of each kind may follow the command.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Literal

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from batches import cost_of, lengths_of
from rows import record

from railx.performance.sequence_cost import CostModel
from railx.planning.sequence.flexsp import FlexSPSettings, plan_flexsp_batch
from railx.workload.batches import SampledBatch
from tests.planning import pipeline_optima, sequence_optima

#: Batches of each kind for monotony, and their sequences and devices.
BATCHES, SEQUENCES, DEVICES = 167, 128, 16
CONTEXT = 32_000


def main() -> None:
    _sequences()
    _pipelines()
    batches = int(sys.argv[1]) if len(sys.argv) > 1 else BATCHES
    for kind in ("nearly equal", "truncated", "tight memory"):
        _monotony(kind, batches)


def _report(name: str, ratios: list[float], seconds: float) -> None:
    optimal = sum(ratio <= 1 + 1e-6 for ratio in ratios)
    print(
        f"{name}: {optimal} of {len(ratios)} optimal, mean {mean(ratios) - 1:+.2%}, worst"
        f" {max(ratios) - 1:+.2%}, {seconds:.1f} CPU s",
        flush=True,
    )
    record(f"{name}, mean over optimum", mean(ratios), "", clock="none")
    record(f"{name}, worst over optimum", max(ratios), "", clock="none")


def _sequences() -> None:
    stored = sequence_optima.optima_ms()
    instances = list(sequence_optima.instances())
    for name, part in (("13 to 16 sequences", instances[:150]), ("17 to 20", instances[150:])):
        begin = time.process_time()
        ratios = [
            _planned_ms(np.array(one.lengths), one.devices, one.cost) / stored[one.index]
            for one in part
        ]
        _report(name, ratios, time.process_time() - begin)


def _pipelines() -> None:
    stored, begin = pipeline_optima.optima_ms(), time.process_time()
    ratios = [
        pipeline_optima.planned_ms(one, pipeline_optima.settings_of(one)) / stored[one.index]
        for one in pipeline_optima.instances()
    ]
    _report("tiny pipelines", ratios, time.process_time() - begin)


def _planned_ms(
    lengths: np.ndarray, devices: int, cost: CostModel, smallest: Literal[1, 2] = 1
) -> float:
    batch = SampledBatch(np.arange(len(lengths)), lengths)
    settings = FlexSPSettings("flexsp", smallest_degree=smallest)
    return plan_flexsp_batch(0, batch, settings, devices, cost).predicted_ms


def _drawn(kind: str, batches: int = BATCHES) -> Iterator[tuple[np.ndarray, CostModel]]:
    """Batches of a kind and their costs."""
    corpus = lengths_of("github_like")
    for index in range(batches):
        rng = np.random.default_rng(index)
        cost = replace(cost_of(CONTEXT), tokens_per_device=int(rng.integers(4000, 7000)))
        if kind == "nearly equal":
            longest = int(rng.integers(1000, 6000))
            lengths = longest - rng.integers(0, longest // 50, SEQUENCES)
        else:
            most = CONTEXT if kind == "truncated" else 8000
            lengths = np.minimum(rng.choice(corpus, SEQUENCES), most)
        if kind == "tight memory":
            share = float(rng.uniform(0.97, 0.995))
            micro_batches = int(rng.integers(1, 4))
            needed = lengths.sum() / (share * DEVICES * micro_batches)
            cost = replace(
                cost, tokens_per_device=max(int(needed), int(lengths.max()) // DEVICES + 1)
            )
        yield lengths, cost


def _monotony(kind: str, batches: int) -> None:
    changes: dict[str, Callable[[np.ndarray, CostModel], tuple[np.ndarray, CostModel]]] = {
        "one token less": lambda lengths, cost: (
            lengths - (np.arange(len(lengths)) == lengths.argmax()), cost
        ),
        "a tenth shorter": lambda lengths, cost: (np.maximum(lengths * 9 // 10, 1), cost),
        "more memory": lambda lengths, cost: (
            lengths, replace(cost, tokens_per_device=cost.tokens_per_device * 21 // 20)
        ),
    }  # fmt: skip
    more = ("one device more", "twice the devices", "degree 1 too")
    ratios: dict[str, list[float]] = {name: [] for name in (*changes, *more)}
    for lengths, cost in _drawn(kind, batches):
        before = _planned_ms(lengths, DEVICES, cost)
        for name, change in changes.items():
            other, other_cost = change(lengths, cost)
            ratios[name].append(_planned_ms(other, DEVICES, other_cost) / before)
        ratios[more[0]].append(_planned_ms(lengths, DEVICES + 1, cost) / before)
        ratios[more[1]].append(_planned_ms(lengths, 2 * DEVICES, cost) / before)
        ratios[more[2]].append(before / _planned_ms(lengths, DEVICES, cost, 2))
    for name, those in ratios.items():
        slower = sum(ratio > 1 + 1e-9 for ratio in those)
        print(
            f"{kind}, {name}: worst {max(those):.4f}, slower {slower} of {len(those)}", flush=True
        )
        record(f"{kind}, {name}: worst", max(those), "", clock="none")


if __name__ == "__main__":
    main()
