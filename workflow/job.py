"""A job of the pipeline: its log, inputs as they were made, its stage, its record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from railx.io import write_json
from railx.progress import told
from railx.provenance.intact import check_intact
from railx.provenance.jobs import job_record, load_average, now_utc
from workflow.log import logged
from workflow.stages import STAGES

__all__ = ["make"]


def make(job: Any) -> None:
    """Run the stage that is named as the rule of ``job``, as Snakemake gives it.

    Beside the results stands the record of what they were made of.
    """
    with logged(job.log[0]) as log:
        started_utc, load_before = now_utc(), load_average()
        written = dict(job.output.items())
        record = written.pop("record")
        item = next(iter(job.wildcards), "")
        inputs = {
            name: [files] if isinstance(files, str) else list(files)
            for name, files in job.input.items()
        }
        log.begins(job.rule, item, job.params.settings, inputs)
        check_intact(job.input, Path(record.split("/provenance/")[0]))
        with told(" ".join(filter(None, [job.rule, item])), log.progress):
            STAGES[job.rule].make(job.params.settings, item=item, inputs=inputs, outputs=written)
        log.ends(written)
        write_json(
            record,
            job_record(
                stage=job.rule,
                item=item,
                code=job.params.code["digest"],
                packages=job.params.code["packages"],
                settings=job.params.settings,
                inputs=job.input,
                outputs=written.values(),
                started_utc=started_utc,
                load_before=load_before,
            ),
        )
