"""``railx train``: train a plan, also one with an edited schedule."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from railx.errors import UserError
from railx.places import check_writable
from workflow.commands.shared import add_flag, add_overrides, command, plan_of, print_summary

_EPILOG = """\
example, a pipeline planned, its order written out, edited and run:
  railx plan planner=pipeline_2x1 corpus=stdlib batch=small cluster=cpu_4_pipeline \\
    cluster.devices=2 model=tiny cost_model=analytic --out plan.json
  railx schedule plan.json --explicit --out mine.json
  railx train mine.json training.iterations=2 --out run

The model is the plan's. Corpus and seed have to be those that the plan was made with;
overrides choose them, the fabric and the training as for railx training."""
_GROUPS = ("seed", "corpus", "fabric", "training")


def add(commands: Any) -> None:
    line = "train a plan file, e.g. one whose schedule was edited"
    parser = command(commands, "train", line, f"{line.capitalize()}.", _EPILOG)
    parser.add_argument("plan", type=Path, help="a plan (railx plan ... --out)")
    add_overrides(parser, "corpus=..., training.iterations=..., ...")
    parser.add_argument(
        "--out", type=Path, required=True, help="the folder to write: corpus, traces, result"
    )
    add_flag(parser, "--json", "print one JSON object")
    parser.set_defaults(action=_train)


def _train(options: argparse.Namespace) -> None:
    from railx.planning.format.schedule import runnable, schedule_name
    from railx.settings import to_dict
    from training.settings import check_planner
    from workflow.config import compose_stage
    from workflow.stages import STAGES

    plan = plan_of(options.plan)
    check_planner(plan.planner, str(options.plan))
    if options.out.exists() and not options.out.is_dir():
        raise UserError(f"--out: got {options.out}, a file; allowed: a folder")
    check_writable(options.out, options.out)
    for batch in plan.pipeline_batches() if plan.kind == "pipeline" else ():
        for index, pipeline in enumerate(batch.pipelines):
            if not runnable(pipeline):
                raise UserError(
                    f"{options.plan}: batch {batch.iteration}, pipeline {index}: schedule"
                    f" {schedule_name(pipeline)} is simulated only; allowed: 1f1b, gpipe, or an"
                    " order without virtual stages and weights put off"
                )
    chosen = to_dict(compose_stage(options.overrides, _GROUPS))
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    corpus, training = STAGES["corpus"], STAGES["training"]
    sequences = out / "sequences.parquet"
    written = {name: out / Path(training.pattern(name)).name for name in training.outputs}
    with redirect_stdout(sys.stderr):
        corpus.make(
            {"corpus": chosen["corpus"], "seed": chosen["seed"]},
            item=chosen["corpus"]["name"],
            outputs={"sequences": sequences},
        )
        summary = training.make(
            {"plan": plan.planner, **{key: chosen[key] for key in ("seed", "fabric", "training")}},
            item="run",
            inputs={"plan": options.plan, "corpus": sequences},
            outputs=written,
        )
    print_summary(summary, options)
