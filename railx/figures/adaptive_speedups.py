"""Speed-ups and iteration times of adaptive sequence parallelism, published and ours.

Published are FlexSP's printed speed-ups and the heights of its bars; ours are the
predictions of the cost model for the plans of this experiment, each beside the
published case that it was made for.
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

__all__ = ["FIGURE", "AdaptiveSpeedupsSettings", "PublishedCase"]

_GROUPS = ("plan", "corpus", "iteration", "micro_batch", "predicted_ms", "fidelity")
_SPEEDUPS = ("model", "context", "corpus", "system", "reference", "value")
_SECONDS = (
    "model",
    "context",
    "corpus",
    "system",
    "seconds_per_iteration",
    "reading_error_seconds",
)
_SYSTEMS = {
    "megatron": ("Megatron-LM", GREY),
    "deepspeed": ("DeepSpeed", PALETTE[1]),
    "flexsp_batch_ada": ("BatchAda", PALETTE[4]),
    "flexsp": ("FlexSP", PALETTE[2]),
}
#: Left and right of a case's place, by system.
_SHIFT = {"megatron": -0.27, "deepspeed": -0.09, "flexsp_batch_ada": 0.09, "flexsp": 0.27}
_CASE = ["model", "context", "corpus"]


@dataclass(frozen=True)
class PublishedCase:
    """The published case that a plan was made for."""

    model: str
    """Model, as the published tables name it."""

    context: str
    """Longest context, as the published tables name it."""

    corpus: str
    """Corpus, as the published tables name it."""

    system: Literal["megatron", "deepspeed", "flexsp_batch_ada", "flexsp"]
    """System that the plan stands for."""


@dataclass(frozen=True)
class AdaptiveSpeedupsSettings(CanvasSettings):
    """Speed-ups of adaptive groups, published beside ours."""

    figure: Literal["adaptive_speedups"]
    """Which figure it is."""

    plans: dict[str, PublishedCase]
    """Plans and the published case of each; those that the experiment lacks are left
    out."""


def draw(settings: AdaptiveSpeedupsSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """A column per corpus: speed-ups above, seconds of an iteration below.

    Raises ValueError for a plan with a case that is not published.
    """
    from matplotlib.lines import Line2D

    speedups = published_frame(inputs, "speedups", _SPEEDUPS)
    seconds = published_frame(inputs, "seconds", _SECONDS)
    ours = _ours(settings, inputs, seconds)
    points = _points(speedups, seconds, ours)
    corpora = list(dict.fromkeys(seconds["corpus"]))
    most = float(points.loc[points["quantity"] == "speedup", "value"].max())
    cases = list(dict.fromkeys(zip(seconds["context"], seconds["model"], strict=True)))
    subtitle = (
        "Published: hollow diamonds, 64 A100; seconds read off its bars to within"
        f" {quantity(seconds['reading_error_seconds'].min())} to"
        f" {quantity(seconds['reading_error_seconds'].max())} s. Ours: dots, predicted by the cost"
        " model, on lengths of this project where a list is not public. Speed-up axes begin at 1."
    )
    with canvas(
        settings,
        output,
        "Groups that adapt to the batch: speed-up and time of an iteration",
        subtitle,
        fidelity_line(ours["fidelity"] if len(ours) else [], "" if len(ours) else _NONE),
    ) as figure:
        panels = figure.subplots(2, len(corpora), sharex=True, sharey="row", squeeze=False)
        for (above, below), corpus in zip(panels.T, corpora, strict=True):
            own = points[points["corpus"] == corpus]
            _speedups(above, own[own["quantity"] == "speedup"], cases, most)
            _seconds(below, own[own["quantity"] == "seconds"], cases)
            lengths = sorted(set(own.loc[own["source"] == "ours", "lengths"]))
            names = f"\nours: {', '.join(map(label, lengths))}" if lengths else "\nours: none"
            above.set_title(f"{label(corpus)}{names}")
        panels[0, 0].set_ylabel("FlexSP is faster, times")
        panels[1, 0].set_ylabel("Seconds an iteration")
        handles: list[Any] = []
        texts: list[str] = []
        for system, (name, colour) in _SYSTEMS.items():
            handles += [
                Line2D([], [], **published_mark(colour)),
                Line2D([], [], linestyle="none", marker="o", color=colour),
            ]
            texts += [f"{name}, published", f"{_OURS.get(system, name)}, ours"]
            if system not in set(ours["system"]):
                handles.pop()
                texts.pop()
        share_legend(figure, handles, texts, 2)
    return Drawn(_caption(points), _alternative(points, corpora), points)


#: More pairs than this are told by their range.
_LISTED = 8
_NONE = "This experiment has no plan for a published case"
_OURS = {
    "megatron": "Megatron-LM's best shape, derived",
    "deepspeed": "One degree for all (as DeepSpeed)",
    "flexsp_batch_ada": "Best single degree of each batch",
    "flexsp": "Groups that adapt",
}


def _ours(
    settings: AdaptiveSpeedupsSettings, inputs: FigureFiles, seconds: pd.DataFrame
) -> pd.DataFrame:
    """Mean seconds of an iteration of each plan that stands for a published case."""
    import pandas as pd

    groups = read_frames(inputs, "groups", _GROUPS)
    known = set(zip(*(seconds[name] for name in [*_CASE, "system"]), strict=True))
    rows = []
    for plan, case in settings.plans.items():
        key = (case.model, case.context, case.corpus, case.system)
        if key not in known:
            raise UserError(
                f"plans.{plan}: got {', '.join(key)}; allowed: a case of the published iteration"
                " seconds"
            )
        own = groups[groups["plan"] == plan]
        if own.empty:
            continue
        slowest = own.groupby(["iteration", "micro_batch"])["predicted_ms"].max()
        rows.append(
            {
                "model": case.model,
                "context": case.context,
                "corpus": case.corpus,
                "system": case.system,
                "seconds": float(slowest.groupby("iteration").sum().mean()) / 1e3,
                "lengths": str(own["corpus"].iloc[0]),
                "plan": plan,
                "fidelity": str(own["fidelity"].iloc[0]),
            }
        )
    columns = [*_CASE, "system", "seconds", "lengths", "plan", "fidelity"]
    return pd.DataFrame(rows, columns=columns)


def _points(speedups: pd.DataFrame, seconds: pd.DataFrame, ours: pd.DataFrame) -> pd.DataFrame:
    """One row a mark; a speed-up over the best single degree is that of two bars."""
    import pandas as pd

    printed = speedups[speedups["system"] == "flexsp"].rename(columns={"reference": "baseline"})
    parts = [
        printed[[*_CASE, "baseline", "value"]].assign(source="printed", quantity="speedup"),
        seconds.rename(
            columns={"seconds_per_iteration": "value", "reading_error_seconds": "error"}
        )[[*_CASE, "system", "value", "error"]].assign(source="read off", quantity="seconds"),
        ours.rename(columns={"seconds": "value"})[
            [*_CASE, "system", "value", "lengths", "plan"]
        ].assign(source="ours", quantity="seconds"),
    ]
    read = seconds.rename(columns={"seconds_per_iteration": "seconds"})
    for table, source, bases in (
        (read, "read off", ("flexsp_batch_ada",)),
        (ours, "ours", ("megatron", "deepspeed", "flexsp_batch_ada")),
    ):
        times = table.set_index([*_CASE, "system"])["seconds"]
        rows = [
            {
                **dict(zip(_CASE, case, strict=True)),
                "baseline": base,
                "value": times[(*case, base)] / times[(*case, "flexsp")],
                "lengths": own["lengths"].iloc[0] if "lengths" in own else None,
            }
            for case, own in _by_case(table)
            for base in bases
            if (*case, base) in times.index and (*case, "flexsp") in times.index
        ]
        parts.append(pd.DataFrame(rows).assign(source=source, quantity="speedup"))
    order = [
        "source",
        "quantity",
        *_CASE,
        "system",
        "baseline",
        "value",
        "error",
        "lengths",
        "plan",
    ]
    whole = pd.concat([part for part in parts if len(part)], ignore_index=True)
    return whole.reindex(columns=order)


def _by_case(table: pd.DataFrame) -> list[tuple[tuple[str, str, str], pd.DataFrame]]:
    return [
        ((str(model), str(context), str(corpus)), own)
        for (model, context, corpus), own in table.groupby(_CASE, sort=False)
    ]


def _marks(axes: Axes, rows: pd.DataFrame, name: str, cases: list[tuple[str, str]]) -> None:
    for system, own in rows.groupby(name, sort=False):
        colour = _SYSTEMS[str(system)][1]
        x = [
            cases.index((context, model)) + _SHIFT[str(system)]
            for context, model in zip(own["context"], own["model"], strict=True)
        ]
        here = own["source"] == "ours"
        for chosen, style in (
            (~here, published_mark(colour)),
            (here, {"linestyle": "none", "marker": "o", "color": colour, "markersize": 7}),
        ):
            axes.plot(
                [at for at, yes in zip(x, chosen, strict=True) if yes],
                own["value"][chosen],
                **style,
            )


def _speedups(axes: Axes, rows: pd.DataFrame, cases: list[tuple[str, str]], most: float) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.axhline(1, color=GREY, linewidth=0.8)
    _marks(axes, rows, "baseline", cases)
    # A ratio is as far from 1 as its inverse.
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator([1, 1.25, 1.5, 2, 3, 4, 5, 7]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: quantity(value))
    axes.set_ylim(0.97, 1.06 * most)
    axes.grid(visible=False, axis="x")


def _seconds(axes: Axes, rows: pd.DataFrame, cases: list[tuple[str, str]]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    _marks(axes, rows, "system", cases)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator([2, 5, 10, 20, 50, 100, 200, 500]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: quantity(value))
    axes.set_xticks(
        range(len(cases)), [f"{model.upper()}\n{context.upper()}" for context, model in cases]
    )
    axes.grid(visible=False, axis="x")


def _caption(points: pd.DataFrame) -> str:
    speedups = points[points["quantity"] == "speedup"]
    sentences = []
    for source, verb in (("printed", "The paper prints"), ("read off", "Its bars give")):
        own = speedups[speedups["source"] == source]
        parts = [
            f"{quantity(rows['value'].min())} to {quantity(rows['value'].max())} times over"
            f" {_SYSTEMS[str(base)][0]}"
            for base, rows in own.groupby("baseline", sort=False)
        ]
        sentences.append(f"{verb} {' and '.join(parts)}.")
    pairs = []
    ours = speedups[speedups["source"] == "ours"]
    for row in ours.to_dict("records"):
        same = speedups[
            (speedups["source"] != "ours")
            & (speedups[[*_CASE, "baseline"]] == [row[name] for name in (*_CASE, "baseline")]).all(
                axis=1
            )
        ]
        pairs.append(
            f"{quantity(row['value'])} against {quantity(float(same['value'].iloc[0]))} over"
            f" {_SYSTEMS[row['baseline']][0]} ({row['model'].upper()}, {row['context'].upper()},"
            f" {label(row['corpus'])}; our lengths: {label(row['lengths'])})"
        )
    if len(pairs) > _LISTED:
        parts = [
            f"{quantity(rows['value'].min())} to {quantity(rows['value'].max())} times over"
            f" {_SYSTEMS[str(base)][0]} in {len(rows)} cases"
            for base, rows in ours.groupby("baseline", sort=False)
        ]
        sentences.append(f"Ours are {', '.join(parts)}.")
    else:
        sentences.append(f"Ours against published: {'; '.join(pairs)}." if pairs else f"{_NONE}.")
    sentences.append(
        "Ours come from the cost model with the published constants, not from a machine."
    )
    return " ".join(sentences)


def _alternative(points: pd.DataFrame, corpora: list[str]) -> str:
    speedups = points[points["quantity"] == "speedup"]
    parts = []
    for corpus in corpora:
        own = speedups[speedups["corpus"] == corpus]
        printed = own[own["source"] == "printed"]["value"]
        ours = own[own["source"] == "ours"]["value"]
        text = f"{label(corpus)}: published {quantity(printed.min())} to {quantity(printed.max())}"
        parts.append(
            text
            + (
                f", ours {quantity(ours.min())} to {quantity(ours.max())}"
                if len(ours)
                else ", ours none"
            )
        )
    return (
        "Above, speed-ups of FlexSP by model and context, a panel per corpus; below, the seconds of"
        f" an iteration of each system. Speed-ups: {'; '.join(parts)}."
    )


FIGURE = Figure(
    settings=AdaptiveSpeedupsSettings,
    title="Groups that adapt to the batch: speed-up and time of an iteration",
    paper="flexsp",
    inputs=(
        FigureInput("groups", "plan.groups", columns=_GROUPS, plan_kind="sequence_parallel"),
        FigureInput("speedups", published="flexsp_speedups.csv", columns=_SPEEDUPS),
        FigureInput("seconds", published="flexsp_iteration_seconds.csv", columns=_SECONDS),
    ),
    draw=draw,
)
