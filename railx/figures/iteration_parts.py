"""What an iteration consists of under several plans: a bar for each, parted.

Parts are means over the devices: computation, computing again what was not kept,
all-to-all, exposed traffic of ZeRO-3, other communication, and waiting, which is the
rest of the iteration. Devices wait for the slowest group of a micro-batch, in no group
at all, or while a pipeline fills, drains and holds them up. Plans of groups and of
pipelines stand side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import FAINT, PALETTE, canvas, lighter, panel_title, quantity, share_legend
from railx.io import read_json
from railx.settings import Between, NotEmpty

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "IterationPartsSettings"]

_GROUPS = (
    "plan",
    "devices",
    "kind",
    "iteration",
    "micro_batch",
    "degree",
    "predicted_ms",
    "predicted_all_to_all_ms",
    "predicted_other_ms",
    "fidelity",
)
_SCHEDULE = ("plan", "iteration", "replica", "stage", "start_ms", "end_ms")
#: The parts of a bar in their order, with their colours; waiting is drawn lighter.
_PARTS = {
    "computation": PALETTE[0],
    "computed again": PALETTE[1],
    "all-to-all": PALETTE[5],
    "ZeRO-3": PALETTE[7],
    "other communication": PALETTE[3],
    "waiting": FAINT,
}


@dataclass(frozen=True)
class IterationPartsSettings(CanvasSettings):
    """Parts of an iteration by plan."""

    figure: Literal["iteration_parts"]
    """Which figure it is."""

    title: Annotated[str, NotEmpty()]
    """What the plans are compared for."""

    note: str
    """A sentence on the plans below the title; empty: none."""

    panels: Annotated[dict[str, dict[str, str]], NotEmpty()]
    """Panels by title: plans and the words for each, from top to bottom. The first one
    that the experiment has is what the others are compared with; plans that it lacks
    are left out."""

    columns: Annotated[int, Between(1, 64)]
    """Panels side by side."""


def _colour(part: str) -> Any:
    return lighter(FAINT, 0.55) if part == "waiting" else _PARTS[part]


def draw(settings: IterationPartsSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """A panel for each comparison, a bar for each plan.

    Raises ValueError where the experiment has none of the plans.
    """
    from matplotlib.patches import Patch

    rows = _rows(settings, inputs)
    panels = list(dict.fromkeys(rows["panel"]))
    columns = min(settings.columns, len(panels))
    subtitle = (
        "Predicted seconds of an iteration, mean over its batches and devices; in brackets, times"
        f" the first of each panel. {settings.note}"
    )
    with canvas(
        settings, output, settings.title, subtitle.strip(), fidelity_line(rows["fidelity"])
    ) as figure:
        grid = figure.subplots(ceil(len(panels) / columns), columns, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.remove()
        for place, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
            _panel(axes, rows[rows["panel"] == panel])
            axes.set_title(panel_title(panel, columns, settings))
            if place >= len(panels) - columns:
                axes.set_xlabel("Seconds")
        drawn = [part for part in _PARTS if (rows[part] > 0).any()]
        handles: list[Any] = [Patch(facecolor=_colour(part), linewidth=0) for part in drawn]
        share_legend(figure, handles, [part[:1].upper() + part[1:] for part in drawn], 6)
    return Drawn(_caption(settings, rows), _alternative(rows), rows, title=settings.title)


def _rows(settings: IterationPartsSettings, inputs: FigureFiles) -> pd.DataFrame:
    """A row for each bar: its parts in seconds, and its time over the first's."""
    import pandas as pd

    groups = read_frames(inputs, "groups", _GROUPS)
    chosen = [plan for plans in settings.panels.values() for plan in plans]
    groups = groups[groups["plan"].isin(chosen)]
    if groups.empty:
        raise ValueError(
            f"panels: got {', '.join(chosen)}; allowed: plans of this experiment, one or more"
        )
    pipelined = bool((groups["kind"] == "pipeline").any())
    schedule = read_frames(inputs, "schedule", _SCHEDULE) if pipelined else None
    sharding = _sharding(inputs)
    rows: list[dict[str, Any]] = []
    for panel, plans in settings.panels.items():
        first: float | None = None
        for plan, words in plans.items():
            own = groups[groups["plan"] == plan]
            if own.empty:
                continue
            head = {"panel": panel, "plan": plan, "words": words}
            if own["kind"].iloc[0] == "pipeline":
                assert schedule is not None  # a pipeline plan has one
                parts = _of_pipelines(own, schedule[schedule["plan"] == plan], sharding[plan])
            else:
                parts = _of_groups(own, sharding[plan])
            seconds = sum(parts.values())
            first = first or seconds
            tail = {"seconds": seconds, "over_first": seconds / first}
            rows.append(head | parts | tail | {"fidelity": str(own["fidelity"].iloc[0])})
    return pd.DataFrame(rows)


