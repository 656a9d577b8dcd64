"""Settings of different stages that must fit together, checked before any job.

Each room checks its own settings. What one stage's choice asks of another's (two
topologies of one hardware, chips enough for a pattern, names that a figure shows) would
end a job minutes later; here it ends the composition.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from railx.families import build_topology, family_of
from railx.figures import figure_of
from railx.network.traffic import MOST_EXPLICIT_CHIPS, traffic_flows
from railx.settings import SettingsError, to_dict
from railx.vocabulary.reconfiguration import check_same_hardware
from training.settings import check_model
from workflow.stages import STAGES, inputs_of, stage_of

if TYPE_CHECKING:
    from railx.network.settings import TrafficSettings
    from railx.vocabulary.topology import FamilySettings, Topology
    from workflow.config import Experiment

__all__ = ["check_fit"]

#: Chips and switches up to which a graph is built to be checked; beyond it takes
#: seconds.
_MOST_VERTICES = 10_000


def check_fit(experiment: Experiment) -> None:
    """Refuse in one line what two settings of an experiment ask of one another.

    SettingsError names the key and what is allowed.
    """
    _check_transitions(experiment)
    _check_routings(experiment)
    _check_traffic(experiment)
    _check_training(experiment)
    _check_figures(experiment)


def _check_transitions(experiment: Experiment) -> None:
    for name, transition in experiment.transitions.items():
        own = [experiment.topologies[each] for each in (transition.before, transition.after)]
        try:
            for each, settings in zip((transition.before, transition.after), own, strict=True):
                if not family_of(settings).switched:
                    raise ValueError(
                        f"{each} has no optical switches; allowed: topologies that have some"
                    )
            before, after = map(_small_graph, own)
            if before is not None and after is not None:
                check_same_hardware(before, after)
            else:
                _check_same_nodes(*own)
        except ValueError as error:
            raise SettingsError(
                f"transitions.{name}",
                f"topologies.{transition.before} and topologies.{transition.after}: {error} (or"
                f" leave it out: ~transitions.{name})",
            ) from None


def _check_same_nodes(before: FamilySettings, after: FamilySettings) -> None:
    """What can be told of large networks without their graphs."""
    for key in ("m", "n"):
        one, other = (to_dict(settings).get(key) for settings in (before, after))
        if one != other:
            raise ValueError(
                f"{key}: {one} before and {other} after; allowed: two settings of the same hardware"
            )
    one, other = _vertices(before), _vertices(after)
    if one != other:
        raise ValueError(
            f"{one:,} chips and switches before and {other:,} after; allowed: two settings of the"
            " same hardware"
        )


def _check_routings(experiment: Experiment) -> None:
    asked: list[tuple[str, str, tuple[str, ...]]] = [
        (f"sweeps.{name}.network.routing", sweep.topology, (sweep.network.routing,))
        for name, sweep in experiment.sweeps.items()
    ]
    asked += [
        (f"mapping.topologies.{name}.routings", name, mapped.routings)
        for name, mapped in experiment.mapping.topologies.items()
    ]
    for key, topology, routings in asked:
        offered = family_of(experiment.topologies[topology]).routings
        for routing in routings:
            if routing not in offered:
                raise SettingsError(
                    key, f"got {routing!r}; allowed on {topology}: {', '.join(offered)}"
                )


def _check_traffic(experiment: Experiment) -> None:
    for name, sweep in experiment.sweeps.items():
        _check_pattern(experiment, sweep.topology, sweep.traffic, f"sweeps.{name}.traffic")
    for name in experiment.agreement.topologies:
        chips = _vertices(experiment.topologies[name])
        if chips > _MOST_VERTICES or _graph(experiment.topologies[name]).chips > (
            MOST_EXPLICIT_CHIPS
        ):
            raise SettingsError(
                "agreement.topologies",
                f"got {name!r}, which is too large; allowed: topologies of at most"
                f" {MOST_EXPLICIT_CHIPS:,} chips",
            )
        for pattern, traffic in experiment.agreement.traffics.items():
            _check_pattern(experiment, name, traffic, f"agreement.traffics.{pattern}")


def _check_pattern(experiment: Experiment, name: str, traffic: TrafficSettings, key: str) -> None:
    """Refuse a pattern that does not suit the chips of a topology."""
    if traffic.pattern in ("uniform", "all_to_all"):
        return
    graph = _small_graph(experiment.topologies[name])
    if graph is None:
        return
    try:
        traffic_flows(graph, traffic, experiment.seed)
    except SettingsError as error:
        raise SettingsError(f"{key}.{error.key}", f"on {name}: {error.message}") from None


def _check_training(experiment: Experiment) -> None:
    for name, run in experiment.runs.items():
        plan = experiment.plans[run.plan]
        try:
            check_model(plan.model)
        except SettingsError as error:
            raise SettingsError(
                f"plans.{run.plan}.{error.key}", f"{error.message} (run {name})"
            ) from None
        # Corpora that are lengths alone have no tokens.
        tokens = getattr(experiment.corpora[plan.corpus], "vocabulary", None)
        if tokens is not None and plan.model.vocabulary < tokens:
            raise SettingsError(
                f"plans.{run.plan}.model.vocabulary",
                f"got {plan.model.vocabulary}; allowed: at least {tokens}, the token ids of"
                f" corpora.{plan.corpus} (run {name})",
            )


def _check_figures(experiment: Experiment) -> None:
    plain = to_dict(experiment)
    networks = tuple(plain["economics"]["networks"])
    for name, settings in plain["figures"].items():
        only = tuple(settings.get("only", ()))
        read = figure_of(settings["figure"]).inputs
        for wanted in (one for one in read if one.table):
            stage = stage_of(wanted.table)
            known = (
                stage.items(plain)
                if stage.item
                else {"economics": networks, "metrics": tuple(plain["topologies"])}.get(stage.name)
            )
            if known is not None and wanted.required:
                _check_names(f"figures.{name}.only", only, known)
            needed = stage.item is not None and wanted.required
            if needed and not inputs_of(STAGES["figure"], plain, name)[wanted.key]:
                raise SettingsError(
                    f"figures.{name}",
                    f"nothing to show, as the experiment has no {stage.name} of its kind; allowed:"
                    f" at least one (or leave the figure out: ~figures.{name})",
                )
        of_economics = any(one.table.startswith("economics.") for one in read if one.table)
        if of_economics and "reference" in settings:
            _check_names(f"figures.{name}.reference", (settings["reference"],), networks)


def _check_names(key: str, wanted: Iterable[str], known: Iterable[str]) -> None:
    names = tuple(known)
    for name in wanted:
        if name not in names:
            raise SettingsError(key, f"got {name!r}; allowed: {', '.join(names)}")


def _small_graph(settings: FamilySettings) -> Topology | None:
    return _graph(settings) if _vertices(settings) <= _MOST_VERTICES else None


def _vertices(settings: FamilySettings) -> int:
    return len(family_of(settings).halves(settings))


def _graph(settings: FamilySettings) -> Topology:
    return build_topology(settings)
