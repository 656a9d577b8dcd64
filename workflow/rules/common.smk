# Shared by all rules: the composed experiment, and what a rule takes from the declaration of its stage.

import os
import sys
from pathlib import Path

# The packages are those beside this file, for the jobs too: they have the same environment.
ROOT = str(Path(workflow.current_basedir).parents[1])
sys.path.insert(0, ROOT)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))

from railx.errors import UserError
from workflow.carried import find_carried
from workflow.cluster import asked, check_devices, check_nodes, profile_resources
from workflow.experiment import checked_experiment, overrides_from
from workflow.places import (
    check_cores,
    check_folder,
    check_sources,
    check_targets,
    hold_folder,
    quote_interpreter,
)
from workflow.resources import check_resources
from workflow.stages import (
    STAGES,
    code_of,
    files_of,
    inputs_of,
    packages_of,
    provenance_path,
    results_folder,
)
from workflow.stages.figure import check_columns


def composed():
    """The experiment of this run as plain data; what is wrong with it, or with resources/, ends the run in one line."""
    try:
        check_cores(workflow.resource_settings.cores)
        check_resources()
        experiment = checked_experiment(overrides_from(config))
        check_folder(results_folder(experiment))
        check_sources(experiment)
        check_targets(experiment, sys.argv[1:])
        check_columns(experiment)
        check_nodes(workflow.resource_settings, STAGES, experiment)
        return experiment
    except (UserError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


quote_interpreter()
find_carried()
EXPERIMENT = composed()
RESULTS = results_folder(EXPERIMENT)

# A lock that a killed run left behind is cleared; one that a running pipeline holds stays.
FOLDER = hold_folder(Path(".snakemake"))


# What measures takes every core of one machine; on a cluster its profile says how many it asks for.
WHOLE_MACHINE = workflow.resource_settings.cores or 1


# Not the names of all items, which Snakemake would write into the pattern of every file: `check_targets` knows them.
wildcard_constraints:
    **{stage.item.wildcard: "[^/]+" for stage in STAGES.values() if stage.item},


def check_jobs():
    """The devices of the jobs that are about to start; what is not here ends the run in one line."""
    try:
        check_devices(workflow.dag.needrun_jobs(), workflow.resource_settings, STAGES, EXPERIMENT)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def item_of(wildcards):
    """What a job is for: its one wildcard, or nothing."""
    return next(iter(wildcards), "")


def files_in(name):
    """The files that a stage reads."""
    return lambda wildcards: inputs_of(STAGES[name], EXPERIMENT, item_of(wildcards))


def files_out(name):
    """The files that a stage writes, by name, and the record of how they were made."""
    stage = STAGES[name]
    written = {key: str(RESULTS / stage.pattern(key)) for key in stage.outputs}
    return written | {"record": str(RESULTS / provenance_path(stage, stage.wildcard))}


def compares(name, item):
    """Whether settings and code of a job are compared with those of its results: a dry run spares those that have no record."""
    return not workflow.dryrun or (RESULTS / provenance_path(STAGES[name], item)).exists()


def settings(name):
    """The part of the experiment that a stage depends on: a change in it reruns the job."""

    def found(wildcards):
        item = item_of(wildcards)
        return STAGES[name].settings(EXPERIMENT, item) if compares(name, item) else None

    return found


def code(name):
    """The code of a stage and its packages: what changes there reruns the stages that use it."""

    def found(wildcards):
        item = item_of(wildcards)
        if not compares(name, item):
            return None
        asked = (STAGES[name], EXPERIMENT, item)
        return {"digest": code_of(*asked), "packages": packages_of(*asked)}

    return found


def threads_of(name):
    """The threads of a job that runs on one node."""
    return lambda wildcards: STAGES[name].needs(EXPERIMENT, item_of(wildcards)).threads_per_rank


def cluster_resources(name):
    """What a job asks of a cluster's nodes, as its profile describes them; unset on one machine."""

    def found(key):
        def value(wildcards):
            needs = STAGES[name].needs(EXPERIMENT, item_of(wildcards))
            return asked(needs, profile_resources(workflow.resource_settings, name))[key]

        return value

    return {key: found(key) for key in ("nodes", "gres", "tasks", "cpus_per_task")}


def beside(name, folder, ending):
    """A file of a job that is no result: its log, its resources."""
    item = STAGES[name].wildcard
    return str(RESULTS / folder / f"{name}/{item}{ending}" if item else RESULTS / folder / f"{name}{ending}")


def log_file(name):
    """What a job says."""
    return beside(name, "logs", ".log")


def benchmark_file(name):
    """What a job takes."""
    return beside(name, "benchmarks", ".tsv")


def words(name):
    """What Snakemake says when a stage runs."""
    stage = STAGES[name]
    return stage.message.replace("{item}", f"{{wildcards.{stage.item.wildcard}}}" if stage.item else "")