def _sharding(inputs: FigureFiles) -> dict[str, float]:
    """Exposed traffic of ZeRO-3 in ms of a batch, by plan."""
    summaries = [read_json(path) for path in inputs["summary"]]
    return {each["plan"]: float(each["predicted_sharding_ms"]) for each in summaries}


def _of_groups(groups: pd.DataFrame, sharding_ms: float) -> dict[str, float]:
    """Parts in seconds; micro-batches run one after another.

    The cost model has ZeRO-3's traffic in the time of every group.
    """
    devices = float(groups["devices"].iloc[0])
    iterations = groups["iteration"].nunique()

    def mean(column: str) -> float:
        """Over the devices, of a batch."""
        return float((groups[column] * groups["degree"]).sum()) / devices / iterations

    whole = float(groups.groupby(["iteration", "micro_batch"])["predicted_ms"].max().sum())
    exchange, other = mean("predicted_all_to_all_ms"), mean("predicted_other_ms")
    busy = mean("predicted_ms")
    # Devices in no group gather as the others do, and count as waiting.
    shared = sharding_ms * min(1.0, busy / (whole / iterations))
    computing = busy - exchange - other - shared
    return _parts(computing, 0.0, exchange, shared, other, whole / iterations - busy)


def _of_pipelines(
    groups: pd.DataFrame, schedule: pd.DataFrame, sharding_ms: float
) -> dict[str, float]:
    """Parts in seconds; every stage runs every chunk of its replica.

    What operations take beyond the chunks' own time is computing again.
    """
    devices = float(groups["devices"].iloc[0])
    iterations = groups["iteration"].nunique()
    stages = int(schedule["stage"].max()) + 1
    replicas = int(schedule["replica"].max()) + 1
    whole = float(schedule.groupby("iteration")["end_ms"].max().sum()) / iterations
    lasted = float((schedule["end_ms"] - schedule["start_ms"]).sum())
    spent = lasted / (stages * replicas) / iterations

    def mean(column: str) -> float:
        """Over the devices, of a batch."""
        return float((groups[column] * groups["degree"]).sum()) / devices / iterations

    exchange, chunks = mean("predicted_all_to_all_ms"), mean("predicted_ms")
    again = spent - chunks if spent > chunks * (1 + 1e-9) else 0.0
    return _parts(spent - again - exchange, again, exchange, sharding_ms, 0.0, whole - spent)


def _parts(*each_ms: float) -> dict[str, float]:
    return {part: max(ms, 0.0) / 1e3 for part, ms in zip(_PARTS, each_ms, strict=True)}


def _panel(axes: Axes, rows: pd.DataFrame) -> None:
    from matplotlib.ticker import MaxNLocator

    longest = float(rows["seconds"].max())
    for place, row in enumerate(rows.to_dict("records")):
        left = 0.0
        for part in _PARTS:
            axes.barh(place, row[part], 0.7, left=left, color=_colour(part), linewidth=0)
            left += row[part]
        axes.annotate(
            f"{quantity(row['seconds'])} ({row['over_first']:.2f})",
            (1, place),
            (-4, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            va="center",
        )
    axes.set_yticks(range(len(rows)), list(rows["words"]))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1.75 * longest)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.grid(visible=False, axis="y")


def _caption(settings: IterationPartsSettings, rows: pd.DataFrame) -> str:
    sentences = []
    for panel, own in rows.groupby("panel", sort=False):
        words = ", ".join(
            f"{row['words']} {quantity(row['seconds'])} s" for row in own.to_dict("records")
        )
        sentences.append(f"{panel}: {words}.")
    return (
        f"{settings.title}. {' '.join(sentences)} All are predictions of the cost model, parted"
        " into means over the devices."
    )


def _alternative(rows: pd.DataFrame) -> str:
    bars = [
        f"{row['panel']}, {row['words']}: "
        + ", ".join(f"{part} {quantity(row[part])}" for part in _PARTS if row[part] > 0)
        for row in rows.to_dict("records")
    ]
    return f"Stacked bars of seconds of an iteration. {'; '.join(bars)}."


FIGURE = Figure(
    settings=IterationPartsSettings,
    title="What an iteration consists of",
    paper="infinipipe",
    inputs=(
        FigureInput("groups", "plan.groups", columns=_GROUPS),
        FigureInput("schedule", "plan.schedule", columns=_SCHEDULE),
        FigureInput("summary", "plan.summary"),
    ),
    draw=draw,
)
