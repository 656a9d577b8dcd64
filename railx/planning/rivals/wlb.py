"""WLB-LLM's packing: micro-batches of equal work on static context parallelism.

All groups have one degree d (arXiv 2503.17924; details of the packing from the
re-implementation in hao-ai-lab/distca). The work of a document of s tokens is a s² +
b s, the common cost model's computation. Documents, longest first, go into the
micro-batch of least work if that still holds them, else into the one of fewest tokens.
What does not fit there either is set aside, and goes at the end to the micro-batch of
least work. Memory is a limit here: what the emptiest does not hold, none does later.
So there are as many micro-batches as leave nothing aside, the fewest first, each of d
ranks; those of like work run side by side.

* **Shards.** Documents packed into one sequence and cut for the ranks as one (2 d
  chunks, rank i has chunks i and 2d - 1 - i) give ranks unequal attention; cut one by
  one they give them equal attention. WLB-LLM chooses by its kernels' speed, which is
  not published. Predictions take the common cost model, hence equal shares;
  ``per_sequence_ms`` in the solver's account is the time with the other cut.
* **Outliers.** WLB-LLM keeps very long documents in queues until there is one for each
  micro-batch of a step. That changes which sequences a step trains. A plan holds the
  sequences of its own batch, so planning delays nothing; ``delayed`` does it to batches
  before they are planned (benchmarks/rivals.py shows both).
* Predictions have the common cost model's all-to-alls at the same degree in place of
  the ring's exchange.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Literal

import numpy as np

from railx.performance.sequence_cost import CostModel
from railx.planning.format.parts import PlanError
from railx.planning.format.plan import SequenceParallelBatch
from railx.planning.groups import Assignment, Lengths, check_lengths_fit, micro_batch
from railx.planning.planner import Planner, PlannerBase, PlanningTask
from railx.progress import counted
from railx.settings import PowerOfTwo
from railx.workload.batches import SampledBatch

__all__ = ["WLB", "WLBSettings", "delayed", "packed_by_work", "plan_wlb_batch", "shard_imbalance"]


@dataclass(frozen=True)
class WLBSettings(PlannerBase):
    """WLB-LLM's packing by work on static context parallelism."""

    planner: Literal["wlb"]
    """Which planner it is."""

    degree: Annotated[int, PowerOfTwo()] | None = None
    """Ranks of each group; null takes the fewest that hold the longest context."""


def packed_by_work(
    lengths: Lengths, works_ms: Sequence[float], bins: int, capacity: int
) -> list[list[int]] | None:
    """Positions in each of ``bins`` bins; None where a document fits nowhere."""
    members: list[list[int]] = [[] for _ in range(bins)]
    tokens, work = np.zeros(bins, dtype=np.int64), np.zeros(bins)

    def put(index: int, position: int) -> None:
        members[index].append(position)
        tokens[index] += lengths[position]
        work[index] += works_ms[position]

    for position in sorted(
        range(len(lengths)), key=lambda position: (-lengths[position], position)
    ):
        for index in (int(np.argmin(work)), int(np.argmin(tokens))):
            if tokens[index] + lengths[position] <= capacity:
                put(index, position)
                break
        else:
            return None
    return members


def shard_imbalance(lengths: Sequence[int], degree: int) -> float:
    """Attention of the busiest rank over the mean, for documents cut as one sequence.

    Documents of these lengths follow one another; each attends only to itself.
    """
    ends = np.cumsum(lengths)
    edges = np.linspace(0, int(ends[-1]), 2 * degree + 1)
    attention = np.concatenate(([0.0], np.cumsum(np.asarray(lengths, dtype=float) ** 2)))
    document = np.minimum(np.searchsorted(ends, edges, side="right"), len(ends) - 1)
    started = np.concatenate(([0], ends))[document]
    pairs = np.diff(attention[document] + (edges - started) ** 2)
    rank_work = pairs[:degree] + pairs[: degree - 1 : -1]
    return float(rank_work.max() / rank_work.mean())


