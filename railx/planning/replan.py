"""Plan single batches of a plan again: ``python -m railx.planning.replan PLAN``.

The process reads batch indices from standard input, one per line, and writes the fields
of an :class:`Answer`, pickled, to standard output. It ends with its input. Sequences,
planner, cluster, model and cost model are those of the plan.
"""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from railx.errors import UserError
from railx.planning.format.files import read_plan
from railx.planning.format.parts import PlanError
from railx.planning.format.plan import Batch, Plan
from railx.planning.format.predictions import NAMED, named_cost_model
from railx.planning.make import plan_batches
from railx.planning.planner import PlannerBase, PlanningTask
from railx.planning.planners import PlannerSettings
from railx.settings import load
from railx.workload.batches import SampledBatch

#: Keys of a plan's ``settings`` required for planning again.
_INPUTS = ("planner", *NAMED, "seed")


@dataclass(frozen=True)
class Answer:
    """A batch and its planning time, or a one-line error."""

    batch: Batch | None
    planning_ms: float
    error: str | None = None


def check_inputs(plan: Plan) -> None:
    """Refuse a plan without the settings of its planner; PlanError names the key."""
    for key in _INPUTS:
        if key not in plan.settings:
            again = "allowed where it is to be planned once more: a plan that a planner made"
            raise PlanError(f"settings.{key}: is missing; {again}, with {', '.join(_INPUTS)}")


def replanner(plan: Plan) -> Callable[[int], Batch]:
    """A function that plans a batch of the plan again, by its index.

    SettingsError or PlanError for invalid settings of the plan.
    """
    check_inputs(plan)
    costs = named_cost_model(plan)
    planner: PlannerBase = load(PlannerSettings, plan.settings["planner"], "planner")

    def replan(index: int) -> Batch:
        before = plan.batches[index]
        rows, lengths = (np.array(part, np.int64) for part in (before.sequences, before.lengths))
        drawn = SampledBatch(rows, lengths)
        task = PlanningTask(**vars(costs), batches=(drawn,), seed=plan.settings["seed"])
        (planned,) = plan_batches(planner, task)
        again: Batch = replace(planned, iteration=before.iteration)
        return again

    return replan


def main(arguments: Sequence[str] | None = None) -> int:
    """The process; returns the exit code."""
    (path,) = sys.argv[1:] if arguments is None else arguments
    # Standard output carries answers alone: prints of a solver go to standard error.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    replan: Callable[[int], Any] | None = None
    while True:
        index = requests.get()
        begin = time.perf_counter()
        try:
            if replan is None:
                replan = replanner(read_plan(Path(path)))
                begin = time.perf_counter()
            answer = Answer(replan(index), (time.perf_counter() - begin) * 1e3)
        except ImportError as error:
            answer = Answer(None, 0.0, f"the plan's planner needs {error.name}, not here")
        except (UserError, OSError) as error:
            answer = Answer(None, 0.0, str(error))
        # Plain data: the class of this module as a program differs from the importer's.
        pickle.dump((answer.batch, answer.planning_ms, answer.error), answers)
        answers.flush()


def _read(requests: queue.SimpleQueue[int]) -> None:
    """Queue requests; end the process with its input, even within a batch."""
    for line in sys.stdin:
        requests.put(int(line))
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
