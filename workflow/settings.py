"""The settings of an experiment, of its entries, and of a stage run by hand.

The fields of :class:`Experiment` are the keys of an experiment; ``workflow.config``
composes and checks them. :func:`groups` says which settings the files of each folder
of conf/ hold.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias, get_args

from railx.design.settings import ArenaSettings, DesignSettings
from railx.economics import EconomicsSettings
from railx.effort import LimitSettings
from railx.fabric import RailSettings
from railx.families import TopologySettings, check_topology
from railx.figures import FigureSettings
from railx.mapping.cost import check_reference
from railx.mapping.settings import JobSettings, MappingSettings, SwitchedSettings
from railx.mapping.underlay import UnderlaySettings
from railx.network import settings as network_settings
from railx.performance.cluster import ClusterSettings
from railx.performance.decoder import ModelSettings
from railx.performance.layer_profile import ProfileSettings
from railx.performance.scaling import ScalingSettings
from railx.performance.sequence_cost import CostModelSettings, ProfiledCostSettings
from railx.performance.study import ValidationSettings
from railx.planning.planners import PlannerSettings
from railx.replay.settings import ReplaySettings
from railx.settings import Between, NotEmpty, SettingsError, field_hints
from railx.steps.settings import StepSettings
from railx.tenancy import TenancySettings
from railx.tracking.settings import TrackingSettings
from railx.vocabulary.cross_connects import TransitionSettings
from railx.workload.batches import BatchSettings
from railx.workload.corpus import CorpusSettings
from training.live_settings import LiveSettings
from training.settings import TrainingSettings
from workflow.renamed import refusal

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_LETTERS = "letters, digits and underscores, a letter first"
_NONE = "none here, as the experiment has none"
#: Keys of an experiment that hold one entry per name, and the group of their files.
LISTED = {
    "topologies": "topology",
    "networks": "network",
    "sweeps": "sweep",
    "transitions": "transition",
    "corpora": "corpus",
    "profiles": "profile",
    "plans": "plan",
    "runs": "run",
    "live": "live",
    "steps": "step",
    "figures": "figure",
}
#: Solvers and torch take no larger one.
Seed: TypeAlias = Annotated[int, Between(0, 2**31 - 1)]
#: Lists whose entries have a seed of their own.
SEEDED = ("plans", "runs", "live")
#: Folders below results/ that hold something else than a run.
RESERVED = ("gpu_folder", "gpu_steps", "gpu_steps_dry", "mlflow_artifacts", "recorded", "wandb")


@dataclass(frozen=True)
class PlanSettings:
    """A plan to make: which sequences, on which machine, by which planner."""

    corpus: str
    """Name of one of the experiment's corpora."""
    seed: Seed
    """Seed of the batches drawn from the corpus; the experiment's where no file
    and no override sets it."""
    batch: BatchSettings
    """Which sequences each step takes."""
    cluster: ClusterSettings
    """The machine."""
    model: ModelSettings
    """The model."""
    cost_model: CostModelSettings
    """Time and memory of sequences on the machine."""
    planner: PlannerSettings
    """The planner."""
    recorded: bool = False
    """Whether the batches are read from resources/recorded/plans, for a planner that
    takes hours; refused where planner, constants or batches were others."""


@dataclass(frozen=True)
class PlanSetting:
    """Where plans are made: the keys that all plans of a setting share."""

    batch: BatchSettings
    """Which sequences each step takes."""
    cluster: ClusterSettings
    """The machine."""
    model: ModelSettings
    """The model."""
    cost_model: CostModelSettings
    """Time and memory of sequences on the machine."""
    planners: dict[str, Any] = field(default_factory=dict)
    """By PLANNER or PLANNER_CORPUS of a plan's name: the choice of conf/planner where
    it has another name, or keys of such plans on top of the setting's."""
    corpora: dict[str, str] = field(default_factory=dict)
    """By CORPUS of a plan's name: the corpus where it has another name."""


@dataclass(frozen=True)
class RunChoice:
    """A training run."""

    plan: str
    """Name of one of the experiment's plans, which also says the model and the corpus.
    """
    seed: Seed
    """Seed of the weights; the experiment's where no file and no override sets it."""
    fabric: RailSettings
    """The rails between the ranks; the sweep sets mode and latency."""
    training: TrainingSettings
    """How the plan is trained and timed."""


