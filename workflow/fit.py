"""Settings of different stages that must fit together, checked before any job.

Each room checks its own settings. What one stage's choice asks of another's (two
topologies of one hardware, chips enough for a pattern, names that a figure shows) would
end a job minutes later; here it ends the composition.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from railx.economics import bill_of_materials, read_catalogue
from railx.errors import UserError
from railx.families import build_topology, check_topology, family_of
from railx.figures import figure_of
from railx.io import in_repository
from railx.mapping.layout import assign_ranks
from railx.network.sub_grid import sub_grid
from railx.network.traffic import MOST_EXPLICIT_CHIPS, traffic_flows
from railx.places import WORK
from railx.planning.pipeline.best_schedule import TRAINABLE_SCHEDULES
from railx.planning.planners import planner_of
from railx.settings import SettingsError, to_dict
from railx.vocabulary.reconfiguration import check_same_hardware
from railx.workload.batches import check_batch
from railx.workload.corpus import (
    FileCorpusSettings,
    FolderCorpusSettings,
    MixtureCorpusSettings,
    QuantileCorpusSettings,
    build_corpus,
    folder_files,
    stdlib_documents,
)
from railx.workload.lengths import published_quantiles, read_length_file
from training.settings import check_model, check_planner, check_sharding
from workflow.effort import Cost, check_effort, check_latencies, check_packets, in_words
from workflow.stages import STAGES, inputs_of, stage_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railx.economics import EconomicsSettings
    from railx.economics.catalogue import Catalogue
    from railx.network.settings import TrafficSettings
    from railx.planning.planner import PlannerBase
    from railx.vocabulary.placement import Sizes
    from railx.vocabulary.topology import FamilySettings, Topology
    from railx.workload.batches import BatchSettings
    from railx.workload.cluster import ClusterSettings
    from railx.workload.corpus import CorpusSettings
    from railx.workload.cost import CostModelSettings
    from railx.workload.model import ModelSettings
    from workflow.config import Experiment

__all__ = [
    "check_choices",
    "check_corpus",
    "check_cost_model",
    "check_fit",
    "check_plan",
    "check_prices",
]

#: Chips and switches up to which a graph is built to be checked; beyond it takes
#: seconds.
_MOST_VERTICES = 10_000
#: Of a file of lengths that is read; what is larger takes seconds.
_MOST_READ_BYTES = 2**24
#: Lengths that are drawn to be counted; more take a part of a second.
_MOST_DRAWN = 1_000_000
#: Documents that the standard library has for certain; reading it takes half a second.
_SURELY_STANDARD = 256
#: Those of all topologies of the mapping study up to which jobs are placed for a try.
_MOST_PLACED = 4_000
#: Finest share to which a search for a saturation point can be asked for.
_FINEST = 1e-4
#: Bytes of a packet simulation for each port of each chip where the routing table grows
#: with groups of destinations: about what 10,000 chips of 24 ports take.
_PORT_BYTES = 2e3
#: Bytes for each group and vertex while such a table is made: what thin tori take.
_GROUP_BYTES = 115.0


def check_fit(experiment: Experiment) -> None:
    """Refuse in one line what two settings of an experiment ask of one another.

    SettingsError names the key and what is allowed.
    """
    check_effort(experiment)
    _check_topologies(experiment)
    _check_corpora(experiment)
    _check_plans(experiment)
    _check_transitions(experiment)
    _check_routings(experiment)
    _check_traffic(experiment)
    _check_collective(experiment)
    _check_packets(experiment)
    _check_training(experiment)
    _check_jobs(experiment)
    _check_figures(experiment)
    check_prices(experiment.economics)
    for key in ("mapping", "switched", "underlay"):
        own = getattr(experiment, key)
        catalogue = _catalogue(own.catalogue, f"{key}.catalogue")
        _check_names(f"{key}.price_set", (own.price_set,), catalogue.price_sets)


def check_choices(chosen: Mapping[str, Any]) -> None:
    """Refuse what the groups of a stage run by hand cost, and ask of one another.

    ``chosen`` holds checked settings by group. SettingsError names the key.
    """
    check_effort(chosen)
    if {"planner", "cluster", "model"} <= chosen.keys():
        check_plan(chosen["planner"], chosen["cluster"], chosen["model"])
        if "cost_model" in chosen:
            check_cost_model(chosen["cost_model"], chosen["model"])
    if "corpus" in chosen:
        check_corpus(chosen["corpus"], "corpus")
        if {"batch", "seed"} <= chosen.keys():
            _check_batch(chosen["corpus"], chosen["batch"], chosen["seed"], "")
    if "economics" in chosen:
        check_prices(chosen["economics"])
    for key in ("mapping", "switched"):
        if key in chosen:
            catalogue = _catalogue(chosen[key].catalogue, f"{key}.catalogue")
            _check_names(f"{key}.price_set", (chosen[key].price_set,), catalogue.price_sets)
    if {"topology", "network", "traffic"} <= chosen.keys():
        network = chosen["network"]
        if network.model == "packet":
            check_topology(chosen["topology"])
            _check_table("topology", chosen["topology"].family, chosen["topology"], network.routing)
            vertices = _vertices(chosen["topology"])
            check_packets("", network, vertices, (chosen["traffic"].load,), 1)
            check_latencies("topology", chosen["topology"], network)


def check_plan(
    planner: PlannerBase,
    cluster: ClusterSettings,
    model: ModelSettings,
    key: str = "",
) -> None:
    """Refuse a planner that leaves devices idle, and bandwidths that end too early.

    SettingsError names the key below ``key``.
    """
    prefix = f"{key}." if key else ""
    ranks = planner_of(planner).ranks_of(planner, cluster.devices)
    if ranks != cluster.devices:
        shape = [
            f"{name} {getattr(planner, name)}"
            for name in ("stages", "replicas", "sequence_parallel_degree")
            if hasattr(planner, name)
        ]
        raise SettingsError(
            f"{prefix}planner",
            f"got {', '.join(shape) or planner.planner}, {ranks} ranks, for {cluster.devices}"
            f" devices; allowed: as many ranks as cluster.devices",
        )
    stages = getattr(planner, "stages", None)
    if isinstance(stages, int) and stages > model.layers:
        raise SettingsError(
            f"{prefix}planner.stages",
            f"got {stages}; allowed: at most {model.layers}, the layers of {model.name}",
        )
    for name in ("tensor", "context", "stages"):
        degree = getattr(planner, name, None)
        if isinstance(degree, int) and degree and cluster.devices % degree:
            raise SettingsError(
                f"{prefix}planner.{name}",
                f"got {degree}; allowed: a divisor of the {cluster.devices} devices",
            )
    if cluster.topology is not None or cluster.devices == 1:
        return
    listed = [int(degree) for degree in cluster.all_to_all_gb_s]
    widest = 1 << (cluster.devices.bit_length() - 1)
    if planner_of(planner).whole_heads:
        # No larger power of two divides the heads, so none is used.
        widest = min(widest, model.heads & -model.heads)
    if max(listed, default=1) < widest:
        got = f"bandwidths of degrees up to {max(listed)}" if listed else "an empty table"
        raise SettingsError(
            f"{prefix}cluster.all_to_all_gb_s",
            f"got {got} for {cluster.devices} devices; allowed: one for degree {widest} too, or for"
            " a larger one",
        )


def check_cost_model(cost_model: CostModelSettings, model: ModelSettings, prefix: str = "") -> None:
    """Refuse constants that were fitted for another model."""
    fitted = getattr(cost_model, "model", model.name)
    if fitted != model.name:
        raise SettingsError(
            f"{prefix}cost_model.model",
            f"fitted for {fitted}; allowed: {model.name}, the model of the plan",
        )


def check_prices(economics: EconomicsSettings, key: str = "economics") -> None:
    """Refuse price sets and catalogues that are not there.

    SettingsError names the key below ``key``.
    """
    catalogue = _catalogue(economics.catalogue, f"{key}.catalogue")
    asked = {
        "price_set": (economics.price_set,),
        "sensitivity.price_sets": economics.sensitivity.price_sets,
        "scale.price_sets": economics.scale.price_sets,
        **{
            f"networks.{name}.{own}": (wanted,)
            for name, network in economics.networks.items()
            for own in ("price_set", "copper_price_set")
            if (wanted := getattr(network, own)) is not None
        },
        **{
            f"rails.platforms.{name}.price_set": (platform.price_set,)
            for name, platform in economics.rails.platforms.items()
        },
    }
    for own, names in asked.items():
        _check_names(f"{key}.{own}", names, catalogue.price_sets)
    for part in ("claim_map", "sensitivity"):
        for field, value in to_dict(getattr(economics, part)).items():
            if value == []:
                raise SettingsError(
                    f"{key}.{part}.{field}", "got an empty list; allowed: at least one value"
                )
    try:
        bill_of_materials(economics, catalogue)
    except SettingsError as error:
        raise error.under(key) from None


def _catalogue(path: str, key: str) -> Catalogue:
    try:
        return read_catalogue(path)
    except (UserError, OSError) as error:
        raise SettingsError(key, str(error)) from None


def _check_topologies(experiment: Experiment) -> None:
    for name, settings in experiment.topologies.items():
        check_effort(settings, f"topologies.{name}")
    for name in experiment.bandwidth.topologies:
        vertices = _vertices(experiment.topologies[name])
        if experiment.bandwidth.ranks > vertices:
            raise SettingsError(
                "bandwidth.ranks",
                f"got {experiment.bandwidth.ranks:,}; allowed: fewer than the {vertices:,} chips"
                f" and switches of {name}",
            )


def _check_plans(experiment: Experiment) -> None:
    for name, plan in experiment.plans.items():
        check_plan(plan.planner, plan.cluster, plan.model, f"plans.{name}")
        check_cost_model(plan.cost_model, plan.model, f"plans.{name}.")
        corpus = experiment.corpora[plan.corpus]
        _check_batch(corpus, plan.batch, experiment.seed, f"plans.{name}", WORK)
    for name in experiment.underlay.plans:
        devices = experiment.plans[name].cluster.devices
        if experiment.underlay.ranks != devices:
            raise SettingsError(
                "underlay.ranks",
                f"got {experiment.underlay.ranks}; allowed: {devices}, the devices of plans.{name}",
            )


def _check_corpora(experiment: Experiment) -> None:
    """Refuse tables of lengths that are not there."""
    for name, corpus in experiment.corpora.items():
        # Jobs run in the folder of work.
        check_corpus(corpus, f"corpora.{name}", WORK)


def check_corpus(corpus: CorpusSettings, key: str, folder: Path = Path()) -> None:
    """Refuse lengths and text that are not there or cannot be read, below ``key``.

    Paths are those from ``folder``. A file of lengths is read where it is not large.
    """
    if isinstance(corpus, FileCorpusSettings | FolderCorpusSettings):
        place = folder / corpus.path
        try:
            if isinstance(corpus, FolderCorpusSettings):
                folder_files(place, corpus.pattern)
            elif not place.is_file() or place.stat().st_size <= _MOST_READ_BYTES:
                read_length_file(place, corpus.column)
        except (UserError, OSError) as error:
            said = str(error).replace(str(place), corpus.path)
            raise SettingsError(f"{key}.path", f"got {said}") from None
    quantiles = getattr(corpus, "quantiles", None)
    if quantiles is not None and not in_repository(quantiles).is_file():
        raise SettingsError(
            f"{key}.quantiles", f"got {quantiles!r}, which is not there; allowed: a CSV table"
        )
    if quantiles is not None:
        try:
            published_quantiles(in_repository(quantiles))
        except (KeyError, TypeError):
            raise SettingsError(
                f"{key}.quantiles",
                f"got {quantiles!r} without all cells; allowed: the columns kind, key, value",
            ) from None
        except (ValueError, OSError) as error:
            raise SettingsError(f"{key}.quantiles", f"got {error}") from None


def _check_batch(
    corpus: CorpusSettings, batch: BatchSettings, seed: int, key: str, folder: Path = Path()
) -> None:
    """Refuse a batch for which the corpus has too few sequences, below ``key``."""
    try:
        lengths = _lengths(corpus, batch, seed, folder)
        if lengths is not None:
            check_batch(lengths, batch.filled(lengths))
    except SettingsError as error:
        raise error.under(key) from None


def _lengths(
    corpus: CorpusSettings, batch: BatchSettings, seed: int, folder: Path
) -> NDArray[np.int64] | None:
    """Lengths int64 [n] as far as they are known without work; None where they are not.

    Sequences of text have the shortest that there is, the beginning and one token: so
    there are never fewer sequences here than in the corpus.
    """
    asked, limit = batch.batch_size or 1, batch.max_length_tokens
    if isinstance(corpus, FileCorpusSettings):
        place = folder / corpus.path
        large = place.stat().st_size > _MOST_READ_BYTES
        return None if large else read_length_file(place, corpus.column)
    if isinstance(corpus, QuantileCorpusSettings | MixtureCorpusSettings):
        return _drawn(corpus, seed) if corpus.sequences <= _MOST_DRAWN else None
    if isinstance(corpus, FolderCorpusSettings):
        count = len(folder_files(folder / corpus.path, corpus.pattern))
    elif asked > _SURELY_STANDARD:
        count = _standard_documents(corpus.unit)
    else:
        count = max(asked, corpus.sequences or 1)
    kept = min(count, corpus.sequences or count)
    if asked <= kept and (limit is None or limit >= 2):
        return None
    return np.full(kept, 2, dtype=np.int64)


@lru_cache
def _drawn(corpus: QuantileCorpusSettings | MixtureCorpusSettings, seed: int) -> NDArray[np.int64]:
    return build_corpus(corpus, seed).lengths


@cache
def _standard_documents(unit: Literal["file", "definition"]) -> int:
    return len(stdlib_documents(unit))


def _check_packets(experiment: Experiment) -> None:
    for name, sweep in experiment.sweeps.items():
        chips = _vertices(experiment.topologies[sweep.topology])
        # The search halves what is left: about so many runs beside the loads.
        runs = 8 + math.ceil(math.log2(1 / max(sweep.precision, 1e-18)))
        if sweep.precision < _FINEST:
            raise SettingsError(
                f"sweeps.{name}.precision",
                f"got {sweep.precision:g}; allowed: at least {_FINEST:g}, as windows are so noisy",
            )
        _check_table(
            f"sweeps.{name}.topology",
            sweep.topology,
            experiment.topologies[sweep.topology],
            sweep.network.routing,
        )
        check_packets(
            f"sweeps.{name}",
            sweep.network,
            chips,
            sweep.loads,
            runs,
            sweep.repeats,
        )
        check_latencies(
            f"topologies.{sweep.topology}", experiment.topologies[sweep.topology], sweep.network
        )
    agreement = experiment.agreement
    for name in agreement.topologies:
        chips = _vertices(experiment.topologies[name])
        runs = len(agreement.routings) * len(agreement.traffics)
        loads, repeats = agreement.loads_over_bound, agreement.repeats
        check_packets("agreement", agreement.network, chips, loads, runs * len(loads), repeats)
        check_latencies(f"topologies.{name}", experiment.topologies[name], agreement.network)


def _check_table(key: str, name: str, settings: FamilySettings, routing: str) -> None:
    """Refuse routing tables that no memory holds, with what stands beside them."""
    family, vertices = family_of(settings), _vertices(settings)
    ports = family.ports_per_chip(settings)
    pairs = Cost(bytes=4.0 * vertices**2)
    grouped = {
        each: Cost(bytes=vertices * max(_PORT_BYTES * ports, _GROUP_BYTES * columns))
        for each in family.grouped_routings
        for columns in [family.groups(settings, each) if family.groups else 0]
    }
    table = grouped.get(routing, pairs)
    if table.over > 1:
        smaller = " or ".join(each for each, cost in grouped.items() if cost.over <= 1)
        raise SettingsError(
            key,
            f"got {name} of {vertices:,} chips and switches; allowed: fewer, as the routing table"
            f" of {routing} would take {in_words(table)}{smaller and f', or routing {smaller}'}",
        )


def _check_jobs(experiment: Experiment) -> None:
    """Refuse jobs of the mapping study that no topology has room for."""
    mapping = experiment.mapping
    sizes = {name: _vertices(experiment.topologies[name]) for name in mapping.topologies}
    for name, job in mapping.jobs.items():
        wanted = job.layout.chips
        if wanted > max(sizes.values()):
            raise SettingsError(
                f"mapping.jobs.{name}.layout",
                f"got {wanted:,} chips; allowed: what fits at least one of {', '.join(sizes)}, the"
                f" largest of {max(sizes.values()):,}",
            )
        if sum(sizes.values()) <= _MOST_PLACED and not any(
            _has_room(experiment.topologies[each], job.layout.sizes) for each in sizes
        ):
            raise SettingsError(
                f"mapping.jobs.{name}.layout",
                f"got {wanted:,} chips as {' x '.join(map(str, job.layout.sizes))}; allowed: what"
                f" fits at least one of {', '.join(sizes)}",
            )


def _has_room(settings: FamilySettings, sizes: Sizes) -> bool:
    try:
        assign_ranks(_graph(settings), sizes)
    except SettingsError as error:
        if error.key != "layout":
            raise
        return False
    return True


def _check_transitions(experiment: Experiment) -> None:
    for name, transition in experiment.transitions.items():
        own = [experiment.topologies[each] for each in (transition.before, transition.after)]
        try:
            for each, settings in zip((transition.before, transition.after), own, strict=True):
                if not family_of(settings).switched:
                    raise UserError(
                        f"{each} has no optical switches; allowed: topologies that have some"
                    )
            before, after = map(_small_graph, own)
            if before is not None and after is not None:
                check_same_hardware(before, after)
            else:
                _check_same_nodes(*own)
        except UserError as error:
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
            raise UserError(
                f"{key}: {one} before and {other} after; allowed: two settings of the same hardware"
            )
    one, other = _vertices(before), _vertices(after)
    if one != other:
        raise UserError(
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
        drawn = sweep.traffic.pattern
        if drawn != "uniform" and _is_large(experiment.topologies[sweep.topology]):
            raise SettingsError(
                f"sweeps.{name}.traffic.pattern",
                f"got {drawn!r} on {sweep.topology}; allowed: uniform, or a topology of at most"
                f" {MOST_EXPLICIT_CHIPS:,} chips",
            )
    for name in experiment.agreement.topologies:
        if _is_large(experiment.topologies[name]):
            raise SettingsError(
                "agreement.topologies",
                f"got {name!r}, which is too large; allowed: topologies of at most"
                f" {MOST_EXPLICIT_CHIPS:,} chips",
            )
        for pattern, traffic in experiment.agreement.traffics.items():
            _check_pattern(experiment, name, traffic, f"agreement.traffics.{pattern}")


def _check_collective(experiment: Experiment) -> None:
    """Refuse positions of a collective that a topology lacks."""
    if experiment.collective.rows is None and experiment.collective.columns is None:
        return
    for name, settings in experiment.topologies.items():
        graph = _small_graph(settings)
        if graph is None:
            continue
        try:
            sub_grid(graph, experiment.collective)
        except SettingsError as error:
            raise SettingsError(f"collective.{error.key}", f"on {name}: {error.message}") from None


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
            check_planner(plan.planner.planner, "planner")
            check_model(plan.model)
        except SettingsError as error:
            raise SettingsError(
                f"plans.{run.plan}.{error.key}", f"{error.message} (run {name})"
            ) from None
        try:
            check_sharding(run.training, plan.cost_model.zero_stage, plan.cluster.devices)
        except SettingsError as error:
            raise SettingsError(f"runs.{name}.{error.key}", error.message) from None
        # What "best" takes is known when the plan is.
        schedule = getattr(plan.planner, "schedule", "best")
        if schedule not in (*TRAINABLE_SCHEDULES, "best", "best_trained"):
            raise SettingsError(
                f"plans.{run.plan}.planner.schedule",
                f"got {schedule}, which is simulated only; allowed:"
                f" {', '.join(TRAINABLE_SCHEDULES)}, best_trained (run {name})",
            )
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
        _check_shown(experiment, name, settings)
        of_economics = any(one.table.startswith("economics.") for one in read if one.table)
        if of_economics and "reference" in settings:
            _check_names(f"figures.{name}.reference", (settings["reference"],), networks)


def _check_shown(experiment: Experiment, name: str, settings: Mapping[str, Any]) -> None:
    """Refuse words by which a figure would find no row."""
    known = {
        ("all_to_all_bandwidth", "traffic"): (experiment.traffic.pattern,),
        ("ring_all_reduce", "scope"): ("row", "column", "pillar", "nodes", "chips"),
        ("price_sensitivity", "all_to_all"): ("ideal", "published_routing"),
        ("utilisation", "policy"): experiment.tenancy.stream.policies,
        ("cost_scale", "price_set"): experiment.economics.scale.price_sets,
    }
    for (figure, field), allowed in known.items():
        if settings["figure"] == figure and settings[field] is not None:
            _check_names(f"figures.{name}.{field}", (settings[field],), allowed)
    if "iteration" in settings:
        batches = max((plan.batch.batches for plan in experiment.plans.values()), default=0)
        if settings["iteration"] >= batches:
            raise SettingsError(
                f"figures.{name}.iteration",
                f"got {settings['iteration']}; allowed: 0 to {batches - 1}, the batches of plans",
            )


def _check_names(key: str, wanted: Iterable[str], known: Iterable[str]) -> None:
    names = tuple(known)
    for name in wanted:
        if name not in names:
            raise SettingsError(key, f"got {name!r}; allowed: {', '.join(names)}")


def _is_large(settings: FamilySettings) -> bool:
    """Whether there are too many chips for a matrix of what each sends to each."""
    graph = _small_graph(settings)
    return graph is None or graph.chips > MOST_EXPLICIT_CHIPS


def _small_graph(settings: FamilySettings) -> Topology | None:
    return _graph(settings) if _vertices(settings) <= _MOST_VERTICES else None


def _vertices(settings: FamilySettings) -> int:
    return _counted(cast("Hashable", settings))


@lru_cache(maxsize=256)
def _counted(settings: Any) -> int:
    return len(family_of(settings).halves(settings))


def _graph(settings: FamilySettings) -> Topology:
    return build_topology(settings)
