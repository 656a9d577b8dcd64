"""One iteration of sequence-parallel plans: devices over predicted time, one block a
group, coloured by its degree.

Groups of a micro-batch run side by side and micro-batches one after another, so a block
that ends before its micro-batch does leaves its devices idle (FlexSP, section 4). Plans
are drawn one above the other on the same time axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch, Rectangle

from railx.figures.fidelity import fidelity_line
from railx.figures.settings import SequenceParallelPlanSettings
from railx.figures.tables import Inputs, item_name, selected_paths
from railx.figures.theme import INK, canvas, degree_colours, label, quantity, share_legend
from railx.io import read_json

__all__ = ["draw"]

_SCHEMA = "railx.plan/1"
_IDLE: dict[str, Any] = {"facecolor": "#f1f2f4", "edgecolor": "#c4c9d0", "hatch": "////"}


@dataclass(frozen=True)
class _Look:
    """What all panels share: unit of time, milliseconds in it, colour per degree,
    whether blocks are labelled, size of a panel.
    """

    unit: str
    divisor: float
    shade: dict[int, str]
    labels: bool
    panel_width_inches: float
    panel_height_inches: float

    def fits(self, width_share: float, height_share: float, characters: int, lines: int) -> bool:
        """Whether a text fits in a block that has these shares of a panel (a character
        is about 0.08 inches wide, a line 0.15).
        """
        return (
            self.panel_width_inches * width_share > 0.08 * characters
            and self.panel_height_inches * height_share > 0.15 * lines
        )


def draw(settings: SequenceParallelPlanSettings, inputs: Inputs, output: Path) -> None:
    """Draw ``settings.iteration`` of every sequence-parallel plan given; plans of
    another kind are passed over.

    Raises ValueError when none is left, or when a plan lacks the iteration.
    """
    plans = {}
    for path in selected_paths(inputs, "plan", settings.only):
        plan = read_json(path)
        if plan.get("schema") != _SCHEMA:
            raise ValueError(f"{path}: schema is {plan.get('schema')!r}; allowed: {_SCHEMA}")
        if plan["kind"] == "sequence_parallel":
            plans[item_name(path)] = (plan, _batch(plan, settings.iteration, path))
    if not plans:
        raise ValueError(
            "input plan: no sequence-parallel plan among the files; allowed: at least one"
        )
    # Plans of the same work share the time axis; others have one of their own.
    spans: dict[tuple[int, int], float] = {}
    for plan, batch in plans.values():
        spans[_work(plan, batch)] = max(spans.get(_work(plan, batch), 0.0), _total_ms(batch))
    unit, divisor = ("s", 1000.0) if max(spans.values()) >= 10_000 else ("ms", 1.0)
    degrees = {
        len(g["ranks"])
        for _, batch in plans.values()
        for m in batch["micro_batches"]
        for g in m["groups"]
    }
    shade = degree_colours(degrees, max(devices for devices, _ in spans))
    size = (settings.width_inches - 0.8, (settings.height_inches - 1.2) / len(plans) - 0.6)
    look = _Look(unit, divisor, shade, settings.label_blocks, *size)
    subtitle = (
        f"Iteration {settings.iteration}. Hatched: devices that wait for the slowest group of their"
        " micro-batch."
    )
    footnote = fidelity_line(["analytic"], "Times are the cost model's predictions")
    with canvas(
        settings, output, "Sequence-parallel groups over time", subtitle, footnote
    ) as figure:
        panels = figure.subplots(len(plans), 1, squeeze=False)[:, 0]
        works = [_work(plan, batch) for plan, batch in plans.values()]
        for i, (axes, (name, (plan, batch))) in enumerate(zip(panels, plans.items(), strict=True)):
            _draw_plan(axes, name, plan, batch, spans[works[i]], look)
            if i + 1 < len(works) and works[i] == works[i + 1]:
                axes.tick_params(labelbottom=False)
            else:
                axes.set_xlabel(f"Predicted time ({unit})")
        handles = [Patch(facecolor=colour) for colour in look.shade.values()]
        names = [f"Degree {degree}" for degree in look.shade]
        share_legend(figure, [*handles, Patch(**_IDLE)], [*names, "Idle"], len(handles) + 1)


def _work(plan: Mapping[str, Any], batch: Mapping[str, Any]) -> tuple[int, int]:
    """What makes two plans comparable: the same devices and the same number of tokens."""
    return int(plan["devices"]), sum(
        length
        for m in batch["micro_batches"]
        for group in m["groups"]
        for length in group["lengths"]
    )


def _batch(plan: Mapping[str, Any], iteration: int, path: Path) -> dict[str, Any]:
    batches: dict[int, dict[str, Any]] = {batch["iteration"]: batch for batch in plan["batches"]}
    if iteration not in batches:
        raise ValueError(
            f"{path}: iteration {iteration} is not in the plan; allowed:"
            f" {', '.join(map(str, sorted(batches)))}"
        )
    return batches[iteration]


def _total_ms(batch: Mapping[str, Any]) -> float:
    return float(sum(micro_batch["predicted_ms"] for micro_batch in batch["micro_batches"]))


def _draw_plan(
    axes: Axes,
    name: str,
    plan: Mapping[str, Any],
    batch: Mapping[str, Any],
    span: float,
    look: _Look,
) -> None:
    devices, tokens = _work(plan, batch)
    start = 0.0
    for micro_batch in batch["micro_batches"]:
        end = start + micro_batch["predicted_ms"]
        axes.add_patch(
            Rectangle(
                (start / look.divisor, 0),
                (end - start) / look.divisor,
                devices,
                linewidth=0,
                **_IDLE,
            )
        )
        for group in micro_batch["groups"]:
            _draw_group(axes, group, start, span, devices, look)
        axes.axvline(end / look.divisor, color=INK, linewidth=0.9)
        start = end
    count = len(batch["micro_batches"])
    time = f"{quantity(start / look.divisor)} {look.unit}"
    axes.set_title(
        f"{label(name)}: {time}, {count} micro-batch{'es' if count > 1 else ''}, {tokens:,} tokens"
    )
    axes.set(xlim=(0, span / look.divisor * 1.01), ylim=(devices, 0), ylabel="Device")
    step = max(1, devices // 4)
    axes.set_yticks(
        [rank + 0.5 for rank in range(0, devices, step)],
        [str(rank) for rank in range(0, devices, step)],
    )
    axes.grid(visible=False)


def _draw_group(
    axes: Axes, group: Mapping[str, Any], start: float, span: float, devices: int, look: _Look
) -> None:
    """A block, with what it holds where there is room."""
    degree, first, length = len(group["ranks"]), group["ranks"][0], group["predicted_ms"]
    fill = look.shade[degree]
    place = (start / look.divisor, first)
    edge = min(0.7, 12 * look.panel_height_inches * degree / devices)
    axes.add_patch(
        Rectangle(
            place, length / look.divisor, degree, facecolor=fill, edgecolor="white", linewidth=edge
        )
    )
    count, tokens = len(group["sequences"]), _tokens(sum(group["lengths"]))
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
        fontsize="x-small",
        color="white" if sum(to_rgb(fill)) < 1.6 else INK,
        linespacing=1.2,
        clip_on=True,
    )


def _tokens(tokens: int) -> str:
    return f"{tokens / 1000:.3g}K" if tokens >= 1000 else str(tokens)
