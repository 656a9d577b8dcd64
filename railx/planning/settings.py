"""Settings of the planners. Standard library alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, Fraction, NonNegative, Positive, PowerOfTwo, SettingsError

__all__ = ["FlexSPSettings", "PipelineSettings", "PlannerSettings", "StaticSettings"]


@dataclass(frozen=True)
class StaticSettings:
    """One degree of sequence parallelism for all groups, best-fit-decreasing packing
    (the baselines of FlexSP).
    """

    planner: Literal["static"]
    """Which planner: one degree for all."""
    choice: Literal["longest_context", "per_batch", "fixed"]
    """How the degree is chosen: ``longest_context`` takes the smallest that holds
    max_length_tokens (DeepSpeed's way), ``per_batch`` the best of each batch by
    predicted time (FlexSP-BatchAda), ``fixed`` the given one.
    """
    degree: Annotated[int, PowerOfTwo()] | None
    """The degree of choice ``fixed``; null with the others."""
    fill: Annotated[float, Fraction()]
    """Bins are filled to this share of what memory holds."""

    def __post_init__(self) -> None:
        if (self.choice == "fixed") != (self.degree is not None):
            allowed = "a power of two" if self.choice == "fixed" else "null"
            raise SettingsError(
                "degree", f"got {self.degree}; allowed: {allowed} with choice {self.choice}"
            )


@dataclass(frozen=True)
class FlexSPSettings:
    """Groups of different degrees, different in each micro-batch (FlexSP).

    The search over mixes of degrees stops within ``relative_gap`` of a lower bound;
    where it does not get there, the solver takes over. All limits but ``time_guard_s``
    are deterministic; the plan records where that one struck. Homogeneous plans are
    candidates too.
    """

    planner: Literal["flexsp"]
    """Which planner: FlexSP's."""
    smallest_degree: Literal[1, 2]
    """Least degree of a group; the public code leaves out 1, the paper's case study
    uses it.
    """
    order: Literal["sorted", "given"]
    """Whether the batch is sorted by length before it is cut into micro-batches, or cut
    as it comes.
    """
    micro_batch_trials: Annotated[int, AtLeast(1)]
    """How many numbers of micro-batches are tried, in rising order; more until one
    works.
    """
    bucketing: Literal["least_error", "equal_width"]
    """How lengths are put into buckets: of least rounding error, or of equal width."""
    buckets: Annotated[int, AtLeast(1)]
    """Buckets of lengths at first."""
    relative_gap: Annotated[float, NonNegative()]
    """Distance to the lower bound, as a share of it, at which search and solver stop.
    """
    largest_programme: Annotated[int, NonNegative()]
    """Most counts of a programme that goes to the solver; 0 sends none."""
    node_limit: Annotated[int, AtLeast(0)]
    """Most branch-and-bound nodes of the solver for one programme."""
    time_guard_s: Annotated[float, Positive()]
    """Time limit of one micro-batch, for pathological cases."""
    static_fill: Annotated[float, Fraction()]
    """Bins of homogeneous candidates are filled to this share of what memory holds."""


@dataclass(frozen=True)
class PipelineSettings:
    """Pipelines of split, packed and mixed chunks (InfiniPipe).

    The longest sequence is cut into slices of equal time; the number with the least
    simulated time is taken.
    """

    planner: Literal["pipeline"]
    """Which planner: elastic pipelines."""
    stages: Annotated[int, AtLeast(1)]
    """Stages of a pipeline."""
    replicas: Annotated[int, AtLeast(1)]
    """Pipelines side by side that share a batch."""
    sequence_parallel_degree: Annotated[int, PowerOfTwo()]
    """Ranks of one stage."""
    most_slices: Annotated[int, AtLeast(1)]
    """Most slices that the longest sequence is cut into."""
    alignment_tokens: Annotated[int, AtLeast(1)]
    """Slices begin at multiples of this."""


PlannerSettings = StaticSettings | FlexSPSettings | PipelineSettings
