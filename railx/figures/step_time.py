"""Time of a training step by topology, stacked by what it is spent on.

One column per job, equal bandwidth above equal cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import GREY, canvas, label, quantity, share_legend
from railx.settings import AtLeast

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "StepTimeSettings"]

_CAPTION = """\
Estimated time of a training step on each topology, stacked by what it is spent on, for
every job. All groups of one kind of parallelism communicate at once; exact channel
loads of their traffic give the rate, and each transfer takes the fastest of sending
directly, round a ring, or one axis after the other. Nothing overlaps but the stages of
the pipeline: an upper bound for schedules that hide communication. Equal cost scales
the ports of a network to what RailX costs per chip; links inside nodes, boards and
servers (copper and scale-up switches) stand in no bill, which favours the networks with
such servers, and keep their rate. The plain trees, HyperX and Dragonfly have no such
links, so that tensor parallelism takes their ports. The paper prints no step times:
jobs and layouts are choices of this project.
"""
_ALTERNATIVE = (
    "For each job two panels of bars, one bar per topology, of the step time at equal "
    "bandwidth and at equal cost, stacked by compute, pipeline bubble and the "
    "communication of each kind of parallelism."
)

_COLUMNS = ("topology", "job", "basis", "part", "ms", "step_ms", "reason", "chips", "fidelity")
_BASES = {"equal_bandwidth": "equal injection bandwidth", "equal_cost": "equal cost of the network"}
#: What a step is spent on, in the order of the stack.
_PARTS = {
    "compute": ("Compute", "#c3c8cf"),
    "bubble": ("Pipeline bubble", "#e3e6ea"),
    "tensor": ("Tensor", "#0072B2"),
    "sequence": ("Sequence", "#56B4E9"),
    "expert": ("Expert (all-to-all)", "#E69F00"),
    "data": ("Data", "#009E73"),
    "pipeline": ("Pipeline", "#CC79A7"),
}


@dataclass(frozen=True)
class StepTimeSettings(CanvasSettings):
    """Time of a training step by topology and job, stacked by what it is spent on."""

    figure: Literal["step_time"]
    """Which figure it is."""

    only: tuple[str, ...]
    """Mapped topologies to show, in that order; empty: all that there are."""

    cut_over_shortest: Annotated[float, AtLeast(1)] | None
    """How many times longer than the shortest of its panel a bar is cut; null: none
    is."""


def draw(settings: StepTimeSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """Horizontal bars in seconds, cut where much longer than the shortest.

    A note stands where there is no room or no price.
    """
    rows = read_frames(inputs, "steps", _COLUMNS, "topology", settings.only)
    jobs = list(dict.fromkeys(rows["job"]))
    bases = [basis for basis in _BASES if basis in set(rows["basis"])]
    chips = ", ".join(f"{count:,}" for count in sorted(set(rows["chips"])))
    subtitle = (
        f"Jobs of {chips} chips: tensor parallelism in a node, the others along rows and columns of"
        " nodes. Nothing overlaps. Equal cost: ports scaled to the reference's cost; links inside"
        " nodes, boards and servers in no bill, one rate on both bases."
    )
    with canvas(
        settings,
        output,
        "Time of a training step by topology",
        subtitle,
        fidelity_line(rows["fidelity"]),
    ) as figure:
        panels = figure.subplots(len(bases), len(jobs), sharey=True, squeeze=False)
        for across, basis in zip(panels, bases, strict=True):
            for axes, job in zip(across, jobs, strict=True):
                _panel(axes, rows, job, basis, settings.cut_over_shortest)
        handles, labels = panels[0, 0].get_legend_handles_labels()
        share_legend(figure, handles, labels, columns=len(_PARTS))
    return Drawn(_CAPTION, _ALTERNATIVE, rows)


def _panel(axes: Axes, rows: pd.DataFrame, job: str, basis: str, cut: float | None) -> None:
    import pandas as pd
    from matplotlib.ticker import MaxNLocator

    names = list(dict.fromkeys(rows["topology"]))
    without_room = set(rows.loc[(rows["job"] == job) & rows["reason"].notna(), "topology"])
    own = rows[(rows["job"] == job) & (rows["basis"] == basis)]
    seconds = (
        own[own["part"].notna()]
        .pivot_table(index="topology", columns="part", values="ms", aggfunc="sum")
        .reindex(names)
        / 1e3
    )
    left = pd.Series(0.0, index=names)
    for part, (title, colour) in _PARTS.items():
        width = seconds[part] if part in seconds else left * 0
        axes.barh(
            range(len(names)), width.fillna(0), left=left, color=colour, label=title, height=0.74
        )
        left = left + width.fillna(0)
    drawn = left[left > 0]
    most = float(drawn.max()) if len(drawn) else 1.0
    limit = most if cut is None or drawn.empty else min(most, cut * float(drawn.min()))
    for place, name in enumerate(names):
        _mark(axes, place, float(left[name]), limit, name in without_room)
    axes.set_title(f"{label(job)}, {_BASES[basis]}")
    axes.set_xlim(0, 1.14 * limit)
    axes.set_xlabel("Step time (s)")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_yticks(range(len(names)), [label(name) for name in names])
    if not axes.yaxis_inverted():  # shared by all panels
        axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def _mark(axes: Axes, place: int, seconds: float, limit: float, without_room: bool) -> None:
    """The number at the end of a bar, or the note in the place of a bar.

    Where the bar is cut the number is at the edge.
    """
    style: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": "x-small"}
    if seconds > limit:
        box = {"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"}
        axes.annotate(
            f"{quantity(seconds)} ▸", (1.14 * limit, place), (-2, 0), ha="right", bbox=box, **style
        )
    elif seconds > 0:
        axes.annotate(quantity(seconds), (seconds, place), (3, 0), **style)
    else:
        axes.annotate(
            "no room for the job" if without_room else "no price",
            (0, place),
            (3, 0),
            color=GREY,
            **style,
        )


FIGURE = Figure(
    settings=StepTimeSettings,
    title="Time of a training step by topology",
    paper="railx",
    inputs=(FigureInput("steps", "mapping.steps"),),
    draw=draw,
)
