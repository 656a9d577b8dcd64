"""Every rule: its stage, named as the rule, run on the rule's files and settings.

Beside the results stands the record of what they were made of.
"""

from railx.io import write_json
from railx.provenance.jobs import job_record, load_average, now_utc
from workflow.log import logged
from workflow.stages import STAGES

with logged(snakemake.log[0]):
    started_utc, load_before = now_utc(), load_average()
    written = dict(snakemake.output.items())
    record = written.pop("record")
    item = next(iter(snakemake.wildcards), "")
    STAGES[snakemake.rule].make(
        snakemake.params.settings,
        item=item,
        inputs={
            name: files if isinstance(files, str) else list(files)
            for name, files in snakemake.input.items()
        },
        outputs=written,
    )
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
