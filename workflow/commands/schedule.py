"""``railx schedule``: the schedule of a pipeline plan, shown and simulated."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from railx.errors import UserError, unwound_by_sigterm
from railx.places import check_writable
from workflow.commands.shared import add_flag, command, plan_of, print_table

if TYPE_CHECKING:
    from railx.performance.pipeline_cost import PipelineCost
    from railx.planning.format.plan import PipelineBatch, Plan

_EPILOG = """\
examples:
  railx schedule plan.json                                    # times, bubbles, memory by stage
  railx schedule plan.json --compare                          # every schedule for the same chunks
  railx schedule plan.json --orders                           # what each stage runs, in order
  railx schedule plan.json --gantt gantt.svg --memory memory.svg --chrome trace.json
  railx schedule plan.json --schedule searched --out faster.json
  railx schedule plan.json --explicit --out mine.json         # orders to edit by hand

Times and bytes are predictions of the plan's cost model. Interleaved and zero-bubble
schedules are simulated only; railx train refuses them."""
_CHOICES = ("1f1b", "gpipe", "interleaved", "zero_bubble", "searched", "best", "best_trained")
_PICTURES = (".svg", ".png", ".pdf")
_VIRTUAL_STAGES = 2


def add(commands: Any) -> None:
    line = "see, simulate, compare and export the schedule of a pipeline plan"
    parser = command(commands, "schedule", line, f"{line.capitalize()}.", _EPILOG)
    parser.add_argument("plan", type=Path, help="a plan of kind pipeline (railx plan ... --out)")
    parser.add_argument(
        "--iteration", type=int, metavar="N", help="the batch to show (default: the first)"
    )
    parser.add_argument(
        "--schedule",
        choices=_CHOICES,
        help="another schedule for the same chunks; searched: an order of our own, best: the"
        " fastest that fits, best_trained: of those that railx train runs (default: the plan's)",
    )
    parser.add_argument(
        "--virtual-stages",
        type=int,
        metavar="N",
        help=f"parts of the model on each stage, interleaved only (default: {_VIRTUAL_STAGES})",
    )
    shown = parser.add_mutually_exclusive_group()
    add_flag(shown, "--compare", "a line for every schedule of the same chunks")
    add_flag(shown, "--orders", "the order of each stage: F0, B0, W0, F0.1 ...")
    for option, what in (
        ("--gantt", "draw it (.svg, .png, .pdf)"),
        ("--memory", "draw what stages hold (.svg, .png, .pdf)"),
        ("--chrome", "write a Chrome trace (.json, for Perfetto)"),
        ("--out", "write the plan with this schedule (.json)"),
    ):
        parser.add_argument(option, type=Path, metavar="FILE", help=what)
    add_flag(parser, "--explicit", "write the orders outright, to edit them by hand")
    add_flag(parser, "--json", "print JSON, units in the key names")
    add_flag(parser, "--csv", "print CSV")
    parser.set_defaults(action=_schedule)


def _schedule(options: argparse.Namespace) -> None:
    import pyarrow as pa

    from railx.io import write_json
    from railx.planning.format.files import write_plan
    from railx.planning.format.parts import PlanError
    from railx.planning.format.predictions import cost_of
    from railx.planning.format.tables import chrome_trace, order_rows, stage_rows
    from railx.planning.pipeline.best_schedule import comparison_rows

    _check_files(options)
    plan = plan_of(options.plan)
    plan.pipeline_batches()
    try:
        cost = cost_of(plan)
    except PlanError as error:
        raise PlanError(f"{options.plan}: {error}") from None
    if options.virtual_stages is not None:
        _check_virtual_stages(options.virtual_stages, plan)
    plan = _rescheduled(plan, cost, options)
    batch = _batch(plan, options.iteration)
    if options.chrome is not None:
        write_json(options.chrome, chrome_trace(batch, cost))
    for option, figure in (("gantt", "pipeline_schedule"), ("memory", "stage_memory")):
        if (picture := getattr(options, option)) is not None:
            _draw(figure, plan, batch, cost, picture)
    if options.out is not None:
        write_plan(options.out, plan)
    if options.compare:
        parts = options.virtual_stages or _VIRTUAL_STAGES
        rows = comparison_rows(batch, cost, parts)
    elif options.orders:
        rows = order_rows(batch)
    else:
        rows = stage_rows(batch, cost)
    print_table(pa.Table.from_pylist(rows), options)
    if options.json or options.csv:
        return
    print(f"\n{_summary(batch, cost)}")
    for path in (options.chrome, options.gantt, options.memory, options.out):
        if path is not None:
            print(f"written: {path}")


def _check_files(options: argparse.Namespace) -> None:
    """Refuse what cannot be written before anything is computed."""
    taken: set[Path] = set()
    for option in ("gantt", "memory", "chrome", "out"):
        endings = _PICTURES if option in ("gantt", "memory") else (".json",)
        path: Path | None = getattr(options, option)
        if path is None:
            continue
        if path.suffix not in endings or path.is_dir() or path in taken:
            allowed = f"a file that ends in {' or '.join(endings)}, one for each option"
            raise UserError(f"--{option}: got {path}; allowed: {allowed}")
        check_writable(path, path.parent, f"--{option}")
        taken.add(path)
    if options.virtual_stages is not None and options.virtual_stages < 2:
        raise UserError(f"--virtual-stages: got {options.virtual_stages}; allowed: at least 2")
    if options.explicit and options.out is None:
        raise UserError("--explicit: got no --out; allowed: with --out, the plan to write")


def _check_virtual_stages(parts: int, plan: Plan) -> None:
    from railx.planning.format.plan import layers_of

    layers = layers_of(plan)
    stages = max(
        pipeline.stages for batch in plan.pipeline_batches() for pipeline in batch.pipelines
    )
    if layers is not None and parts * stages > layers:
        most = layers // stages
        allowed = f"2 to {most}" if most > 1 else "none"
        got = f"--virtual-stages: got {parts}"
        raise UserError(f"{got}; allowed: {allowed}, for {stages} stages of {layers} layers in all")


def _batch(plan: Plan, iteration: int | None) -> PipelineBatch:
    batches = plan.pipeline_batches()
    if iteration is None:
        return batches[0]
    for batch in batches:
        if batch.iteration == iteration:
            return batch
    iterations = ", ".join(str(batch.iteration) for batch in batches)
    raise UserError(f"--iteration: got {iteration}; allowed: {iterations}")


def _rescheduled(plan: Plan, cost: PipelineCost | None, options: argparse.Namespace) -> Plan:
    from railx.planning.format.schedule import TRAINABLE_SCHEDULES, ordered
    from railx.planning.pipeline.best_schedule import (
        CANDIDATE_SCHEDULES,
        SCHEDULE_ACCOUNT_KEYS,
        best_batch,
        with_schedule,
    )

    name, batches = options.schedule, []
    for batch in plan.pipeline_batches():
        changed = batch
        if name in ("best", "best_trained"):
            among = CANDIDATE_SCHEDULES if name == "best" else TRAINABLE_SCHEDULES
            changed = best_batch(batch, cost, among)
        elif name is not None:
            pipelines = []
            for index, pipeline in enumerate(batch.pipelines):
                parts = options.virtual_stages or _VIRTUAL_STAGES
                rescheduled = with_schedule(pipeline, name, cost, parts)
                if rescheduled is None:
                    raise UserError(
                        f"--schedule: got {name}; allowed for batch {batch.iteration}, pipeline"
                        f" {index}: one that its layers and its memory allow"
                    )
                pipelines.append(rescheduled)
            # What was tried before was tried for another choice.
            solver = {
                key: value
                for key, value in batch.solver.items()
                if key not in SCHEDULE_ACCOUNT_KEYS
            }
            changed = replace(batch, pipelines=tuple(pipelines), solver=solver)
        if options.explicit:
            changed = replace(
                changed,
                pipelines=tuple(
                    replace(pipeline, order=ordered(pipeline)) for pipeline in changed.pipelines
                ),
            )
        batches.append(changed)
    return replace(plan, batches=tuple(batches))


def _summary(batch: PipelineBatch, cost: PipelineCost | None) -> str:
    from railx.planning.format.predictions import fits
    from railx.planning.format.schedule import runnable

    note = "" if all(map(runnable, batch.pipelines)) else "; simulated only, railx train refuses it"
    if cost is not None and not all(fits(pipeline, cost) for pipeline in batch.pipelines):
        note += "; more than the stages' memory holds"
    count = len(batch.pipelines)
    return (
        f"batch {batch.iteration}: {batch.predicted_ms:.6g} ms predicted, {count}"
        f" pipeline{'s' if count > 1 else ''}{note}"
    )


def _draw(
    figure: str, plan: Plan, batch: PipelineBatch, cost: PipelineCost | None, path: Path
) -> None:
    from railx.figures import FigureSettings, draw_figure
    from railx.io import atomic_path, write_table
    from railx.planning.format.tables import memory_rows, plan_rows, schedule_rows
    from railx.settings import load
    from workflow.config import read_choice

    shown = replace(plan, batches=(batch,))
    settings = read_choice("figure", figure)
    settings |= {"only": [], "iteration": batch.iteration}
    rows = {
        "pipeline_schedule": {
            "schedule": schedule_rows(shown, plan.planner),
            "groups": plan_rows(shown, plan.planner, ""),
        },
        "stage_memory": {"memory": memory_rows(shown, plan.planner, cost)},
    }[figure]
    with (
        unwound_by_sigterm(),
        tempfile.TemporaryDirectory(prefix="railx-") as scratch,
        atomic_path(path) as beside,
    ):
        folder = Path(scratch)
        tables = {name: [folder / f"{name}.parquet"] for name in rows}
        for name, table in rows.items():
            write_table(tables[name][0], table)
        draw_figure(load(FigureSettings, settings, "figure"), tables, folder / f"{path.stem}.svg")
        shutil.copyfile(folder / path.name, beside)
