"""Which figures there are, what each is drawn from and what it shows; the drawing
modules are imported only when one is drawn.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args, get_type_hints

from railx.figures.settings import CanvasSettings, FigureSettings

__all__ = ["FIGURES", "FigureInput", "FigureKind", "draw_figure"]


@dataclass(frozen=True)
class FigureInput:
    """One kind of file that a figure reads: its key, the files under results/EXPERIMENT
    that fit it, and whether it needs them.
    """

    key: str
    pattern: str
    required: bool = True


@dataclass(frozen=True)
class FigureKind:
    """A figure: its module (with a function ``draw``), title, the words that replace it
    for a reader who cannot see it, its inputs.
    """

    name: str
    title: str
    alternative_text: str
    inputs: tuple[FigureInput, ...]

    @property
    def module(self) -> str:
        """The dotted name of the module that draws it."""
        return f"railx.figures.{self.name}"

    @property
    def settings_type(self) -> type[CanvasSettings]:
        """The settings dataclass whose ``figure`` names this figure."""
        return _SETTINGS[self.name]


_KINDS = (
    FigureKind(
        "rail_rings",
        "Rail rings and optical switch ports",
        "Circles of nodes joined by rail rings, and for each rail the ports of its optical switch"
        " that are joined by circuits.",
        (FigureInput("topology", "topology/{topology}.parquet"),),
    ),
    FigureKind(
        "topology_metrics",
        "Hops and bisection by topology",
        "A row per topology: a line that ends at the diameter with a dot at the mean number of hops"
        " between nodes, and a bar of the bisection bandwidth as a share of the injection"
        " bandwidth.",
        (FigureInput("metrics", "topology/metrics.parquet"),),
    ),
    FigureKind(
        "all_to_all_bandwidth",
        "All-to-all bandwidth by topology",
        "Bars of the all-to-all bandwidth per chip of each topology: the ideal, the bound under the"
        " given routing, and both as a share of the injection bandwidth.",
        (FigureInput("network", "network/{topology}.parquet"),),
    ),
    FigureKind(
        "cost",
        "Cost by topology",
        "Stacked bars of the cost per chip by component, bars of the cost per bandwidth relative to"
        " the reference topology, and dots of the same ratios under several price lists.",
        (
            FigureInput("bill", "economics/bill.parquet"),
            FigureInput("summary", "economics/summary.parquet"),
            FigureInput("sensitivity", "economics/sensitivity.parquet", required=False),
        ),
    ),
    FigureKind(
        "price_sensitivity",
        "For which prices the cost claims hold",
        "Two grids of the cost per bandwidth relative to the fat tree, over the price of an optical"
        " switch port and of an electrical one, both relative to a transceiver; cells in which the"
        " paper's claim holds are outlined.",
        (FigureInput("sensitivity", "economics/sensitivity.parquet"),),
    ),
    FigureKind(
        "cost_scale",
        "Cost and power over the number of chips",
        "Lines of the cost per injection bandwidth, of the cost per all-to-all bandwidth and of the"
        " power per chip over the number of chips, one line a topology, all axes logarithmic.",
        (FigureInput("scale", "economics/scale.parquet"),),
    ),
    FigureKind(
        "claim_map",
        "Where the cost claims hold",
        "Three maps, one a claim: the prices of an optical and of an electrical switch port"
        " relative to a transceiver (for the absolute claim the prices of transceiver and optical"
        " switch port) with the region where the claim holds, its boundary, further boundaries"
        " under other assumptions, and the sourced price lists as dots.",
        (FigureInput("claim_map", "economics/claim_map.parquet"),),
    ),
    FigureKind(
        "sequence_parallel_plan",
        "Sequence-parallel plans",
        "For each plan, blocks of devices over predicted time, one block a sequence-parallel group,"
        " darker for a higher degree.",
        (FigureInput("plan", "plans/{plan}.json"),),
    ),
    FigureKind(
        "pipeline_schedule",
        "Pipeline schedule",
        "Gantt chart: one row a pipeline stage, one block a forward or backward pass of a chunk"
        " over predicted time.",
        (
            FigureInput("schedule", "plans/{plan}.schedule.parquet"),
            FigureInput("plan_table", "plans/{plan}.parquet", required=False),
        ),
    ),
    FigureKind(
        "reconfiguration",
        "Iteration time against reconfiguration latency",
        "Lines of the iteration time and of the share of it spent waiting for light paths over the"
        " reconfiguration latency, one line a fabric mode, with bands for the spread over"
        " iterations.",
        (FigureInput("iterations", "training/{run}/iterations.parquet"),),
    ),
    FigureKind(
        "corpus_lengths",
        "Sequence lengths of the corpora",
        "Lines of the share of sequences that are longer than a given length, one line a corpus,"
        " both axes logarithmic.",
        (FigureInput("corpus", "corpora/{corpus}.parquet"),),
    ),
    FigureKind(
        "channel_loads",
        "Channel loads under uniform all-to-all traffic",
        "For each topology, the load of its channels in descending order, one line a kind of"
        " channel.",
        (FigureInput("channels", "network/{topology}.channels.parquet"),),
    ),
    FigureKind(
        "ring_all_reduce",
        "Ring all-reduce by topology",
        "Lines of the all-reduce time and of the bandwidth it reaches over the payload, one line a"
        " topology.",
        (FigureInput("collectives", "collectives/{topology}.parquet"),),
    ),
    FigureKind(
        "collective_time",
        "Collectives by topology",
        "For each topology, lines of the bandwidth that each collective reaches over the payload in"
        " closed form, and circles of the same with messages on the links.",
        (FigureInput("collectives", "collectives/{topology}.parquet"),),
    ),
    FigureKind(
        "agreement",
        "Flow model against packet simulator",
        "Points of the throughput in the packet simulator over that in the flow model around the"
        " diagonal, and of their ratio over the offered load, one point for each topology, traffic"
        " pattern, routing and load.",
        (FigureInput("agreement", "flows/agreement.parquet"),),
    ),
    FigureKind(
        "latency_load",
        "Latency against offered load",
        "Lines of the mean packet latency over the offered load, one line a sweep, which rise"
        " steeply at the saturation point; below, for each sweep, the saturation point, the largest"
        " rate accepted, the static bound and the ideal.",
        (FigureInput("packets", "packets/{sweep}.parquet"),),
    ),
    FigureKind(
        "largest_job",
        "Largest job against failed nodes",
        "Lines of the share of nodes that the largest job can use over the number of failed nodes:"
        " RailX and HammingMesh on one line, the torus far below, and the closed form for failures"
        " in distinct lines.",
        (FigureInput("faults", "tenancy/faults.parquet"),),
    ),
    FigureKind(
        "step_time",
        "Time of a training step by topology",
        "For each job two panels of bars, one bar a topology, of the step time at equal bandwidth"
        " and at equal cost, stacked by compute, pipeline bubble and the communication of each kind"
        " of parallelism.",
        (FigureInput("steps", "steps/{mapped}.parquet"),),
    ),
    FigureKind(
        "utilisation",
        "Use of the grid by a stream of jobs",
        "Bars of the share of busy nodes and of rejections or waiting times, by system, with and"
        " without failed nodes.",
        (FigureInput("utilisation", "tenancy/utilisation.parquet"),),
    ),
)

#: Every figure by name.
FIGURES: dict[str, FigureKind] = {kind.name: kind for kind in _KINDS}

_SETTINGS: dict[str, type[CanvasSettings]] = {
    get_args(get_type_hints(settings)["figure"])[0]: settings
    for settings in get_args(FigureSettings)
}


def draw_figure(
    settings: FigureSettings, inputs: Mapping[str, Sequence[Path]], output: Path
) -> None:
    """Draw the figure that ``settings.figure`` names from the files under its input
    keys, as ``output`` with .svg and .png.

    Raises ValueError for a missing or unknown input and for a table that does not hold
    what the figure needs.
    """
    kind = FIGURES[settings.figure]
    unknown = sorted(set(inputs) - {wanted.key for wanted in kind.inputs})
    if unknown:
        raise ValueError(
            f"input {', '.join(unknown)}: not known to {kind.name}; allowed:"
            f" {', '.join(i.key for i in kind.inputs)}"
        )
    missing = [
        wanted.key for wanted in kind.inputs if wanted.required and not inputs.get(wanted.key)
    ]
    if missing:
        raise ValueError(
            f"input {', '.join(missing)}: no file given for {kind.name}; allowed: one file or more"
        )
    importlib.import_module(kind.module).draw(settings, inputs, output)
