"""Stage results with everything that a tracker can be given, and three invocations of
them in a real SQLite store and real offline W&B folders.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image

from railx.io import write_table
from railx.tracking.results import Curve, StageResult, TrackedRun
from railx.tracking.runs import log_runs
from tests.builders import checked

LATENCIES = ("sweep/latency", "offered")
TIMES = ("on_demand_50ms/iteration_ms", "iteration")


def verdict(claim: str, word: str, ours: float) -> dict[str, Any]:
    return {
        "claim": claim,
        "paper": "railx",
        "verdict": word,
        "ours": ours,
        "low": None,
        "high": None,
        "ours_text": f"{ours:g} times",
        "published_text": "2 times",
        "reason": f"ours is {ours:g}",
    }


def results(
    folder: Path,
    *,
    bound: float = 49.9,
    iteration_ms: Sequence[float] = (180.0, 181.0, 179.0),
    verdicts: Sequence[tuple[str, str, float]] = (("faster", "reproduced", 2.1),),
    module: str = "m1",
) -> list[StageResult]:
    """Five results of four stages; what they hold is given by what may change."""
    folder.mkdir(parents=True, exist_ok=True)
    small, large, table = folder / "small.json", folder / "large.bin", folder / "bounds.parquet"
    picture, page = folder / "cost.png", folder / "report.html"
    small.write_text("{}")
    large.write_bytes(bytes(7_000_000))
    write_table(table, [{"topology": "hyperx", "bound": bound, "note": None}])
    image.imsave(picture, np.zeros((8, 8, 3)))
    page.write_text("<h1>Report</h1>")
    times = tuple((float(i), value) for i, value in enumerate(iteration_ms, 1))
    return [
        StageResult(
            "network",
            "hyperx",
            f"network {bound}",
            {"family": "railx_hyperx", "m": 4, "nested": {"rails": [1, 2]}, "long": "x" * 10_000},
            {
                "chips": 1296,
                "all to all, GB/s": {"bound": bound},
                "name": "text",
                "nothing": None,
                "nan": float("nan"),
                "ok": True,
            },
            "analytic",
            (small, large, table),
            code={"railx.network": "n1"},
            packages={"numpy": "2.0"},
            inputs={"topology/hyperx/graph.parquet": "a" * 64},
            outputs={"network/hyperx/bounds.parquet": "b" * 64},
        ),
        StageResult(
            "packets",
            "hyperx",
            "packets",
            {f"key_{i}": i for i in range(250)},
            {"saturation": 1.375},
            "packet",
            curves=(Curve(LATENCIES[0], LATENCIES[1], ((0.5, 23.0), (1.0625, 31.0))),),
            points={"sweep.latency@0.5": 23.0},
            intervals={"sweep.latency@0.5": (22.0, 24.0)},
        ),
        StageResult(
            "training",
            "quick",
            f"training {module}",
            {"seed": 1},
            {"on_demand_50ms": {"iteration_ms": float(np.median(iteration_ms))}},
            "measured_cpu",
            curves=(Curve(TIMES[0], TIMES[1], times),),
            intervals={
                "on_demand_50ms.iteration_ms": (min(iteration_ms), max(iteration_ms)),
            },
            job={"seconds": 12.5, "cpu_seconds": 20.0},
            code={"training.run": module},
            packages={"numpy": "2.0"},
            contents=f"{iteration_ms}",
        ),
        StageResult(
            "evidence",
            "claims",
            f"evidence {verdicts}",
            {},
            {"published": {"claims": len(verdicts)}},
            verdicts=tuple(verdict(*row) for row in verdicts),
        ),
        StageResult("figure", "cost", "figure", {"dpi": 100}, {}, None, (picture, page)),
    ]


def at_once(job: Callable[..., None], given: Sequence[tuple[Any, ...]]) -> None:
    """Run a function in a process for each of the arguments, started together."""
    context = get_context("forkserver")
    # What takes long to import is imported once; processes are copies of that one.
    context.set_forkserver_preload(
        ["mlflow", "tests.tracking.test_store", "tests.tracking.test_wandb"]
    )
    together = context.Barrier(len(given))
    jobs = [context.Process(target=_together, args=(together, job, own)) for own in given]
    for one in jobs:
        one.start()
    for one in jobs:
        one.join()
    assert [one.exitcode for one in jobs] == [0] * len(given)


def _together(together: Any, job: Callable[..., None], given: tuple[Any, ...]) -> None:
    together.wait()
    job(*given)


@dataclass(frozen=True)
class Tracked:
    """A results folder and the runs of its invocations, by name."""

    folder: Path
    runs: dict[str, list[TrackedRun]]


@pytest.fixture(scope="session")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Tracked:
    """Three invocations: the first, the same again, and one in which much changed; run
    from a folder that must stay clean.
    """
    folder, sources, elsewhere = (
        tmp_path_factory.mktemp(name) for name in ("results", "sources", "elsewhere")
    )
    settings, before, environment = checked("tracking", "default"), Path.cwd(), dict(os.environ)
    changed = results(
        sources / "changed",
        bound=60.0,
        iteration_ms=(240.0, 241.0, 239.0),
        verdicts=(("faster", "not reproduced", 1.2), ("larger", "reproduced", 3.0)),
        module="m2",
    )
    changed = [replace(one, packages={"numpy": "2.1"}) if one.packages else one for one in changed]
    runs = {}
    os.chdir(elsewhere)
    try:
        for invocation, given, config in (
            ("run-1", results(sources / "first"), {"seed": 1, "runs": {"quick": {"steps": 3}}}),
            ("run-2", results(sources / "first"), {"seed": 1, "runs": {"quick": {"steps": 3}}}),
            ("run-3", changed, {"seed": 1, "runs": {"quick": {"steps": 5}}, "tenancy": "small"}),
        ):
            runs[invocation] = log_runs(
                given,
                settings,
                folder=folder,
                experiment="quick",
                invocation=invocation,
                commit="abc",
                config=config,
            )
    finally:
        os.chdir(before)
    assert list(elsewhere.iterdir()) == []
    assert {key for key in os.environ if key.startswith("WANDB")} == {
        key for key in environment if key.startswith("WANDB")
    }
    return Tracked(folder, runs)
