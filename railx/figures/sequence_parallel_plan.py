"""One iteration of sequence-parallel plans: devices over predicted time.

One block per group, coloured by its degree. Groups of a micro-batch run side by side
and micro-batches one after another, so a block that ends before its micro-batch does
leaves its devices idle (FlexSP, section 4). Plans are drawn one above the other on the
same time axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import INK, canvas, degree_colours, label, quantity, share_legend
from railx.settings import NonNegative

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "SequenceParallelPlanSettings"]

_COLUMNS = (
    "plan",
    "kind",
    "devices",
    "iteration",
    "micro_batch",
    "first_rank",
    "degree",
    "sequences",
    "tokens",
    "predicted_ms",
)
_IDLE: dict[str, Any] = {"facecolor": "#f1f2f4", "edgecolor": "#d4d8dd", "hatch": "////"}


@dataclass(frozen=True)
class _Look:
    """What all panels share.

    Unit of time, milliseconds in it, colour per degree, whether blocks are labelled,
    size of a panel.
    """

    unit: str
    divisor: float
    shade: dict[int, str]
    labels: bool
    panel_width_inches: float
    panel_height_inches: float

    def fits(self, width_share: float, height_share: float, characters: int, lines: int) -> bool:
        """Whether a text fits in a block that has these shares of a panel.

        A character is about 0.08 inches wide, a line 0.15.
        """
        return (
            self.panel_width_inches * width_share > 0.08 * characters
            and self.panel_height_inches * height_share > 0.15 * lines
        )


@dataclass(frozen=True)
class SequenceParallelPlanSettings(CanvasSettings):
    """One iteration of sequence-parallel plans, one above the other."""

    figure: Literal["sequence_parallel_plan"]
    """Which figure it is."""

    only: tuple[str, ...]
    """Plans to show, in that order; empty: all of this kind."""

    iteration: Annotated[int, NonNegative()]
    """Iteration to show."""

    label_blocks: bool
    """Whether blocks say what they hold, where there is room."""


def draw(settings: SequenceParallelPlanSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """Draw ``settings.iteration`` of every sequence-parallel plan given.

    Plans of another kind are passed over. Raises ValueError when none is left, or when
    a plan lacks the iteration.
    """
    import pandas as pd
    from matplotlib.patches import Patch

    frame = read_frames(inputs, "groups", _COLUMNS, "plan", settings.only)
    frame = frame[frame["kind"] == "sequence_parallel"]
    if frame.empty:
        raise UserError(
            "input groups: no sequence-parallel plan among the tables; allowed: at least one"
        )
    plans = {
        str(plan): _iteration(own, settings.iteration, str(plan))
        for plan, own in frame.groupby("plan", sort=False)
    }
    if not settings.only:  # those of the same work one below the other
        order = list(dict.fromkeys(map(_work, plans.values())))
        plans = dict(sorted(plans.items(), key=lambda item: order.index(_work(item[1]))))
    # Plans of the same work share the time axis; others have one of their own.
    spans: dict[tuple[int, int], float] = {}
    for groups in plans.values():
        spans[_work(groups)] = max(spans.get(_work(groups), 0.0), _total_ms(groups))
    unit, divisor = ("s", 1000.0) if max(spans.values()) >= 10_000 else ("ms", 1.0)
    degrees = {int(degree) for groups in plans.values() for degree in groups["degree"]}
    shade = degree_colours(degrees, max(devices for devices, _ in spans))
    size = (settings.width_inches - 0.8, (settings.height_inches - 1.2) / len(plans) - 0.6)
    look = _Look(unit, divisor, shade, settings.label_blocks, *size)
    subtitle = (
        f"Iteration {settings.iteration}; plans of the same batch have the same axis of time."
        " Hatched: devices that wait for the slowest group of their micro-batch."
    )
    footnote = fidelity_line(["analytic"], "Times are the cost model's predictions")
    with canvas(
        settings, output, "Sequence-parallel groups over time", subtitle, footnote
    ) as figure:
        panels = figure.subplots(len(plans), 1, squeeze=False)[:, 0]
        works = [_work(groups) for groups in plans.values()]
        for i, (axes, (name, groups)) in enumerate(zip(panels, plans.items(), strict=True)):
            _draw_plan(axes, name, groups, spans[works[i]], look)
            if i + 1 < len(works) and works[i] == works[i + 1]:
                axes.tick_params(labelbottom=False)
            else:
                axes.set_xlabel(f"Predicted time ({unit})")
        handles = [Patch(facecolor=colour) for colour in look.shade.values()]
        names = [f"Degree {degree}" for degree in look.shade]
        share_legend(figure, [*handles, Patch(**_IDLE)], [*names, "Idle"], len(handles) + 1)
    return Drawn(_caption(plans), _alternative(plans), pd.concat(plans.values(), ignore_index=True))


def _work(groups: pd.DataFrame) -> tuple[int, int]:
    """What makes two plans comparable: equally many devices and equally many tokens."""
    return int(groups["devices"].iloc[0]), int(groups["tokens"].sum())


def _iteration(groups: pd.DataFrame, iteration: int, plan: str) -> pd.DataFrame:
    rows = groups[groups["iteration"] == iteration]
    if rows.empty:
        known = ", ".join(map(str, sorted(set(groups["iteration"]))))
        raise UserError(f"plan {plan}: iteration {iteration} is not in the plan; allowed: {known}")
    return rows


def _total_ms(groups: pd.DataFrame) -> float:
    """Micro-batches run one after another, each as long as its slowest group."""
    return float(groups.groupby("micro_batch")["predicted_ms"].max().sum())


def _draw_plan(axes: Axes, name: str, groups: pd.DataFrame, span: float, look: _Look) -> None:
    from matplotlib.patches import Rectangle

    devices, tokens = _work(groups)
    start = 0.0
    for _, micro_batch in groups.groupby("micro_batch", sort=True):
        end = start + float(micro_batch["predicted_ms"].max())
        axes.add_patch(
            Rectangle(
                (start / look.divisor, 0),
                (end - start) / look.divisor,
                devices,
                linewidth=0,
                **_IDLE,
            )
        )
        for group in micro_batch.to_dict("records"):
            _draw_group(axes, group, start, span, devices, look)
        axes.axvline(end / look.divisor, color=INK, linewidth=0.9)
        start = end
    count = groups["micro_batch"].nunique()
    time = f"{quantity(start / look.divisor)} {look.unit}"
    axes.set_title(
        f"{label(name)}: {time}, {count} micro-batch{'es' if count > 1 else ''}, {tokens:,} tokens"
    )
    axes.set(xlim=(0, span / look.divisor * 1.01), ylim=(devices, 0), ylabel="Device")
    step = max(1, devices // 2)
    axes.set_yticks(
        [rank + 0.5 for rank in range(0, devices, step)],
        [str(rank) for rank in range(0, devices, step)],
    )
    axes.grid(visible=False)


def _draw_group(
    axes: Axes, group: Mapping[Any, Any], start: float, span: float, devices: int, look: _Look
) -> None:
    """A block, with what it holds where there is room."""
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    degree, first, length = group["degree"], group["first_rank"], group["predicted_ms"]
    fill = look.shade[degree]
    place = (start / look.divisor, first)
    edge = min(0.7, 12 * look.panel_height_inches * degree / devices)
    axes.add_patch(
        Rectangle(
            place, length / look.divisor, degree, facecolor=fill, edgecolor="white", linewidth=edge
        )
    )
    count, tokens = group["sequences"], _tokens(group["tokens"])
    full, short = (
        f"{count} sequence{'s' if count > 1 else ''}\n{tokens} tokens",
        f"{count} seq., {tokens}",
    )
    texts = [
        text
        for text in (full, short)
        if look.fits(
            length / span, degree / devices, max(map(len, text.split("\n"))), text.count("\n") + 1
        )
    ]
    if not look.labels or not texts:
        return
    axes.text(
        (start + length / 2) / look.divisor,
        first + degree / 2,
        texts[0],
        ha="center",
        va="center",
        color="white" if sum(to_rgb(fill)) < 1.6 else INK,
        linespacing=1.2,
        clip_on=True,
    )


def _tokens(tokens: int) -> str:
    return f"{tokens / 1000:.3g}K" if tokens >= 1000 else str(tokens)


def _idle(groups: pd.DataFrame) -> float:
    """The share of the devices' time in which they wait for a slower group."""
    devices, _ = _work(groups)
    busy = float((groups["predicted_ms"] * groups["degree"]).sum())
    return 1 - busy / (devices * _total_ms(groups))


