"""One iteration of sequence-parallel plans: devices over predicted time.

One block per group, coloured by its degree. Groups of a micro-batch run side by side
and micro-batches one after another, so a block that ends before its micro-batch does
leaves its devices idle (FlexSP, section 4). Plans are drawn one above the other on the
same time axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from railx.errors import UserError
from railx.figures.figure import Axes, Canvas, DataFrame, Drawn, Height, PlanChoice, Tables, declare
from railx.figures.panels import patch, share_legend, time_unit
from railx.figures.tables import plans_at, records, stack
from railx.figures.theme import INK, degree_colours, label
from railx.figures.words import counted, fidelity_line, quantity

__all__ = ["FIGURE", "SequenceParallelPlanSettings"]

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

    def fits(self, text: str, width_share: float, height_share: float) -> bool:
        """Whether a text fits in a block that has these shares of a panel.

        A character is about 0.08 inches wide, a line 0.15.
        """
        lines = text.split("\n")
        return self.panel_width_inches * width_share > 0.08 * max(
            map(len, lines)
        ) and self.panel_height_inches * height_share > 0.15 * len(lines)


@dataclass(frozen=True)
class SequenceParallelPlanSettings(PlanChoice):
    """One iteration of sequence-parallel plans, one above the other."""

    figure: Literal["sequence_parallel_plan"] = "sequence_parallel_plan"
    height_inches: Height = 10.5

    label_blocks: bool = True
    """Whether blocks say what they hold, where there is room."""


def draw(settings: SequenceParallelPlanSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Draw ``settings.iteration`` of every sequence-parallel plan given.

    Plans of another kind are passed over. Raises ValueError when none is left, or when
    a plan lacks the iteration.
    """
    frame = tables.read("groups", "plan", settings.only)
    frame = frame[frame["kind"] == "sequence_parallel"]
    if frame.empty:
        raise UserError(
            "input groups: no sequence-parallel plan among the tables; allowed: at least one"
        )
    plans = plans_at(frame, "plan", iteration=settings.iteration)
    if not settings.only:  # those of the same work one below the other
        order = list(dict.fromkeys(map(_work, plans.values())))
        plans = dict(sorted(plans.items(), key=lambda item: order.index(_work(item[1]))))
    # Plans of the same work share the time axis; others have an axis each.
    spans: dict[tuple[int, int], float] = {}
    for groups in plans.values():
        spans[_work(groups)] = max(spans.get(_work(groups), 0.0), _total_ms(groups))
    unit, divisor = time_unit(max(spans.values()))
    degrees = {int(degree) for groups in plans.values() for degree in groups["degree"]}
    shade = degree_colours(degrees, max(devices for devices, _ in spans))
    size = (settings.width_inches - 0.8, (settings.height_inches - 1.2) / len(plans) - 0.6)
    look = _Look(unit, divisor, shade, settings.label_blocks, *size)
    subtitle = f"""Iteration {settings.iteration}; plans of the same batch have the same axis of
        time. Hatched: devices that wait for the slowest group of their micro-batch."""
    footnote = fidelity_line(["analytic"], "Times are the cost model's predictions")
    with canvas(subtitle, footnote, title="Sequence-parallel groups over time") as page:
        panels = page.subplots(len(plans), 1, squeeze=False)[:, 0]
        works = [*map(_work, plans.values()), None]
        for i, (axes, (name, groups)) in enumerate(zip(panels, plans.items(), strict=True)):
            _draw_plan(axes, name, groups, spans[_work(groups)], look)
            if works[i] == works[i + 1]:
                axes.tick_params(labelbottom=False)
            else:
                axes.set_xlabel(f"Predicted time ({unit})")
        legend = {f"Degree {degree}": patch(colour) for degree, colour in shade.items()}
        legend["Idle"] = patch(_IDLE["facecolor"], edgecolor=_IDLE["edgecolor"], hatch="////")
        share_legend(page, legend, len(legend))
    return Drawn(_caption(plans), _alternative(plans), stack(plans.values()))


def _work(groups: DataFrame) -> tuple[int, int]:
    """What makes two plans comparable: equally many devices and equally many tokens."""
    return int(groups["devices"].iloc[0]), int(groups["tokens"].sum())


def _total_ms(groups: DataFrame) -> float:
    """Micro-batches run one after another, each as long as its slowest group."""
    return float(groups.groupby("micro_batch")["predicted_ms"].max().sum())


