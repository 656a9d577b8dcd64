"""Speed-ups of elastic pipelines over other plans, published and ours.

Published are InfiniPipe's headline numbers; ours are predicted times of the plans of
this experiment on the same batches. Below stands the share of their time in which
stages have nothing to run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from railx.errors import UserError
from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.published import published_frame, published_mark
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import GREY, PALETTE, canvas, label, quantity, share_legend

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "PipelineSpeedupsSettings"]

_GROUPS = (
    "plan",
    "corpus",
    "devices",
    "kind",
    "iteration",
    "micro_batch",
    "tokens",
    "predicted_ms",
    "fidelity",
)
_SCHEDULE = ("plan", "iteration", "pipeline", "replica", "stage", "start_ms", "end_ms", "fidelity")
_HEADLINES = ("id", "value", "place")
_BASELINES = {
    "megatron": ("Megatron-LM", GREY),
    "deepspeed": ("DeepSpeed, one static degree", PALETTE[1]),
    "flexsp": ("FlexSP, groups that adapt", PALETTE[2]),
    "seq1f1b": ("Seq1F1B, slices of one size", PALETTE[3]),
}
#: The planner whose plans stand for a baseline.
_PLANNERS = {"flexsp": "flexsp", "static": "deepspeed"}
_SHORT = {"flexsp": "FlexSP", "static": "one degree"}


@dataclass(frozen=True)
class PipelineSpeedupsSettings(CanvasSettings):
    """Speed-ups of elastic pipelines, published beside ours."""

    figure: Literal["pipeline_speedups"]
    """Which figure it is."""

    rows: dict[str, str]
    """Published rows to show by id, in that order, and the words for each."""

    only: tuple[str, ...]
    """Plans to set side by side, of one model; empty: all."""


def draw(settings: PipelineSpeedupsSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """A row per published headline and per pair of our plans, and the bubbles below.

    Raises ValueError for a row that is not published.
    """
    from matplotlib.lines import Line2D

    published = published_frame(inputs, "published", _HEADLINES).set_index("id")
    unknown = [name for name in settings.rows if name not in published.index]
    if unknown:
        raise UserError(f"rows: got {', '.join(unknown)}; allowed: {', '.join(published.index)}")
    groups = read_frames(inputs, "groups", (*_GROUPS, "planner"), "plan", settings.only)
    schedule = read_frames(inputs, "schedule", _SCHEDULE, "plan", settings.only)
    points = _points(settings.rows, published, groups, schedule)
    subtitle = (
        "Published: hollow diamonds, 32 A800, Llama models. Ours: dots, times that the cost model"
        " predicts for plans of this experiment on the same batches; other models, devices and"
        " lengths than the paper's. The axis of speed-ups does not begin at 0."
    )
    with canvas(
        settings,
        output,
        "Elastic pipelines: speed-up and bubbles",
        subtitle,
        fidelity_line(schedule["fidelity"]),
    ) as figure:
        speed = points[points["quantity"] == "speedup"]
        bubble = points[points["quantity"] == "bubble"]
        above, below = figure.subplots(2, 1, height_ratios=[len(speed) + 1, len(bubble) + 1])
        _rows(above, speed, "InfiniPipe or ours, times faster")
        above.axvline(1, color=GREY, linewidth=0.8)
        above.set_xlim(left=min(0.97, 0.95 * float(speed["value"].min())))
        _rows(below, bubble, "Idle time of the stages / their time")
        below.set_xlim(0, 1.25 * float(bubble["value"].max()))
        handles: list[Any] = [
            Line2D([], [], linestyle="none", marker="s", color=colour)
            for _, colour in _BASELINES.values()
        ]
        texts = [f"Over {name}" for name, _ in _BASELINES.values()]
        handles += [
            Line2D([], [], **published_mark(GREY)),
            Line2D([], [], linestyle="none", marker="o", color=GREY),
        ]
        texts += ["Published (at most)", "Ours"]
        share_legend(figure, handles, texts, 3)
    data = points.assign(row=points["row"].str.replace("\n", " "))
    return Drawn(_caption(points), _alternative(points), data)


def _points(
    chosen: dict[str, str], published: pd.DataFrame, groups: pd.DataFrame, schedule: pd.DataFrame
) -> pd.DataFrame:
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for name, words in chosen.items():
        baseline = next((key for key in _BASELINES if f"over_{key}" in name), "")
        row = {
            "source": "published",
            "quantity": "speedup" if baseline else "bubble",
            "row": words,
            "baseline": baseline,
            "value": float(published["value"][name]),
        }
        rows.append(row)
    rows += _ours(groups, schedule)
    return pd.DataFrame(rows)


def _ours(groups: pd.DataFrame, schedule: pd.DataFrame) -> list[dict[str, Any]]:
    """Our pipelines over the other plans of the same batches, and their bubbles."""
    slowest = groups.groupby(["plan", "iteration", "micro_batch"])["predicted_ms"].max()
    seconds = slowest.groupby(["plan", "iteration"]).sum().groupby("plan").mean()
    ends = schedule.groupby(["plan", "iteration", "pipeline", "replica"]).agg(
        start=("start_ms", "min"), end=("end_ms", "max"), stages=("stage", "nunique")
    )
    busy = (
        (schedule["end_ms"] - schedule["start_ms"])
        .groupby([schedule[key] for key in ("plan", "iteration", "pipeline", "replica")])
        .sum()
    )
    facts = groups.drop_duplicates("plan").set_index("plan")
    tokens = groups.groupby(["plan", "iteration"])["tokens"].sum().groupby("plan").agg(tuple)
    rows = []
    for plan, own in ends.groupby("plan"):
        pipeline = _iteration_ms(own)
        fact = facts.loc[str(plan)]
        words = label(str(fact["corpus"]))
        # Equal tokens in every iteration: the same batches.
        same = facts[
            (facts["corpus"] == fact["corpus"])
            & (tokens.reindex(facts.index) == tokens[str(plan)])
            & (facts["kind"] == "sequence_parallel")
        ]
        rows += [
            {
                "source": "ours",
                "quantity": "speedup",
                "row": f"Ours, {words},\n{other_fact['devices']} devices, over"
                f" {_SHORT[other_fact['planner']]}",
                "baseline": _PLANNERS[other_fact["planner"]],
                "value": float(seconds[other]) / pipeline,
            }
            for other, other_fact in same.iterrows()
            if other_fact["planner"] in _PLANNERS
        ]
        stage_ms = float(((own["end"] - own["start"]) * own["stages"]).sum())
        rows.append(
            {
                "source": "ours",
                "quantity": "bubble",
                "row": f"Ours, {words}",
                "baseline": "",
                "value": 1 - float(busy.loc[plan].sum()) / stage_ms,
            }
        )
    return rows


def _iteration_ms(ends: pd.DataFrame) -> float:
    """The mean over iterations of the last replica's end.

    Pipelines of a replica run one after another, also where the table counts the time
    of each from its own start.
    """
    lasting = ends.assign(ms=ends["end"] - ends["start"])
    replica = lasting.groupby(["iteration", "replica"]).agg(
        counted=("ms", "sum"), end=("end", "max")
    )
    return float(replica.max(axis=1).groupby("iteration").max().mean())


def _rows(axes: Axes, rows: pd.DataFrame, words: str) -> None:
    for place, row in enumerate(rows.to_dict("records")):
        colour = _BASELINES.get(row["baseline"], ("", GREY))[1]
        style = (
            published_mark(colour)
            if row["source"] == "published"
            else {"linestyle": "none", "marker": "o", "color": colour, "markersize": 7}
        )
        axes.plot(row["value"], place, **style)
        share = row["quantity"] == "bubble"
        axes.annotate(
            f"{100 * row['value']:.3g} %" if share else f"{quantity(row['value'])}x",
            (row["value"], place),
            (7, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_yticks(range(len(rows)), list(rows["row"]))
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(words)
    axes.margins(x=0.1)


def _caption(points: pd.DataFrame) -> str:
    speed = points[points["quantity"] == "speedup"]
    bubbles = points[points["quantity"] == "bubble"]
    sentences = []
    for baseline, (name, _) in _BASELINES.items():
        own = speed[speed["baseline"] == baseline]
        published = own[own["source"] == "published"]["value"]
        ours = own[own["source"] == "ours"]["value"]
        if not len(own):
            continue
        text = (
            f"over {name} published at most {quantity(published.max())}"
            if len(published)
            else f"over {name} nothing published"
        )
        text += (
            f", ours {' and '.join(quantity(one) for one in ours)}" if len(ours) else ", ours none"
        )
        sentences.append(text)
    shares = "; ".join(
        f"{row['source']} {100 * row['value']:.3g} %" for row in bubbles.to_dict("records")
    )
    return (
        f"Speed-ups of elastic pipelines: {'; '.join(sentences)}. Idle time of the stages: {shares}"
        " (the published share also holds point-to-point time). The published times are measured;"
        " ours are predictions, of both plans for the same batches."
    )


def _alternative(points: pd.DataFrame) -> str:
    rows = [
        f"{str(row['row']).replace(chr(10), ' ')} {quantity(row['value'])}"
        for row in points[points["quantity"] == "speedup"].to_dict("records")
    ]
    return f"Dots of speed-ups, a row each: {'; '.join(rows)}. Below, the idle share of the stages."


FIGURE = Figure(
    settings=PipelineSpeedupsSettings,
    title="Elastic pipelines: speed-up and bubbles",
    paper="infinipipe",
    inputs=(
        FigureInput("groups", "plan.groups", columns=(*_GROUPS, "planner")),
        FigureInput("schedule", "plan.schedule", columns=_SCHEDULE, plan_kind="pipeline"),
        FigureInput("published", published="infinipipe.csv", columns=_HEADLINES),
    ),
    draw=draw,
)
