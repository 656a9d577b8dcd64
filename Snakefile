# What a run makes. One experiment is composed from conf/ by Hydra, checked, and handed out to the rules, each its own part.
#
#   snakemake --config experiment=quick
#   snakemake --config experiment=quick tracking=off hydra="topologies.torus_2d.n=3 seed=3"
#
# Group choices are plain --config entries; dotted Hydra overrides go into `hydra`.

import atexit
import gc
import sys

from snakemake.utils import min_version

min_version("9.3")

# Snakemake makes millions of objects of the jobs and keeps them: collecting garbage among them takes a sixth of a dry run, and
# another sixth when Python ends, which looks at all that is not frozen. DuckDB prints what of its own is frozen.
gc.disable()
atexit.register(lambda: "duckdb" in sys.modules or gc.freeze())


include: "workflow/rules/common.smk"


localrules:
    all,


onstart:
    check_jobs()
    # With a limit on jobs a second, Snakemake looks again a second after every look at which a ready job had no core, so that each
    # job that ends adds a look a second for good. Cores, and `jobs` of a cluster's profile, are limit enough.
    workflow.scheduler.job_rate_limiter = None
    gc.enable()


rule all:
    default_target: True
    input:
        report=files_out("report")["report"],
        crate=files_out("crate")["crate"],
        tracking=files_out("tracking")["tracking"],
        circuits=[path for key in ("circuits", "csv") for path in files_of(EXPERIMENT, f"circuits.{key}").values()],


include: "workflow/rules/measured.smk"
include: "workflow/rules/report.smk"


# The other stages: their inputs, outputs and settings are those of their declaration, STAGE in workflow/stages/NAME.py.
for name in [name for name in STAGES if not workflow.is_rule(name)]:

    rule:
        name:
            name
        input:
            unpack(files_in(name)),
        output:
            **files_out(name),
        params:
            settings=settings(name),
            code=code(name),
        threads: threads_of(name)
        log:
            log_file(name),
        benchmark:
            benchmark_file(name)
        message:
            words(name)
        script:
            "workflow/scripts/stage.py"


# What `snakemake --list` says of a rule.
for name, stage in STAGES.items():
    workflow.get_rule(name).docstring = stage.help


report: "workflow/report/workflow.rst"
