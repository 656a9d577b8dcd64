"""Sixty tiny pipelines whose optimum is known, and the search that proves it.

    python -m tests.planning.pipeline_optima        writes pipeline_optima.csv again

An instance has three to five sequences of a few tokens, so that every cut can be tried:
each sequence in up to two slices, whole sequences and last slices packed in every
way, at most one last slice to a chunk, any chunks recomputed on all stages, and every
order of passes that memory allows. Memory is ample, short without recomputation, or
short with it.
"""

from __future__ import annotations

import csv
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from railx.performance.pipeline_cost import PassTime, PipelineCost, PipelineShape
from railx.planning.pipeline.infinipipe import PipelineSettings, plan_pipeline_batch
from railx.workload.batches import SampledBatch
from tests.planning.exact_orders import exact_makespan_ms

__all__ = [
    "MOST_SLICES",
    "Instance",
    "instances",
    "optima_ms",
    "optimum_ms",
    "planned_ms",
    "settings_of",
]

COUNT = 60
MOST_SLICES = 2
STORED = Path(__file__).with_name("pipeline_optima.csv")
_KINDS: tuple[Literal["ample", "none", "adaptive"], ...] = ("ample", "none", "adaptive")
#: A slice: sequence, start, stop.
_Piece = tuple[int, int, int]
#: Chunks of a run: forward and backward time in ms, bytes on each stage.
_TimedRun = tuple[tuple[float, float, tuple[float, ...]], ...]


@dataclass(frozen=True)
class Instance:
    """Lengths in tokens, costs, and whether layers may be recomputed."""

    index: int
    lengths: tuple[int, ...]
    cost: PipelineCost
    kind: Literal["ample", "none", "adaptive"]


def instances() -> Iterator[Instance]:
    """The instances; a third of each kind of memory."""
    for index in range(COUNT):
        rng = random.Random(f"pipelines {index}")
        kind = _KINDS[index % 3]
        stages = rng.choice((2, 3)) if kind == "ample" else 2
        count = rng.choice((3, 4)) if stages == 3 or kind == "adaptive" else rng.choice((3, 4, 5))
        cut = rng.choice((1, 2)) if kind == "adaptive" else 2
        lengths = sorted((rng.randint(2, 6) for _ in range(cut)), reverse=True)
        lengths += [1] * (count - cut)
        tokens = rng.uniform(0.35, 0.8) * sum(lengths) if kind != "ample" else 1e9
        # The longest sequence fits alone, each stage holding all its slices.
        tokens = max(tokens, 1.25 * lengths[0] + 1)
        quadratic, constant = rng.choice((0.02, 0.1, 0.3)), rng.choice((0.5, 1.0, 2.0))
        back = rng.choice((1.5, 2.0, 2.5))
        cost = PipelineCost(
            PipelineShape(stages, 1),
            PassTime(quadratic, 1.0, constant),
            PassTime(back * quadratic, back, back * constant),
            PassTime(0.0, 0.0),
            (1,) * stages,
            tuple(tokens * 10.0 for _ in range(stages)),
            layer_bytes=10.0,
            input_bytes=1.0,
            key_value_bytes=2.0,
        )
        yield Instance(index, tuple(lengths), cost, kind)


def optimum_ms(instance: Instance, known_ms: float = 1e18) -> float:
    """The least time of all chunks, recomputations and orders below ``known_ms``."""
    cost, best = instance.cost, known_ms
    stages = cost.shape.stages
    candidates: dict[tuple[_TimedRun, ...], float] = {}
    again = (0, 1) if instance.kind == "adaptive" else (0,)
    for runs in _chunkings(instance.lengths):
        options = [
            [_timed(run, layers, instance) for layers in itertools.product(again, repeat=len(run))]
            for run in runs
        ]
        for timed in itertools.product(*options):
            # Slices of a sequence are alive together.
            if any(
                sum(chunk[2][stage] for chunk in run) > cost.capacities[stage]
                for run in timed
                for stage in range(stages)
            ):
                continue
            work_ms = sum(chunk[0] + chunk[1] for run in timed for chunk in run)
            ends_ms = min(run[0][0] for run in timed) + min(run[0][1] for run in timed)
            candidates[tuple(sorted(timed))] = work_ms + (stages - 1) * ends_ms
    for timed, bound_ms in sorted(candidates.items(), key=lambda item: item[1]):
        if bound_ms >= best - 1e-9:
            break
        forward, backward, sizes = zip(*itertools.chain(*timed), strict=True)
        table = list(zip(*sizes, strict=True))
        lengths = [len(run) for run in timed]
        best = exact_makespan_ms(lengths, stages, forward, backward, cost.capacities, best, table)
    return best


