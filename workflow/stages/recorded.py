"""Stage recorded: records of runs on a GPU -> tables.

Records are in results/recorded/gpu, a folder for each recording (docs/gpu.md). Without
one the tables are there and empty.
"""

from __future__ import annotations

from pathlib import Path

from railx.errors import UserError
from workflow.outputs import Json, Table, columns
from workflow.stage import Job, Stage, Summary

#: Where recordings are kept, and the records of each.
RECORDINGS = Path("results/recorded/gpu")
_RECORDS = "*/steps/*.json"


def run(job: Job) -> Summary:
    """Gather all records as tables, return counts; UserError for one of no GPU."""
    from training.records import read_record

    steps, checks, measurements = [], [], []
    for path in job.inputs["records"]:
        record = read_record(path)
        if record.fidelity != "measured_gpu":
            raise UserError(f"{path}: {record.fidelity}; allowed: records of a run on a GPU")
        name = {"recording": path.parent.parent.name, "step": record.step}
        facts = {key: getattr(record, key) for key in ("part", "status", "why", "seconds")}
        steps.append(name | facts | vars(record.provenance) | {"fidelity": record.fidelity})
        of = {"device_name": record.provenance.device_name}
        checks += [{**name, **of, **vars(check)} for check in record.checks]
        measurements += [{**name, **of, **vars(measurement)} for measurement in record.measurements]
    job.write_table("steps", steps)
    job.write_table("checks", checks)
    job.write_table("measurements", measurements)
    recordings = len({row["recording"] for row in steps})
    return {
        "recordings": recordings,
        "records": len(steps),
        "note": "" if recordings else "nothing was measured on a GPU",
    }


_NAME = columns("text recording step")
_STEPS = _NAME | columns(
    "integer part, text status why, real seconds,"
    " text commit device device_name driver cuda nccl torch python, integer cores seed,"
    " text command started fidelity"
)
_CHECKS = _NAME | columns(
    "text device_name name subject, real found, text relation, real expected, text unit,"
    " flag passed goal, text fidelity"
)
_MEASUREMENTS = _NAME | columns(
    "text device_name name subject sample, real value, text unit fidelity"
)

STAGE = Stage(
    name="recorded",
    help="records of runs on a GPU as tables",
    message="Records of runs on a GPU",
    inputs=lambda experiment, _: {"records": sorted(RECORDINGS.glob(_RECORDS))},
    outputs={
        "steps": Table(_STEPS, printed="Measured on a GPU (no row: nothing was)"),
        "checks": Table(_CHECKS),
        "measurements": Table(_MEASUREMENTS),
        "summary": Json(),
    },
    run=run,
)
