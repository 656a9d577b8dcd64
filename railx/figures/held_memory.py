"""Memory of each pipeline stage after every pass, measured beside expected.

A panel for each stage of one replica. Lines are the bytes after each pass, dots the
bytes that the memory model expects, steps the number of live chunks.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

from railx.figures.figure import Axes, Canvas, CanvasSettings, DataFrame, Drawn, Height, declare
from railx.figures.panels import share_legend
from railx.figures.tables import Tables, where
from railx.figures.theme import INK, PALETTE, dot, label
from railx.figures.words import fidelity_line, quantity

__all__ = ["FIGURE", "HeldMemorySettings"]

_MIB = 2**20


@dataclass(frozen=True)
class HeldMemorySettings(CanvasSettings):
    """Memory of pipeline stages over time, measured beside predicted."""

    figure: Literal["held_memory"] = "held_memory"
    height_inches: Height = 6.4

    only: tuple[str, ...] = ()
    """Training runs to show, in that order; empty: all with pipelines."""


def draw(settings: HeldMemorySettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A column of panels for each run: the first rank of each stage of replica 0."""
    rows = where(tables.read("passes", "run", settings.only), replica=0, place=0)
    runs = list(rows["run"].unique())
    stages = int(rows["stage"].max()) + 1
    subtitle = """Bytes beyond those before the batch, after each pass of the last warm-up step:
        chunks alive, gradients, receives. Steps: chunks alive."""
    note = "Messages that have not left yet are measured, not expected"
    with canvas(subtitle, fidelity_line(rows["fidelity"], note)) as page:
        panels = page.subplots(stages, len(runs), squeeze=False, sharex="col")
        for stage, column in itertools.product(range(stages), range(len(runs))):
            axes, run = panels[stage, column], str(runs[column])
            part = where(rows, run=run, stage=stage).sort_values("position")
            if part.empty:
                axes.set_axis_off()
                continue
            _panel(axes, part)
            axes.set_title(f"{label(run)}, stage {stage}")
        for axes in panels[-1]:
            axes.set_xlabel("Passes done")
        legend = {
            "Held, measured": {"color": PALETTE[0]},
            "Held, expected": dot(INK, 3.5),
            "Chunks alive, counted": {"color": PALETTE[5], "drawstyle": "steps-post"},
        }
        share_legend(page, legend, 3)
    parts = []
    for (name, stage_number), part in rows.groupby(["run", "stage"], sort=False):
        most, expected = part["held_bytes"].max(), part["predicted_held_bytes"].max()
        parts.append(f"""{label(str(name))}, stage {stage_number}: {int(part["live_chunks"].max())}
            chunks and {quantity(float(most) / _MIB)} MiB at most, expected
            {int(part["predicted_live_chunks"].max())} and {quantity(float(expected) / _MIB)}""")
    caption = f"""What a stage holds after each pass of a batch. {"; ".join(parts)}. Measured: the
        storages of all tensors that the step made and that are still there (on a GPU, what the
        allocator has handed out). Expected: the tensors that the trainer keeps, counted from the
        plan."""
    alternative = f"""Lines of the memory that a stage holds after each pass with dots where it is
        expected, a panel for each stage: {"; ".join(parts)}."""
    return Drawn(caption, alternative, rows)


def _panel(axes: Axes, rows: DataFrame) -> None:
    from matplotlib.ticker import MaxNLocator

    done = rows["position"] + 1
    axes.plot(done, rows["held_bytes"] / _MIB, color=PALETTE[0])
    axes.plot(done, rows["predicted_held_bytes"] / _MIB, **dot(INK, 3.5))
    axes.set_ylim(0, 1.15 * float(rows[["held_bytes", "predicted_held_bytes"]].max().max()) / _MIB)
    axes.set_ylabel("Held (MiB)")
    other = axes.twinx()
    other.step(done, rows["live_chunks"], where="post", color=PALETTE[5], linewidth=1.2)
    other.set(ylim=(0, 2.2 * max(1, int(rows["live_chunks"].max()))), ylabel="Chunks alive")
    other.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    other.grid(visible=False)


FIGURE = declare(
    HeldMemorySettings,
    "Memory of pipeline stages over time",
    "infinipipe",
    draw,
    passes="training.passes: run plan device iteration rank replica stage place position kind"
    " chunk live_chunks predicted_live_chunks held_bytes peak_bytes predicted_held_bytes fidelity",
)