def _timed(run: list[list[_Piece]], recomputed: Sequence[int], instance: Instance) -> _TimedRun:
    """Forward and backward time and bytes by stage of each chunk of a run."""
    cost, chunks = instance.cost, []
    for chunk, layers in zip(run, recomputed, strict=True):
        time = cost.chunk_time_ms([(start, stop - start) for _, start, stop in chunk])
        tokens = sum(stop - start for _, start, stop in chunk)
        split = len(chunk) == 1 and tokens < instance.lengths[chunk[0][0]]
        sizes = tuple(
            float(cost.activation_bytes(tokens, split, stage, layers))
            for stage in range(cost.shape.stages)
        )
        again_ms = layers * cost.layer_forward_ms(time.forward_ms)
        chunks.append((time.forward_ms, time.backward_ms + again_ms, sizes))
    return tuple(chunks)


def _chunkings(lengths: Sequence[int]) -> Iterator[list[list[list[_Piece]]]]:
    """Every way to cut and pack: runs of chunks of slices."""
    cuts = [list(_cuts(sequence, length)) for sequence, length in enumerate(lengths)]
    for chosen in itertools.product(*cuts):
        heads = [pieces[:-1] for pieces in chosen]
        for bins in _packings([pieces[-1] for pieces in chosen]):
            runs = []
            for members in bins:
                tails = [piece for piece in members if piece[1] > 0]
                if len(tails) > 1:
                    break
                before = heads[tails[0][0]] if tails else []
                runs.append(
                    [*([piece] for piece in before), [*tails, *(set(members) - set(tails))]]
                )
            else:
                yield runs


def _cuts(sequence: int, length: int) -> Iterator[list[_Piece]]:
    for count in range(min(MOST_SLICES, length)):
        for inner in itertools.combinations(range(1, length), count):
            yield [(sequence, *pair) for pair in itertools.pairwise((0, *inner, length))]


def _packings(pieces: Sequence[_Piece]) -> Iterator[list[list[_Piece]]]:
    """Every partition of the pieces."""
    if not pieces:
        yield []
        return
    first, *rest = pieces
    for bins in _packings(rest):
        yield [[first], *bins]
        for index in range(len(bins)):
            yield [*bins[:index], [first, *bins[index]], *bins[index + 1 :]]


def optima_ms() -> dict[int, float]:
    """The stored optima by instance."""
    with STORED.open(newline="", encoding="utf-8") as file:
        return {int(row["instance"]): float(row["optimum_ms"]) for row in csv.DictReader(file)}


def _store() -> None:
    with STORED.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("instance", "lengths", "kind", "optimum_ms"))
        for instance in instances():
            lengths = " ".join(map(str, instance.lengths))
            optimum = optimum_ms(instance, _planned_ms(instance))
            table.writerow((instance.index, lengths, instance.kind, f"{optimum:.9f}"))
            file.flush()


def settings_of(instance: Instance, **changes: Any) -> PipelineSettings:
    """The planner's settings for an instance, its defaults but for the shape."""
    return PipelineSettings(
        "pipeline",
        instance.cost.shape.stages,
        1,
        most_slices=MOST_SLICES,
        alignment_tokens=1,
        checkpointing="none" if instance.kind == "none" else "adaptive",
        **changes,
    )


def planned_ms(instance: Instance, settings: PipelineSettings) -> float:
    """The time of a plan that fits memory and has every token once."""
    lengths = np.array(instance.lengths)
    batch = SampledBatch(np.arange(len(lengths)), lengths)
    return plan_pipeline_batch(0, batch, settings, instance.cost).predicted_ms


def _planned_ms(instance: Instance) -> float:
    """A time to begin with: the plan's, a hair above.

    Plans may recompute other layers on each stage, unlike the search: 10 % above.
    """
    above = 1.1 if instance.kind == "adaptive" else 1 + 1e-9
    return planned_ms(instance, settings_of(instance)) * above


if __name__ == "__main__":
    _store()
