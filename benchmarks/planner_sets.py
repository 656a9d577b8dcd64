"""Plans against proven optima: 300 small batches, 60 tiny pipelines; shapes; monotony.

    python benchmarks/planner_sets.py

Instances and the searches that prove their optima are in tests/planning
(sequence_optima, pipeline_optima). The joint planner stands beside groups and every
shape of pipelines, each planned in full. Monotony: 501 batches of three kinds (nearly
equal, cut off at a context, tight memory) are planned again with shorter sequences,
more memory, more devices and more degrees; the worst ratio and the number above 1 are
printed and stored (benchmarks/monotony.csv), so that a killed run goes on where it
stopped. A number of batches of each kind may follow the command.
"""

from __future__ import annotations

import math
import sys
import time
from contextlib import suppress
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from statistics import mean
from typing import Literal

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from batches import CORPORA, SEED, SMALL_DEVICES, lengths_of, small_batches
from shared import read_table, record, write_table

from railx.performance.cluster import ClusterSettings
from railx.performance.decoder import ModelSettings
from railx.performance.sequence_cost import CostModel, CostModelSettings, build_cost_model
from railx.planning.format.parts import PlanError
from railx.planning.joint import JOINT, JointSettings, shapes_of
from railx.planning.pipeline.infinipipe import PIPELINE
from railx.planning.planner import PlanningTask
from railx.planning.planners import PlannerSettings
from railx.planning.sequence.flexsp import FLEXSP, FlexSPSettings, plan_flexsp_batch
from railx.settings import SettingsError, load
from railx.workload.batches import FilledBatchSettings, SampledBatch, sample_batches
from tests.planning import pipeline_optima, sequence_optima
from workflow.config import read_choice

#: Batches of each kind for monotony.
BATCHES = 167
#: Longer by more than this counts as slower.
NOTABLE = 1.002
STORE = Path(__file__).resolve().with_name("monotony.csv")
#: Columns of the stored table before the time and the ratios.
HEAD = ("kind", "batch")


def main() -> None:
    batches = int(sys.argv[1]) if len(sys.argv) > 1 else BATCHES
    _sequences()
    _pipelines()
    _joint()
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


def _joint() -> None:
    """The joint planner beside groups and every shape with its own schedule."""
    chosen: JointSettings = load(PlannerSettings, read_choice("planner", "joint"), "planner")
    constants: CostModelSettings = load(
        CostModelSettings, read_choice("cost_model", "flexsp_7b"), "cost_model"
    )
    model: ModelSettings = load(ModelSettings, read_choice("model", "gpt_7b"), "model")
    ratios, seconds = [], 0.0
    for corpus, context, devices in product(CORPORA, (48_000, 96_000), (16, 32)):
        plain = read_choice("cluster", "a100_64") | {"devices": devices}
        cluster: ClusterSettings = load(ClusterSettings, plain, "cluster")
        filled = FilledBatchSettings(64, 1, context, "truncate")
        drawn = tuple(sample_batches(lengths_of(corpus), filled, SEED))
        cost = build_cost_model(constants, cluster, model, context)
        task = PlanningTask(cost, context, cluster, model, constants, drawn)
        begin = time.process_time()
        planned = JOINT.plan(chosen, task)[0].predicted_ms
        seconds += time.process_time() - begin
        times = {"groups": FLEXSP.plan(chosen.sequence_parallel, task)[0].predicted_ms}
        for shape in shapes_of(task, chosen.most_stages):
            settings = replace(
                chosen.pipeline,
                stages=shape.stages,
                replicas=shape.replicas,
                sequence_parallel_degree=shape.degree,
            )
            with suppress(PlanError, SettingsError):  # no memory beside states, or too little
                times[str(shape)] = PIPELINE.plan(settings, task)[0].predicted_ms
        ratios.append(planned / min(times.values()))
    _report("joint over the best of every shape", ratios, seconds)


def _planned_ms(
    lengths: np.ndarray, devices: int, cost: CostModel, smallest: Literal[1, 2] = 1
) -> float:
    batch = SampledBatch(np.arange(len(lengths)), lengths)
    settings = FlexSPSettings("flexsp", smallest_degree=smallest)
    return plan_flexsp_batch(0, batch, settings, devices, cost).predicted_ms


def _ratios(lengths: np.ndarray, cost: CostModel) -> dict[str, float]:
    """The time of a batch, and how much longer each change makes it, as a ratio."""
    before = _planned_ms(lengths, SMALL_DEVICES, cost)
    one_less = lengths - (np.arange(len(lengths)) == lengths.argmax())
    roomier = replace(cost, tokens_per_device=cost.tokens_per_device * 21 // 20)
    return {
        "before_ms": before,
        "one token less": _planned_ms(one_less, SMALL_DEVICES, cost) / before,
        "a tenth shorter": _planned_ms(np.maximum(lengths * 9 // 10, 1), SMALL_DEVICES, cost)
        / before,
        "more memory": _planned_ms(lengths, SMALL_DEVICES, roomier) / before,
        "one device more": _planned_ms(lengths, SMALL_DEVICES + 1, cost) / before,
        "twice the devices": _planned_ms(lengths, 2 * SMALL_DEVICES, cost) / before,
        "degree 1 too": before / _planned_ms(lengths, SMALL_DEVICES, cost, 2),
    }


def _stored(kind: str) -> dict[int, dict[str, float]]:
    """Rows of a killed run; none where today's planner plans the first otherwise."""
    rows = {
        int(row["batch"]): {name: float(row[name]) for name in row if name not in HEAD}
        for row in read_table(STORE)
        if row["kind"] == kind
    }
    if not rows:
        return {}
    first = min(rows)
    today = _ratios(*next(islice(small_batches(kind, BATCHES), first, None)))
    return rows if all(math.isclose(today[name], rows[first][name]) for name in today) else {}


def _store(kind: str, rows: dict[int, dict[str, float]]) -> None:
    """The table with these rows of a kind in the place of those that it has."""
    others = [row for row in read_table(STORE) if row["kind"] != kind]
    own = [
        dict(zip(HEAD, (kind, index), strict=True)) | {name: repr(x) for name, x in row.items()}
        for index, row in sorted(rows.items())
    ]
    write_table(STORE, list(own[0]), [*others, *own])


def _monotony(kind: str, batches: int) -> None:
    """Print and store the worst ratio of every change over the batches of a kind."""
    rows = _stored(kind)
    for index, (lengths, cost) in enumerate(small_batches(kind, batches)):
        if index not in rows:
            rows[index] = _ratios(lengths, cost)
            _store(kind, rows)
    for name in rows[0]:
        those = [rows[index][name] for index in range(batches)]
        if name != "before_ms":
            slower, notably = (sum(one > most for one in those) for most in (1 + 1e-9, NOTABLE))
            print(
                f"{kind}, {name}: worst {max(those):.5f}, slower {slower} of {len(those)},"
                f" by more than {NOTABLE - 1:.1%} {notably}",
                flush=True,
            )
            record(f"{kind}, {name}: worst", max(those), "", clock="none")


if __name__ == "__main__":
    main()
