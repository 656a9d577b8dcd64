"""Settings of the figures: size, resolution and what a reader may want to show
differently.

No plotting library is needed to check them. ``only`` names the topologies, plans,
corpora or runs to show, in that order; an empty list shows all that the figure was
given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, Between, Fraction, NonNegative, NotEmpty, SettingsError

__all__ = [
    "AgreementFigureSettings",
    "AllToAllBandwidthSettings",
    "CanvasSettings",
    "ChannelLoadsSettings",
    "ClaimMapSettings",
    "CollectiveTimeSettings",
    "CorpusLengthsSettings",
    "CostScaleSettings",
    "CostSettings",
    "FigureSettings",
    "LargestJobSettings",
    "LatencyLoadSettings",
    "PipelineScheduleSettings",
    "PriceSensitivitySettings",
    "RailRingsSettings",
    "ReconfigurationSettings",
    "RingAllReduceSettings",
    "SequenceParallelPlanSettings",
    "StepTimeSettings",
    "TopologyMetricsSettings",
    "UtilisationSettings",
]

AxisScale = Literal["linear", "log"]


@dataclass(frozen=True)
class CanvasSettings:
    """What every figure has: its size on paper, the resolution of its PNG and the scale
    of its type.
    """

    width_inches: Annotated[float, Between(3, 30)]
    height_inches: Annotated[float, Between(2, 30)]
    dpi: Annotated[int, Between(50, 600)]
    font_scale: Annotated[float, Between(0.5, 3)]


@dataclass(frozen=True)
class RailRingsSettings(CanvasSettings):
    """Rail rings of one line of nodes; ``max_rails`` rails are drawn one by one, all of
    them together in the overview.
    """

    figure: Literal["rail_rings"]
    only: tuple[str, ...]
    dimension: Literal["x", "y"]
    line: Annotated[int, NonNegative()]
    max_rails: Annotated[int, Between(1, 8)]


@dataclass(frozen=True)
class AllToAllBandwidthSettings(CanvasSettings):
    """All-to-all bandwidth by topology for one traffic pattern."""

    figure: Literal["all_to_all_bandwidth"]
    only: tuple[str, ...]
    traffic: Annotated[str, NotEmpty()]
    scale: AxisScale


@dataclass(frozen=True)
class TopologyMetricsSettings(CanvasSettings):
    """Hops between nodes and bisection, one row a topology."""

    figure: Literal["topology_metrics"]
    only: tuple[str, ...]


@dataclass(frozen=True)
class CostSettings(CanvasSettings):
    """Bill of materials and cost relative to ``reference``.

    ``compare`` names what is compared (injection, all_to_all: cost per bandwidth;
    power) with the share of the reference that the paper stays below, null where it
    states none.
    """

    figure: Literal["cost"]
    only: tuple[str, ...]
    reference: Annotated[str, NotEmpty()]
    compare: Annotated[dict[str, Annotated[float, Fraction()] | None], NotEmpty()]

    def __post_init__(self) -> None:
        for key in self.compare:
            if key not in ("injection", "all_to_all", "power"):
                raise SettingsError(
                    f"compare.{key}", "unknown key; allowed: injection, all_to_all, power"
                )


@dataclass(frozen=True)
class PriceSensitivitySettings(CanvasSettings):
    """Cost per bandwidth relative to ``reference`` over a grid of price ratios;
    ``all_to_all`` picks the bandwidth of the rows.
    """

    figure: Literal["price_sensitivity"]
    reference: Annotated[str, NotEmpty()]
    all_to_all: Annotated[str, NotEmpty()]
    published_per_injection: Annotated[float, Fraction()]
    published_per_all_to_all: Annotated[float, Fraction()]


@dataclass(frozen=True)
class CostScaleSettings(CanvasSettings):
    """Cost per bandwidth and power over the number of chips, one line a topology, under
    one price set.
    """

    figure: Literal["cost_scale"]
    only: tuple[str, ...]
    price_set: Annotated[str, NotEmpty()]


@dataclass(frozen=True)
class ClaimMapSettings(CanvasSettings):
    """Where the cost claims hold over price ratios; the two dicts name further
    boundaries by factor and levels of the table.
    """

    figure: Literal["claim_map"]
    injection_lines: dict[str, tuple[float, ...]]
    all_to_all_lines: dict[str, tuple[float, ...]]


@dataclass(frozen=True)
class SequenceParallelPlanSettings(CanvasSettings):
    """One iteration of sequence-parallel plans, one above the other on the same time
    axis.
    """

    figure: Literal["sequence_parallel_plan"]
    only: tuple[str, ...]
    iteration: Annotated[int, NonNegative()]
    label_blocks: bool


@dataclass(frozen=True)
class PipelineScheduleSettings(CanvasSettings):
    """Gantt chart of one iteration of a pipeline plan."""

    figure: Literal["pipeline_schedule"]
    only: tuple[str, ...]
    iteration: Annotated[int, NonNegative()]
    label_blocks: bool


@dataclass(frozen=True)
class ReconfigurationSettings(CanvasSettings):
    """Iteration time against reconfiguration latency; the band spans the two quantiles
    over the timed iterations.
    """

    figure: Literal["reconfiguration"]
    only: tuple[str, ...]
    lower_quantile: Annotated[float, Between(0, 0.5)]
    upper_quantile: Annotated[float, Between(0.5, 1)]
    show_iterations: bool


@dataclass(frozen=True)
class CorpusLengthsSettings(CanvasSettings):
    """Survival function of sequence lengths."""

    figure: Literal["corpus_lengths"]
    only: tuple[str, ...]
    points: Annotated[int, Between(20, 5000)]
    quantiles: tuple[Annotated[float, Between(0, 1)], ...]

    def __post_init__(self) -> None:
        if list(self.quantiles) != sorted(set(self.quantiles)):
            raise SettingsError(
                "quantiles",
                f"got {list(self.quantiles)}; allowed: distinct numbers in ascending order",
            )


@dataclass(frozen=True)
class ChannelLoadsSettings(CanvasSettings):
    """Channel loads in descending order, one panel a topology."""

    figure: Literal["channel_loads"]
    only: tuple[str, ...]
    columns: Annotated[int, AtLeast(1)]
    scale: AxisScale


@dataclass(frozen=True)
class RingAllReduceSettings(CanvasSettings):
    """Ring all-reduce over the payload, one line a topology; ``scope`` picks the rows
    of the collectives tables (null: all).
    """

    figure: Literal["ring_all_reduce"]
    only: tuple[str, ...]
    scope: str | None


@dataclass(frozen=True)
class CollectiveTimeSettings(CanvasSettings):
    """Bandwidth of every collective over the payload, one panel a topology, lines
    closed form and circles messages on links.

    ``scope`` picks the rows of the collectives tables; ``columns``: panels side by
    side.
    """

    figure: Literal["collective_time"]
    only: tuple[str, ...]
    scope: Annotated[str, NotEmpty()]
    columns: Annotated[int, AtLeast(1)]


@dataclass(frozen=True)
class AgreementFigureSettings(CanvasSettings):
    """Throughput of the flow model against that of the packet simulator, and their
    ratio over the load.
    """

    figure: Literal["agreement"]


@dataclass(frozen=True)
class LargestJobSettings(CanvasSettings):
    """Largest usable job against failed nodes; the band spans the two quantiles over
    the random draws.
    """

    figure: Literal["largest_job"]
    lower_quantile: Annotated[float, Between(0, 0.5)]
    upper_quantile: Annotated[float, Between(0.5, 1)]


@dataclass(frozen=True)
class UtilisationSettings(CanvasSettings):
    """Use of the grid by a stream of jobs under one placement ``policy`` and
    ``offered_load`` (null: the highest of the table).
    """

    figure: Literal["utilisation"]
    policy: Annotated[str, NotEmpty()]
    offered_load: float | None


@dataclass(frozen=True)
class StepTimeSettings(CanvasSettings):
    """Time of a training step by topology and job, stacked by what it is spent on, on
    both bases of comparison.

    Bars longer than ``cut_over_shortest`` times the shortest of their panel are cut
    (null: none is).
    """

    figure: Literal["step_time"]
    only: tuple[str, ...]
    cut_over_shortest: Annotated[float, AtLeast(1)] | None


@dataclass(frozen=True)
class LatencyLoadSettings(CanvasSettings):
    """Latency over the offered load, one line a sweep, and the saturation points
    against the static limits.

    ``panels``: title of a panel to the families it shows; sweeps of families that are
    not named share one more panel. ``max_latency_cycles`` cuts the latency axis (null:
    not).
    """

    figure: Literal["latency_load"]
    only: tuple[str, ...]
    panels: dict[str, tuple[str, ...]]
    max_latency_cycles: Annotated[float, AtLeast(10)] | None


FigureSettings = (
    RailRingsSettings
    | TopologyMetricsSettings
    | AllToAllBandwidthSettings
    | CostSettings
    | PriceSensitivitySettings
    | CostScaleSettings
    | ClaimMapSettings
    | SequenceParallelPlanSettings
    | PipelineScheduleSettings
    | ReconfigurationSettings
    | CorpusLengthsSettings
    | ChannelLoadsSettings
    | RingAllReduceSettings
    | CollectiveTimeSettings
    | AgreementFigureSettings
    | LargestJobSettings
    | UtilisationSettings
    | LatencyLoadSettings
    | StepTimeSettings
)