def _draw_plan(axes: Axes, name: str, groups: DataFrame, span: float, look: _Look) -> None:
    from matplotlib.patches import Rectangle

    devices, tokens = _work(groups)
    start = 0.0
    for _, micro_batch in groups.groupby("micro_batch", sort=True):
        end = start + float(micro_batch["predicted_ms"].max())
        width = (end - start) / look.divisor
        axes.add_patch(Rectangle((start / look.divisor, 0), width, devices, linewidth=0, **_IDLE))
        for group in records(micro_batch):
            _draw_group(axes, group, start, span, devices, look)
        axes.axvline(end / look.divisor, color=INK, linewidth=0.9)
        start = end
    time = f"{quantity(start / look.divisor)} {look.unit}"
    axes.set_title(f"{label(name)}: {time}, {_micro_batches(groups)}, {tokens:,} tokens")
    axes.set(xlim=(0, span / look.divisor * 1.01), ylim=(devices, 0), ylabel="Device")
    ranks = range(0, devices, max(1, devices // 2))
    axes.set_yticks([rank + 0.5 for rank in ranks], [str(rank) for rank in ranks])
    axes.grid(visible=False)


def _micro_batches(groups: DataFrame) -> str:
    return counted(groups["micro_batch"].nunique(), "micro-batch", "micro-batches")


def _draw_group(
    axes: Axes, group: Mapping[Any, Any], start: float, span: float, devices: int, look: _Look
) -> None:
    """A block, with what it holds where there is room."""
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    degree, first, length = group["degree"], group["first_rank"], group["predicted_ms"]
    fill = look.shade[degree]
    edge = min(0.7, 12 * look.panel_height_inches * degree / devices)
    style: dict[str, Any] = {"facecolor": fill, "edgecolor": "white", "linewidth": edge}
    corner = (start / look.divisor, first)
    axes.add_patch(Rectangle(corner, length / look.divisor, degree, **style))
    count, tokens = group["sequences"], _tokens(group["tokens"])
    texts = (f"{counted(count, 'sequence')}\n{tokens} tokens", f"{count} seq., {tokens}")
    fits = [text for text in texts if look.fits(text, length / span, degree / devices)]
    if look.labels and fits:
        centred: dict[str, Any] = {"ha": "center", "va": "center", "linespacing": 1.2}
        colour = "white" if sum(to_rgb(fill)) < 1.6 else INK
        at = ((start + length / 2) / look.divisor, first + degree / 2)
        axes.text(*at, fits[0], color=colour, clip_on=True, **centred)


def _tokens(tokens: int) -> str:
    return f"{tokens / 1000:.3g}K" if tokens >= 1000 else str(tokens)


def _facts(name: str, groups: DataFrame) -> str:
    degrees = sorted({int(degree) for degree in groups["degree"]})
    span = str(degrees[0]) if len(degrees) == 1 else f"{degrees[0]} to {degrees[-1]}"
    total, (devices, _) = _total_ms(groups), _work(groups)
    busy = float((groups["predicted_ms"] * groups["degree"]).sum()) / (devices * total)
    return f"""{label(name)} {quantity(total / 1e3)} s in {_micro_batches(groups)} of degree {span},
        devices idle {100 * (1 - busy):.3g} %"""


def _caption(plans: Mapping[str, DataFrame]) -> str:
    parts: dict[tuple[int, int], list[str]] = {}
    for name, groups in plans.items():
        parts.setdefault(_work(groups), []).append(_facts(name, groups))
    sentences = " ".join(
        f"{tokens:,} tokens on {devices} devices: {'; '.join(texts)}."
        for (devices, tokens), texts in parts.items()
    )
    return f"""{sentences} A block is a group of devices that share the tokens of its sequences
        (Ulysses sequence parallelism), darker with a higher degree; groups side by side form a
        micro-batch, which lasts as long as its slowest group. Times are predictions of the cost
        model, not measurements."""


def _alternative(plans: Mapping[str, DataFrame]) -> str:
    facts = "; ".join(_facts(name, groups) for name, groups in plans.items())
    return f"Blocks of devices over predicted time, a panel per plan: {facts}."


FIGURE = declare(
    SequenceParallelPlanSettings,
    "Sequence-parallel plans",
    "flexsp",
    draw,
    groups="plan.groups (sequence_parallel): plan kind devices iteration micro_batch first_rank"
    " degree sequences tokens predicted_ms",
)
