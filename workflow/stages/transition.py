"""Stage transition: two settings of the same optical switches -> the steps between."""

from __future__ import annotations

from railx.errors import UserError
from workflow.outputs import File, Table, columns
from workflow.stage import Experiment, FromStage, Item, Job, Stage, Summary


def run(job: Job) -> Summary:
    """Plan and try the change between settings of one hardware; else ValueError."""
    from railx.families import read_topology
    from railx.vocabulary import cross_connects

    settings: cross_connects.TransitionSettings = job.load(cross_connects.TransitionSettings)
    before, after = read_topology(job.file("before")), read_topology(job.file("after"))
    plan = cross_connects.reconfiguration_plan(before, after)
    cross_connects.check_end(plan, before, after)
    row: Summary = {
        "transition": job.item,
        "before": settings.before,
        "after": settings.after,
        "before_family": before.family,
        "after_family": after.family,
        "chips": before.chips,
        "nodes": before.nodes,
        "optical_switches": plan.switches,
        "optical_switches_touched": plan.switches_touched,
        "circuits_kept": plan.unchanged,
        "circuits_disconnected": plan.disconnected,
        "circuits_connected": plan.connected,
        "kept_share": plan.unchanged / (plan.unchanged + plan.disconnected),
        "ports_touched": plan.ports_touched,
        "most_steps_of_a_switch": plan.most_steps_of_a_switch,
        "fidelity": "analytic",
    }
    job.write("plan", cross_connects.write_reconfiguration, plan)
    job.write("csv", cross_connects.write_reconfiguration_csv, plan)
    job.write_table("summary", [row])
    return row


_COLUMNS = columns(
    "text transition before after before_family after_family,"
    " integer chips nodes optical_switches optical_switches_touched circuits_kept"
    " circuits_disconnected circuits_connected, real kept_share,"
    " integer ports_touched most_steps_of_a_switch, text fidelity"
)


def check(experiment: Experiment) -> None:
    """Refuse two topologies that are not settings of the same switches."""
    from railx.families import family_of
    from railx.families.sizes import check_same_nodes, small_graph
    from railx.settings import SettingsError
    from railx.vocabulary.cross_connects import check_same_hardware

    for name, transition in experiment.transitions.items():
        names = (transition.before, transition.after)
        before, after = (experiment.topologies[topology] for topology in names)
        try:
            for topology, settings in zip(names, (before, after), strict=True):
                if not family_of(settings).switched:
                    allowed = "topologies that have some"
                    raise UserError(f"{topology} has no optical switches; allowed: {allowed}")
            graphs = small_graph(before), small_graph(after)
            if graphs[0] is not None and graphs[1] is not None:
                check_same_hardware(graphs[0], graphs[1])
            else:
                check_same_nodes(before, after)
        except UserError as error:
            both = f"topologies.{names[0]} and topologies.{names[1]}: {error}"
            way_out = f"(or leave it out: ~transitions.{name})"
            raise SettingsError(f"transitions.{name}", f"{both} {way_out}") from None


STAGE = Stage(
    name="transition",
    help="the steps that take optical switches from one topology to another",
    message="Reconfiguration plan {item}",
    item=Item("transition", lambda experiment: experiment["transitions"]),
    settings=lambda experiment, transition: experiment["transitions"][transition],
    inputs=lambda experiment, transition: {
        key: FromStage("topology.graph", experiment["transitions"][transition][key])
        for key in ("before", "after")
    },
    outputs={
        "plan": File("{transition}/plan.json"),
        "csv": File("{transition}/plan.csv"),
        "summary": Table(_COLUMNS),
    },
    run=run,
    check=check,
)