def delayed(
    batches: Iterable[SampledBatch], outlier_tokens: int, at_once: int
) -> list[SampledBatch]:
    """The batches with outliers delayed.

    Documents over ``outlier_tokens`` wait, first in first out, and enter a batch
    ``at_once`` at a time. Those waiting at the end are in the last batch.
    """
    drawn = list(batches)
    queue: list[tuple[int, int]] = []
    delayed_batches = []
    for number, batch in enumerate(drawn):
        rows = list(zip(batch.sequences.tolist(), batch.lengths.tolist(), strict=True))
        leaving_rows = [row for row in rows if row[1] <= outlier_tokens]
        queue += [row for row in rows if row[1] > outlier_tokens]
        is_last = number == len(drawn) - 1
        leaving = len(queue) if is_last else len(queue) // at_once * at_once
        leaving_rows += queue[:leaving]
        queue = queue[leaving:]
        sequences, lengths = zip(*leaving_rows, strict=True) if leaving_rows else ((), ())
        delayed_batches.append(
            SampledBatch(np.array(sequences, dtype=np.int64), np.array(lengths, np.int64))
        )
    return delayed_batches


def plan_wlb_batch(
    iteration: int, batch: SampledBatch, degree: int, devices: int, cost: CostModel
) -> SequenceParallelBatch:
    """Plan one batch with groups of one degree; PlanError names a sequence without a
    group.
    """
    lengths, capacity = batch.lengths, cost.tokens_per_device * degree
    check_lengths_fit(batch.sequences, lengths, capacity, f"a group of degree {degree}")
    works_ms = cost.sequence_ms(lengths).tolist()
    groups = devices // degree
    count = ceil(int(lengths.sum()) / (capacity * groups))
    while (bins := packed_by_work(lengths, works_ms, count * groups, capacity)) is None:
        count += 1
    bins.sort(key=lambda members: -sum(works_ms[member] for member in members))
    filled = [tuple(members) for members in bins if members]
    micro_batches, per_sequence_ms = [], 0.0
    for start in range(0, len(filled), groups):
        taken = filled[start : start + groups]
        assignment = Assignment((degree,) * len(taken), tuple(taken))
        micro_batches.append(micro_batch(assignment, batch.sequences, lengths, cost))
        per_sequence_ms += max(
            _per_sequence_ms(lengths[list(members)], degree, cost) for members in taken
        )
    account = {"degree": degree, "per_sequence_ms": per_sequence_ms}
    return SequenceParallelBatch(iteration, tuple(micro_batches), account)


def _per_sequence_ms(lengths: Lengths, degree: int, cost: CostModel) -> float:
    """Time of a group whose documents are cut for its ranks as one sequence."""
    attention = cost.quadratic_ms * float((lengths.astype(float) ** 2).sum()) / degree
    more = shard_imbalance([int(length) for length in lengths], degree) - 1
    return cost.group_time_ms(lengths, degree).total_ms + more * attention


def _plan(settings: WLBSettings, task: PlanningTask) -> tuple[SequenceParallelBatch, ...]:
    cost, longest = task.cost, task.max_length_tokens
    degree = settings.degree or cost.smallest_degree(longest)
    if degree is None:
        raise PlanError(
            f"batch.max_length_tokens: got {longest}; allowed: at most {cost.longest_tokens}, what"
            f" degree {cost.degrees[-1]} holds"
        )
    if degree not in cost.degrees:
        raise PlanError(
            f"planner.degree: got {degree}; allowed: {', '.join(map(str, cost.degrees))}"
        )
    return tuple(
        plan_wlb_batch(index, batch, degree, task.devices, cost)
        for index, batch in enumerate(counted(task.batches, "batches"))
    )


#: The entry of the list of planners.
WLB = Planner("wlb", "sequence_parallel", WLBSettings, _plan)
