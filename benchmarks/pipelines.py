"""How even the chunks of elastic pipelines are, how good their checkpoints, how fast.

Plans batches of 512 sequences of both corpora of InfiniPipe's kind at its contexts, for
its cluster and FlexSP's constants. For each batch: the longest over the mean chunk
time, what the counts of recomputed layers are against the bound of the relaxation and
against the paper's integer programme, processor seconds of the plan, and what of the
iteration that it predicts they are: less than all of it hides behind the training of
the batch before. Then the paper's ablations beside it, and chunks of any planner that
is compared with this one. Nothing here is published; the batches are synthetic. In
November 2026, geometric means of five draws: the longest over the mean chunk and
processor seconds (the most), ours in ms, and over it the paper's packing, even chunks,
no checkpoints, full checkpoints and the best chunks:

    commoncrawl_like_48k   1.05  0.07  17,220  1.098  1.098  1.000  1.341  0.996
    commoncrawl_like_96k   1.17  0.06  20,723  1.077  1.099  1.015  1.291  0.997
    commoncrawl_like_192k  1.20  0.08  26,629  1.072  1.134  1.004  1.239  0.999
    github_like_48k        1.03  0.07  20,993  1.102  1.101  1.000  1.341  0.998
    github_like_96k        1.19  0.07  25,232  1.066  1.071  1.035  1.283  0.996
    github_like_192k       1.18  0.08  31,750  1.068  1.130  0.999  1.231  0.994

``baselines`` sets the planners of pipelines beside ours in InfiniPipe's experiments'
own setting: FlexSP's constants as if nothing were recomputed, traffic of ZeRO-3 apart.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from batches import SEED, lengths_of
from shared import record

from railx.performance.cluster import ClusterSettings
from railx.performance.decoder import ModelSettings
from railx.performance.pipeline_cost import PipelineCost, PipelineShape, build_pipeline_cost
from railx.performance.sequence_cost import CostModelSettings, build_cost_model
from railx.planning.format.parts import PlanError
from railx.planning.format.plan import PipelineBatch
from railx.planning.pipeline import checkpoints
from railx.planning.pipeline.checkpoint_problem import CheckpointProblem
from railx.planning.pipeline.infinipipe import PipelineSettings, plan_pipeline_batch
from railx.planning.planner import PlanningTask
from railx.planning.planners import PlannerSettings, planner_of
from railx.settings import load
from railx.workload.batches import FilledBatchSettings, SampledBatch, sample_batches
from workflow.config import read_choice

CORPORA = ("commoncrawl_like", "github_like")
CONTEXTS = (48_000, 96_000, 192_000)
DRAWS = 5
#: Memory of a device: the cluster's, and less, where many layers are recomputed.
MEMORY_GIB = 60.0
SHORT_GIB = (30.0, 40.0)
SHAPE = PipelineShape(stages=4, degree=8)
#: Changes of the planner's settings, and the words for them.
VARIANTS: dict[str, dict[str, Any]] = {
    "InfiniPipe's": {},
    "paper's packing": {"chunking": "published", "most_over_mean": None},
    "even chunks": {"chunking": "even", "most_over_mean": None},
    "no checkpoints": {"checkpointing": "none"},
    "full checkpoints": {"checkpointing": "full"},
    "best chunks": {"chunking": "best"},
    "searched": {"chunking": "searched", "schedule": "best_trained"},
}


#: Planners of pipelines and changes of their settings, ours first.
BASELINES: dict[str, tuple[str, dict[str, Any]]] = {
    "ours": ("pipeline_4x8", {}),
    "InfiniPipe's": ("pipeline_4x8_infinipipe", {}),
    "best chunks": ("pipeline_4x8_infinipipe", {"chunking": "best"}),
    "equal lengths": ("pipeline_4x8_even", {}),
    "best chunks and schedule": (
        "pipeline_4x8_infinipipe",
        {"chunking": "best", "schedule": "best"},
    ),
    "Seq1F1B, fixed": ("seq1f1b_4x8", {}),
    "even": ("seq1f1b_4x8", {"splitting": "even"}),
    "equal work": ("seq1f1b_4x8", {"splitting": "equal_work"}),
    "DAPPLE": ("dapple_4x8", {}),
    "ChunkFlow": ("chunk_flow_4x8", {}),
    "SlimPipe, no exchange": ("slim_pipe_4x8", {"context_exchange": False}),
    "DynaPipe": ("dyna_pipe_4x8", {}),
}


@dataclass(frozen=True)
class Case:
    """One batch with its cost model."""

    corpus: str
    context: int
    draw: int
    batch: SampledBatch
    cost: PipelineCost

    @property
    def name(self) -> str:
        return f"{self.corpus}_{self.context // 1000}k_{self.draw}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "table", nargs="?", default="chunks", choices=["chunks", "checkpoints", "baselines"]
    )
    parser.add_argument("--model", default="7b", choices=["7b", "13b", "30b"])
    parser.add_argument("--draws", type=int, default=DRAWS)
    given = parser.parse_args()
    settings: Any = load(
        PipelineSettings, read_choice("planner", "pipeline_4x8_infinipipe"), "planner"
    )
    # Compiled code and the solver are loaded before anything is timed.
    first = next(cases("7b", SHORT_GIB[0], 1))
    plan_pipeline_batch(0, first.batch, settings, first.cost)
    if given.table == "baselines":
        _print_baselines(given.model, given.draws)
    elif given.table == "chunks":
        _print_chunks(given.model, given.draws, settings)
    else:
        _print_checkpoints(given.model, given.draws, settings)


def _print_chunks(model: str, draws: int, settings: PipelineSettings) -> None:
    heads = ["batch", "longest over mean", "slices", "chunks", "pipelines", "CPU s"]
    heads += ["of the iteration"]
    print(f"| {' | '.join([*heads, *VARIANTS])} |")
    print("|" + "---|" * (len(heads) + len(VARIANTS)))
    worst, slowest, largest = 0.0, 0.0, 0.0
    for case in cases(model, MEMORY_GIB, draws):
        before = time.process_time()
        planned = plan_pipeline_batch(0, case.batch, settings, case.cost)
        busy = time.process_time() - before
        even = planned.solver["longest_over_mean"][0]
        cells = [
            case.name,
            f"{even:.3f}",
            str(planned.solver["slices_of_the_longest"][0]),
            str(sum(len(one.chunks) for one in planned.pipelines)),
            str(len(planned.pipelines)),
            f"{busy:.2f}",
            f"{busy / planned.predicted_ms * 1e3:.2%}",
        ]
        largest = max(largest, busy / planned.predicted_ms * 1e3)
        cells += [
            _time_of(case, replace(settings, **changes), planned.predicted_ms)
            for changes in VARIANTS.values()
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
        record(f"{case.name}, predicted", planned.predicted_ms, "ms", clock="none")
        worst, slowest = max(worst, even), max(slowest, busy)
    record("longest over mean", worst, "", clock="none")
    record("slowest plan", slowest, "s", clock="processor")
    print(
        f"\n* longest over mean at most {worst:.3f}, a plan at most {slowest:.2f} s and"
        f" {largest:.2%} of the iteration"
    )


def _print_baselines(model: str, draws: int) -> None:
    """Predicted time over that of balanced chunks, and processor seconds."""
    print(f"| batch | {' | '.join(BASELINES)} |")
    print("|" + "---|" * (1 + len(BASELINES)))
    constants: Any = load(
        CostModelSettings, read_choice("cost_model", f"flexsp_{model}_kept_zero3"), "cost_model"
    )
    cluster: ClusterSettings = load(ClusterSettings, read_choice("cluster", "a800_32"), "cluster")
    chosen: ModelSettings = load(ModelSettings, read_choice("model", f"gpt_{model}"), "model")
    for corpus in CORPORA:
        for context in CONTEXTS:
            cost = build_cost_model(
                constants, replace(cluster, tokens_per_device=1), chosen, context
            )
            filled = FilledBatchSettings(512, draws, context, "truncate")
            for draw, batch in enumerate(sample_batches(lengths_of(corpus), filled, SEED)):
                task = PlanningTask(cost, context, cluster, chosen, constants, (batch,), SEED)
                cells, first = [], 0.0
                for name, changes in BASELINES.values():
                    own: Any = load(PlannerSettings, read_choice("planner", name), "planner")
                    own = replace(own, **changes)
                    before = time.process_time()
                    try:
                        total = sum(one.predicted_ms for one in planner_of(own).plan(own, task))
                    except ValueError:
                        cells.append("-")
                        continue
                    busy, first = time.process_time() - before, first or total
                    case = f"{corpus}_{context // 1000}k_{draw}, {name}"
                    record(f"{case}, predicted", total, "ms", clock="none")
                    record(f"{case}, plan", busy, "s", clock="processor")
                    cells.append(f"{total / 1e3:.2f} ({total / first:.3f}), {busy:.2f} s")
                where = f"{corpus}_{context // 1000}k_{draw}"
                print(f"| {where} | {' | '.join(cells)} |", flush=True)


def _print_checkpoints(model: str, draws: int, settings: PipelineSettings) -> None:
    heads = ["batch, memory", "chunks", "counts", "bound", "programme", "s", "programme's s"]
    print(f"| {' | '.join(heads)} |")
    print("|" + "---|" * len(heads))
    equal = near = number = 0
    for memory_gib in SHORT_GIB:
        for case in cases(model, memory_gib, draws):
            planned = plan_pipeline_batch(0, case.batch, settings, case.cost)
            problems = [
                checkpoints.problem_of_pipeline(one, case.cost) for one in planned.pipelines
            ]
            bound = sum(map(checkpoints.lp_bound, problems))
            if bound == 0:
                continue
            fast, fast_s = _solved(checkpoints.fast, problems)
            exact, exact_s = _solved(_programme, problems)
            cells = [
                f"{case.name}, {memory_gib:.0f} GiB",
                " + ".join(str(problem.chunks) for problem in problems),
                str(fast),
                f"{bound:.1f} ({fast / bound - 1:+.1%})",
                f"{exact} ({exact / bound - 1:+.1%})",
                f"{fast_s:.3f}",
                f"{exact_s:.2f}",
            ]
            print(f"| {' | '.join(cells)} |", flush=True)
            number += 1
            equal += fast == exact
            near += fast <= 1.02 * bound
    record("batches as few as the programme", equal, "batches", better="more", clock="none")
    record("batches within 2 % of the bound", near, "batches", better="more", clock="none")
    print(f"\n* as few as the programme: {equal} of {number}; within 2 % of the bound: {near}")


def _programme(problem: CheckpointProblem) -> Any:
    solution = checkpoints.exact(problem)
    return None if solution is None else solution.counts


def _solved(solve: Any, problems: list[CheckpointProblem]) -> tuple[int, float]:
    """Σ C of all problems and processor seconds."""
    before = time.process_time()
    found = [solve(problem) for problem in problems]
    return sum(int(one.sum()) for one in found), time.process_time() - before


def cases(model: str, memory_gib: float, draws: int) -> Iterator[Case]:
    """The batches, corpus by corpus, contexts rising; longer sequences are cut off."""
    for corpus in CORPORA:
        for context in CONTEXTS:
            drawn = sample_batches(
                lengths_of(corpus), FilledBatchSettings(512, draws, context, "truncate"), SEED
            )
            for draw, batch in enumerate(drawn):
                yield Case(corpus, context, draw, batch, cost_of(model, context, memory_gib))


@cache
def cost_of(model: str, context: int, memory_gib: float) -> PipelineCost:
    """FlexSP's constants on InfiniPipe's cluster."""
    cluster: ClusterSettings = load(ClusterSettings, read_choice("cluster", "a800_32"), "cluster")
    return build_pipeline_cost(
        load(CostModelSettings, read_choice("cost_model", f"flexsp_{model}"), "cost_model"),
        replace(cluster, memory_gib=memory_gib),
        load(ModelSettings, read_choice("model", f"gpt_{model}"), "model"),
        context,
        SHAPE,
    )


def _time_of(case: Case, settings: PipelineSettings, ours_ms: float) -> str:
    try:
        planned: PipelineBatch = plan_pipeline_batch(0, case.batch, settings, case.cost)
    except PlanError:
        return "-"
    return f"{planned.predicted_ms:.0f} ({planned.predicted_ms / ours_ms:.3f})"


if __name__ == "__main__":
    main()
