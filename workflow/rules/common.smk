# Shared by all rules: the composed experiment, its folder, and the digests of the code behind each stage.

import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir)))

from railx.settings import SettingsError, to_dict
from railx.families.registry import optically_switched
from railx.planning import planner_of
from workflow.config import compose_experiment, overrides_from
from workflow.digest import code_digest
from workflow.locking import hold_folder


def composed():
    """The experiment of this run; what is wrong with it ends the run in one line."""
    try:
        return compose_experiment(overrides_from(config))
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


EXPERIMENT = composed()
SETTINGS = to_dict(EXPERIMENT)
RESULTS = Path("results") / EXPERIMENT.name

# A lock that a killed run left behind is cleared; one that a running pipeline holds stays.
FOLDER = hold_folder(Path(".snakemake"))


wildcard_constraints:
    topology="|".join(EXPERIMENT.topologies),
    sweep="|".join(EXPERIMENT.sweeps) or "none",
    transition="|".join(EXPERIMENT.transitions) or "none",
    corpus="|".join(EXPERIMENT.corpora),
    plan="|".join(EXPERIMENT.plans),
    run="|".join(EXPERIMENT.runs) or "none",
    figure="|".join(EXPERIMENT.figures),


def code(stage, *modules):
    """The digest of everything the stage imports: a changed module reruns the stages that use it."""
    return code_digest(f"workflow.stages.{stage}", *modules)


def switched_topologies():
    """The topologies whose links run through optical circuit switches."""
    return [name for name, settings in EXPERIMENT.topologies.items() if optically_switched(settings)]


def plan_names(kind):
    """The plans of one kind, or all: the planner in their settings says of which kind they are."""
    return [name for name, plan in EXPERIMENT.plans.items() if kind in (None, planner_of(plan.planner).kind)]
