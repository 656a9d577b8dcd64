"""All baseline planners on the 45 batches, under one cost model.

Prints predicted seconds of the five batches of each corpus and context together, and
how they compare with the best single degree of each batch (our packing). No paper
compares these planners with one another; the comparison is ours. Where a planner's own
runtime would not wait where a plan does, a second row has its time without the waiting.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from batches import CONTEXTS, CORPORA, cases, delayed
from shared import record

from railx.performance.cluster import ClusterSettings
from railx.performance.decoder import ModelSettings
from railx.performance.sequence_cost import CostModel, CostModelSettings
from railx.planning.format.plan import SequenceParallelBatch
from railx.planning.planner import PlanningTask
from railx.planning.planners import PlannerSettings, planner_of
from railx.settings import load
from railx.workload.batches import SampledBatch
from workflow.config import read_choice

#: Choices of conf/planner and the words for them.
PLANNERS = {
    "static_per_batch": "best degree per batch",
    "static_per_batch_published": "best degree per batch, levelled as published",
    "static": "one degree",
    "static_published": "one degree, chosen and levelled as published",
    "megatron": "Megatron-LM, best shape",
    "megatron_ring": "Megatron-LM, ring",
    "megatron_all_to_all": "Megatron-LM, all-to-all",
    "wlb": "WLB-LLM packing",
    "dynamic_cp_alone": "Megatron dynamic CP, one sequence a pass",
    "dynamic_cp": "Megatron dynamic CP, packed",
    "byte_scale": "ByteScale, balanced",
    "any_degree": "any degree, greedy (after FCP)",
    "flexsp": "ours",
}
REFERENCE = "static_per_batch"
#: WLB-LLM's queue in this comparison: documents over half of the context wait.
OUTLIER_SHARE = 0.5

Key = tuple[str, int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--planners", nargs="*", default=list(PLANNERS), choices=list(PLANNERS))
    chosen = parser.parse_args().planners
    names = list(dict.fromkeys([REFERENCE, *chosen]))
    seconds: dict[str, dict[Key, float]] = defaultdict(lambda: defaultdict(float))
    busy: dict[str, float] = defaultdict(float)
    shapes: set[str] = set()
    for corpus, context, batches, cost in _settings_of_table():
        task = _task(batches, cost, context)
        for name in names:
            before = time.process_time()
            planned = _planned(name, task)
            busy[name] += time.process_time() - before
            for label, each in _times(name, planned):
                seconds[label][corpus, context] += each
            if name.startswith("megatron"):
                one = planned[0].solver
                shape = f"TP{one['tensor']} CP{one['context']} DP{one['data']}, {one['exchange']}"
                shapes.add(f"{PLANNERS[name]} {context // 1000}K: {shape}")
        if "wlb" in names:
            late = _task(_late(batches, context), cost, context)
            label = "WLB-LLM packing, outliers delayed"
            for batch in _planned("wlb", late):
                seconds[label][corpus, context] += batch.predicted_ms / 1e3
    _print(seconds, busy)
    for line in sorted(shapes):
        print(f"* {line}")


def _settings_of_table() -> Iterator[tuple[str, int, tuple[SampledBatch, ...], CostModel]]:
    gathered: dict[Key, list[Any]] = defaultdict(list)
    for case in cases():
        gathered[case.corpus, case.max_length_tokens].append(case)
    for (corpus, context), own in gathered.items():
        yield corpus, context, tuple(case.batch for case in own), own[0].cost


def _task(batches: tuple[SampledBatch, ...], cost: CostModel, context: int) -> PlanningTask:
    return PlanningTask(
        cost,
        context,
        load(ClusterSettings, read_choice("cluster", "a100_64"), "cluster"),
        load(ModelSettings, read_choice("model", "gpt_7b"), "model"),
        load(CostModelSettings, read_choice("cost_model", "flexsp_7b"), "cost_model"),
        batches,
    )


def _planned(name: str, task: PlanningTask) -> tuple[SequenceParallelBatch, ...]:
    settings: Any = load(PlannerSettings, read_choice("planner", name), "planner")
    made: Any = planner_of(settings).plan(settings, task)
    return tuple(made)


def _times(name: str, planned: tuple[SequenceParallelBatch, ...]) -> Iterator[tuple[str, float]]:
    """Seconds under each label that a planner has."""
    words = PLANNERS[name]
    yield words, sum(batch.predicted_ms for batch in planned) / 1e3
    for key, more in (
        ("without_waiting_ms", "not waiting within a schedule"),
        ("per_sequence_ms", "cut as one sequence"),
    ):
        if key in planned[0].solver:
            yield f"{words}, {more}", sum(batch.solver[key] for batch in planned) / 1e3


def _late(batches: tuple[SampledBatch, ...], context: int) -> tuple[SampledBatch, ...]:
    """The batches with WLB-LLM's queue, one outlier for each group at a time."""
    groups = {32_000: 8, 64_000: 4, 192_000: 2}[context]
    return tuple(delayed(batches, int(OUTLIER_SHARE * context), groups))


def _print(seconds: dict[str, dict[Key, float]], busy: dict[str, float]) -> None:
    keys = [(corpus, context) for corpus in CORPORA for context in CONTEXTS]
    heads = [f"{corpus.split('_')[0]} {context // 1000}K" for corpus, context in keys]
    print(f"| predicted s, 5 batches | {' | '.join(heads)} | all | of best degree | plan, CPU s |")
    print("|" + "---|" * (len(keys) + 4))
    base = sum(seconds[PLANNERS[REFERENCE]][key] for key in keys)
    spent = {PLANNERS[name]: value for name, value in busy.items()}
    for label, own in seconds.items():
        whole = sum(own[key] for key in keys)
        cells = " | ".join(f"{own[key]:.1f}" for key in keys)
        took = f"{spent[label]:.1f}" if label in spent else ""
        record(f"{label}, predicted", whole, "s", clock="none")
        if label in spent:
            record(f"{label}, plan", spent[label], "s", clock="processor")
        print(f"| {label} | {cells} | {whole:.1f} | {whole / base:.3f} | {took} |")


if __name__ == "__main__":
    main()