def _facts(name: str, groups: pd.DataFrame) -> str:
    degrees = sorted({int(degree) for degree in groups["degree"]})
    span = str(degrees[0]) if len(degrees) == 1 else f"{degrees[0]} to {degrees[-1]}"
    count = groups["micro_batch"].nunique()
    return (
        f"{label(name)} {quantity(_total_ms(groups) / 1e3)} s in {count}"
        f" micro-batch{'es' if count > 1 else ''} of degree {span}, devices idle"
        f" {100 * _idle(groups):.3g} %"
    )


def _caption(plans: Mapping[str, pd.DataFrame]) -> str:
    parts: dict[tuple[int, int], list[str]] = {}
    for name, groups in plans.items():
        parts.setdefault(_work(groups), []).append(_facts(name, groups))
    sentences = " ".join(
        f"{tokens:,} tokens on {devices} devices: {'; '.join(texts)}."
        for (devices, tokens), texts in parts.items()
    )
    return (
        f"{sentences} A block is a group of devices that share the tokens of its sequences (Ulysses"
        " sequence parallelism), darker with a higher degree; groups side by side form a"
        " micro-batch, which lasts as long as its slowest group. Times are predictions of the cost"
        " model, not measurements."
    )


def _alternative(plans: Mapping[str, pd.DataFrame]) -> str:
    facts = "; ".join(_facts(name, groups) for name, groups in plans.items())
    return f"Blocks of devices over predicted time, a panel per plan: {facts}."


FIGURE = Figure(
    settings=SequenceParallelPlanSettings,
    title="Sequence-parallel plans",
    paper="flexsp",
    inputs=(FigureInput("groups", "plan.groups", columns=_COLUMNS, plan_kind="sequence_parallel"),),
    draw=draw,
)