@dataclass(frozen=True)
class Experiment:
    """Everything one pipeline run needs, by stage."""

    name: Annotated[str, NotEmpty()]
    """Folder below results/ that the run writes."""
    seed: Seed
    """Seed of everything random; stages draw theirs from it."""
    topologies: dict[str, TopologySettings]
    """Topologies by name."""
    traffic: network_settings.TrafficSettings
    """Traffic of the static network models."""
    networks: dict[str, network_settings.StaticNetworkSettings]
    """Static network models by name; each runs on every topology that has its routing.
    """
    sweeps: dict[str, network_settings.SweepSettings]
    """Sweeps of the packet simulator over the load, by name."""
    transitions: dict[str, TransitionSettings]
    """Changes of the switches from one topology to another, by name."""
    agreement: network_settings.AgreementSettings
    """The flow model against the packet simulator."""
    collective: network_settings.CollectiveSettings
    """Collectives that are timed on every topology."""
    bandwidth: network_settings.BandwidthSettings
    """What groups of ranks get from topologies."""
    mapping: MappingSettings
    """Training jobs on topologies."""
    switched: SwitchedSettings
    """Training jobs on circuits that are set once, switched in the job, or both."""
    tenancy: TenancySettings
    """Jobs and failures on a grid of nodes."""
    economics: EconomicsSettings
    """Bills of materials and cost over scale."""
    corpora: dict[str, CorpusSettings]
    """Corpora by name."""
    profiles: dict[str, ProfileSettings]
    """Profiles of a decoder layer by name."""
    plans: dict[str, PlanSettings]
    """Plans by name."""
    underlay: UnderlaySettings
    """Networks under plans of sequence parallelism."""
    runs: dict[str, RunChoice]
    """Training runs by name."""
    live: dict[str, LiveSettings]
    """Programs in plain torch on the rails, by name."""
    replay: ReplaySettings
    """Cluster time of the training runs."""
    steps: dict[str, StepSettings]
    """Generated training steps by name."""
    figures: dict[str, FigureSettings]
    """Figures by name."""
    tracking: TrackingSettings
    """Which trackers get the runs."""
    limits: LimitSettings
    """The most work that settings may ask for."""
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    """The model of a step against measured runs."""
    scaling: ScalingSettings = field(default_factory=ScalingSettings)
    """Plans of many devices."""
    arena: ArenaSettings = field(default_factory=ArenaSettings)
    """Networks side by side."""
    design: DesignSettings = field(default_factory=DesignSettings)
    """Networks and plans searched together."""

    def __post_init__(self) -> None:
        named = [f"{group}.{name}" for group in LISTED for name in getattr(self, group)]
        for key in named:
            if not NAME.fullmatch(key.partition(".")[2]):
                raise SettingsError(key, f"not a name; allowed: {_LETTERS}")
        if not NAME.fullmatch(self.name):
            raise SettingsError("name", f"got {self.name!r}; allowed: {_LETTERS}")
        if self.name in RESERVED:
            raise SettingsError(
                "name",
                f"got {self.name!r}; allowed: any name but {', '.join(RESERVED)}, folders of"
                " results/ that hold something else",
            )
        for name, topology in self.topologies.items():
            check_topology(topology, f"topologies.{name}")
        for key, name, group in self._references():
            allowed = getattr(self, group)
            if name not in allowed:
                raise refusal(key, name, allowed or [_NONE], LISTED[group])
        check_reference(self.mapping, self.topologies[self.mapping.reference])
        for name, plan in self.plans.items():
            if isinstance(plan.cost_model, ProfiledCostSettings):
                profile = plan.cost_model.profile
                self._check_profile(f"plans.{name}.cost_model.profile", profile, plan.model.name)
            known = self.bandwidth.topologies
            if plan.cluster.topology is not None and plan.cluster.topology not in known:
                raise SettingsError(
                    f"plans.{name}.cluster.topology",
                    f"got {plan.cluster.topology!r}; allowed: {', '.join(known) or _NONE}, the"
                    " topologies of the bandwidth settings",
                )
        for name, run in self.runs.items():
            if self.replay.profile is not None:
                model = self.plans[run.plan].model.name
                note = f" (run {name})"
                self._check_profile("replay.profile", self.replay.profile, model, note)

    def _references(self) -> Iterator[tuple[str, str, str]]:
        """Names of entries in settings: the key, the name, the list that it is from."""
        for name, sweep in self.sweeps.items():
            yield f"sweeps.{name}.topology", sweep.topology, "topologies"
        for name, transition in self.transitions.items():
            yield f"transitions.{name}.before", transition.before, "topologies"
            yield f"transitions.{name}.after", transition.after, "topologies"
        for settings in ("mapping", "agreement", "bandwidth"):
            for topology in getattr(self, settings).topologies:
                yield f"{settings}.topologies", topology, "topologies"
        for name, plan in self.plans.items():
            yield f"plans.{name}.corpus", plan.corpus, "corpora"
        for plan_name in self.underlay.plans:
            yield "underlay.plans", plan_name, "plans"
        for name, run in self.runs.items():
            yield f"runs.{name}.plan", run.plan, "plans"

    def _check_profile(self, key: str, profile: str, model: str, note: str = "") -> None:
        of_model = [
            name for name, settings in self.profiles.items() if settings.model.name == model
        ]
        if profile not in of_model:
            allowed = f"{', '.join(of_model) or 'none here'}, the profiles of {model}{note}"
            raise SettingsError(key, f"got {profile!r}; allowed: {allowed}")


