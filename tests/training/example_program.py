"""The ranks of examples/fsdp_pipeline.py under several settings, started by
``test_example.py``; the example itself is what a user runs.

Usage: example_program.py FOLDER SETTINGS, SETTINGS JSON: a list of ``{"name",
"backend", "micro_batches", "iterations", "variables"}``. Size and address stand in the
environment, as torchrun has them. Writes FOLDER/RANK.json: what the example
printed, the counts of the session after each iteration and the cycle that was found, by
setting.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import runpy
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed.fsdp
import torch.multiprocessing as mp

from railx_torch import backend, environment
from tests.builders import ROOT


def run(setting: dict[str, Any], rank: int) -> dict[str, Any]:
    """The example once."""
    os.environ.update(setting["variables"])
    of_railx = setting["backend"] == "railx"
    if of_railx:
        place = environment.read(os.environ)
        backend.configure(place.options, place.recorder(rank))
    counts: list[dict[str, int]] = []
    step = torch.optim.AdamW.step

    def counted(*arguments: Any, **keywords: Any) -> Any:
        if of_railx:
            counts.append(asdict(backend.statistics()))
        return step(*arguments, **keywords)

    torch.optim.AdamW.step = counted  # type: ignore[method-assign]
    sys.argv = [
        *("fsdp_pipeline.py", "--backend", setting["backend"]),
        *("--micro-batches", str(setting["micro_batches"])),
        *("--iterations", str(setting["iterations"])),
    ]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(ROOT / "examples" / "fsdp_pipeline.py"), run_name="__main__")
    finally:
        torch.optim.AdamW.step = step  # type: ignore[method-assign]
    cycle = backend._current().cycle if of_railx else None
    return {
        "printed": printed.getvalue(),
        "counts": counts,
        "cycle": [r.configuration.name for r in cycle.cycle for _ in range(r.count)]
        if cycle
        else [],
        "phase_changes": (len(cycle.cycle) or None) if cycle else None,
    }


def work(rank: int, folder: Path, settings: list[dict[str, Any]]) -> None:
    """All settings on one rank."""
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    faulthandler.dump_traceback_later(90)
    written = {setting["name"]: run(setting, rank) for setting in settings}
    (folder / f"{rank}.json").write_text(json.dumps(written))


if __name__ == "__main__":
    # Forks need not load torch again.
    arguments = (Path(sys.argv[1]), json.loads(sys.argv[2]))
    ranks = int(os.environ["WORLD_SIZE"])
    mp.start_processes(work, arguments, nprocs=ranks, start_method="fork")
