"""Stage profile: a model -> time and memory of a layer (``training.profile``)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from workflow.outputs import Json, Table, columns
from workflow.stage import ByHand, Item, Job, Needs, Stage, Summary, Tracked
from workflow.watch import run_module


def run(job: Job) -> Summary:
    """Measure all points and fit a cost model; return the summary."""
    from railx.io import read_json
    from railx.performance.layer_profile import ProfileSettings, compared, fit_profile
    from railx.settings import to_dict

    settings: ProfileSettings = job.load(ProfileSettings)
    name = job.item or settings.model.name
    with tempfile.TemporaryDirectory(prefix="railx-") as scratch:
        measured = Path(scratch) / "points.json"
        # torch's profiler counts memory on a CPU, and says each time that it does.
        quiet = {"KINETO_LOG_LEVEL": "99"}
        run_module("training.profile", f"profile {name}", settings, measured, **quiet)
        rows = [{"profile": name, **row} for row in read_json(measured)]
    fitted = fit_profile(rows, settings.held_out_seed)
    fit = to_dict(fitted)
    job.write_table("points", compared(rows, fitted, settings.held_out_seed))
    job.write_json("fit", fit)
    return {"profile": name, **fit}


_POINTS = columns(
    "text profile model device dtype torch attention, flag compiled, text part,"
    " integer degree context tokens, flag checkpointed, real forward_ms backward_ms,"
    " integer kept_bytes left_bytes peak_bytes exchanged_bytes, text clock, integer repeats,"
    " flag held_out,"
    " real predicted_ms predicted_forward_ms error predicted_kept_bytes memory_error"
    " published_error, text fidelity"
)

STAGE = Stage(
    name="profile",
    help="time and memory of a decoder layer on the device at hand",
    message="Profile {item}",
    item=Item("profile", lambda experiment: experiment["profiles"]),
    settings=lambda experiment, profile: experiment["profiles"][profile],
    outputs={"points": Table(_POINTS, printed="Profile {item}"), "fit": Json(), "summary": Json()},
    run=run,
    # The digest reads imports; what measures is a process of its own.
    modules=lambda *_: ("training.profile",),
    # Layers run on one device, as a GPU's node has it.
    needs=lambda experiment, profile: Needs(device=experiment["profiles"][profile]["device"]),
    by_hand=ByHand(
        groups=("profile",),
        example="railx profile profile=tiny model@profile.model=tiny profile.repeats=3"
        " --out points.parquet",
        out="the table of points (.parquet) or the fit (.json) to write",
        writes={".parquet": "points", ".json": "fit"},
    ),
    tracked=Tracked("summary", ("points", "fit")),
)