#: Keys of an experiment that hold one file of the group of the same name.
CHOSEN = tuple(
    one.name for one in dataclasses.fields(Experiment) if one.name not in ("name", "seed", *LISTED)
)


@dataclass(frozen=True)
class StageSettings:
    """One choice per group, for a stage run by hand (``railx STAGE``)."""

    seed: Seed
    """Seed of everything random; stages draw theirs from it."""
    topology: TopologySettings
    """The topology."""
    traffic: network_settings.TrafficSettings
    """The traffic pattern."""
    network: network_settings.NetworkSettings
    """The network model."""
    collective: network_settings.CollectiveSettings
    """Collectives to time."""
    bandwidth: network_settings.BandwidthSettings
    """What groups of ranks get from the topology."""
    mapping: MappingSettings
    """Training jobs on topologies."""
    switched: SwitchedSettings
    """Training jobs on circuits that are set once, switched in the job, or both."""
    tenancy: TenancySettings
    """Jobs and failures on a grid of nodes."""
    economics: EconomicsSettings
    """Bills of materials."""
    corpus: CorpusSettings
    """The corpus."""
    profile: ProfileSettings
    """What to measure of a decoder layer."""
    batch: BatchSettings
    """Which sequences each step takes."""
    cluster: ClusterSettings
    """The machine that plans are made for."""
    model: ModelSettings
    """The model."""
    cost_model: CostModelSettings
    """Time and memory of sequences on the machine."""
    planner: PlannerSettings
    """The planner."""
    fabric: RailSettings
    """The rails between the ranks."""
    training: TrainingSettings
    """How the plan is trained and timed."""
    live: LiveSettings
    """A program in plain torch on the rails."""
    step: StepSettings
    """Generated training steps."""
    design: DesignSettings
    """Networks and plans searched together."""
    arena: ArenaSettings
    """What one network and its rivals are asked."""
    tracking: TrackingSettings
    """Which trackers get the runs."""
    limits: LimitSettings
    """The most work that settings may ask for."""


def groups() -> dict[str, Any]:
    """The type behind the files of each folder of conf/ and the stage*.yaml beside."""
    stage = {name: hint for name, hint in field_hints(StageSettings).items() if name != "seed"}
    hints = field_hints(Experiment)
    further = {"job": JobSettings, "setting": PlanSetting, **{key: hints[key] for key in CHOSEN}}
    further |= {group: get_args(hints[key])[1] for key, group in LISTED.items()}
    return {
        **stage,
        **{name: further[name] for name in sorted(further) if name not in stage},
        "experiment": Experiment,
        "stage": StageSettings,
    }
