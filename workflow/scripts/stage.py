"""Every rule: its stage, named as the rule, run on the rule's files and settings.

Beside the results stands the record of what they were made of.
"""

from pathlib import Path

from railx.io import write_json
from railx.progress import told
from railx.provenance.intact import check_intact
from railx.provenance.jobs import job_record, load_average, now_utc
from workflow.log import logged
from workflow.stages import STAGES

with logged(snakemake.log[0]) as log:
    started_utc, load_before = now_utc(), load_average()
    written = dict(snakemake.output.items())
    record = written.pop("record")
    item = next(iter(snakemake.wildcards), "")
    inputs = {
        name: [files] if isinstance(files, str) else list(files)
        for name, files in snakemake.input.items()
    }
    log.begins(snakemake.rule, item, snakemake.params.settings, inputs)
    check_intact(snakemake.input, Path(record.split("/provenance/")[0]))
    with told(" ".join(filter(None, [snakemake.rule, item])), log.progress):
        STAGES[snakemake.rule].make(
            snakemake.params.settings,
            item=item,
            inputs=inputs,
            outputs=written,
        )
    log.ends(written)
    write_json(
        record,
        job_record(
            stage=snakemake.rule,
            item=item,
            code=snakemake.params.code["digest"],
            packages=snakemake.params.code["packages"],
            settings=snakemake.params.settings,
            inputs=snakemake.input,
            outputs=written.values(),
            started_utc=started_utc,
            load_before=load_before,
        ),
    )
