"""Settings of the planners and of the batches that they plan. Standard library alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, Fraction, NonNegative, Positive, PowerOfTwo, SettingsError

__all__ = ["FlexSPSettings", "PipelineSettings", "PlannerSettings", "StaticSettings"]


@dataclass(frozen=True)
class StaticSettings:
    """One degree of sequence parallelism for all groups, best-fit-decreasing packing
    (the baselines of FlexSP).

    ``choice``: "longest_context" takes the smallest degree that holds
    ``max_length_tokens`` (DeepSpeed's way), "per_batch" the best degree of each batch
    by predicted time (FlexSP-BatchAda), "fixed" the given ``degree`` (null otherwise).
    Bins are filled to ``fill`` of what memory holds.
    """

    planner: Literal["static"]
    choice: Literal["longest_context", "per_batch", "fixed"]
    degree: Annotated[int, PowerOfTwo()] | None
    fill: Annotated[float, Fraction()]

    def __post_init__(self) -> None:
        if (self.choice == "fixed") != (self.degree is not None):
            allowed = "a power of two" if self.choice == "fixed" else "null"
            raise SettingsError(
                "degree", f"got {self.degree}; allowed: {allowed} with choice {self.choice}"
            )


@dataclass(frozen=True)
class FlexSPSettings:
    """Groups of different degrees, different in each micro-batch (FlexSP).

    ``smallest_degree``: the least degree of a group (the public code leaves out 1, the
    paper's case study uses it). ``order``: cut the batch into micro-batches after
    sorting by length, or as it comes. ``micro_batch_trials``: numbers of micro-batches
    to try. ``bucketing``: buckets of least rounding error, or of equal width;
    ``buckets`` of them at first. The search over mixes of degrees stops within
    ``relative_gap`` of a lower bound; where it does not get there, the solver takes
    over for programmes of at most ``largest_programme`` counts (0: never), and stops at
    ``relative_gap`` or ``node_limit``. All of these are deterministic; ``time_guard_s``
    for one micro-batch is there for pathological cases, and the plan records where it
    struck. ``static_fill``: see :class:`StaticSettings`; homogeneous plans are
    candidates too.
    """

    planner: Literal["flexsp"]
    smallest_degree: Literal[1, 2]
    order: Literal["sorted", "given"]
    micro_batch_trials: Annotated[int, AtLeast(1)]
    bucketing: Literal["least_error", "equal_width"]
    buckets: Annotated[int, AtLeast(1)]
    relative_gap: Annotated[float, NonNegative()]
    largest_programme: Annotated[int, NonNegative()]
    node_limit: Annotated[int, AtLeast(0)]
    time_guard_s: Annotated[float, Positive()]
    static_fill: Annotated[float, Fraction()]


@dataclass(frozen=True)
class PipelineSettings:
    """Pipelines of split, packed and mixed chunks (InfiniPipe).

    ``stages`` of ``sequence_parallel_degree`` ranks each make a replica; ``replicas``
    share a batch. The longest sequence is cut into up to ``most_slices`` slices of
    equal time, at multiples of ``alignment_tokens``; the number with the least
    simulated time is taken.
    """

    planner: Literal["pipeline"]
    stages: Annotated[int, AtLeast(1)]
    replicas: Annotated[int, AtLeast(1)]
    sequence_parallel_degree: Annotated[int, PowerOfTwo()]
    most_slices: Annotated[int, AtLeast(1)]
    alignment_tokens: Annotated[int, AtLeast(1)]


PlannerSettings = StaticSettings | FlexSPSettings | PipelineSettings
