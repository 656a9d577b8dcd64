"""A generator of mistakes: every setting of conf/ with values that nobody can mean.

The schema says what a setting is, so it also says what it is not: another type, out of
range, unknown, empty, missing, huge. Each mistake must be refused in one line that
names the key and what is allowed, before anything is computed or written:
``make mistakes``.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from railx.families import TopologySettings
from railx.settings import (
    AtLeast,
    Between,
    Fraction,
    NonNegative,
    OneOf,
    Positive,
    PowerOfTwo,
    Registered,
    SettingsError,
    field_hints,
    load,
    to_dict,
)
from workflow.config import check_experiment, choices, compose_experiment
from workflow.settings import Experiment

__all__ = [
    "ALLOWED",
    "Checker",
    "Mistake",
    "Setting",
    "experiment_mistakes",
    "is_allowed",
    "mistakes_of",
    "settings_of",
]

#: What is drawn as a mistake but is none, by class and field.
ALLOWED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    # Lists that may name nothing, or all; text that may be left out.
    "empty": {
        "DesignSettings": ("families", "price_sets"),
        "AdaptiveSpeedupsSettings": ("plans",),
        "BandwidthSettings": (
            "derived",
            "only",
        ),
        "AllToAllDegreeSettings": (
            "plans",
            "tables",
        ),
        "ChannelLoadsSettings": ("only",),
        "ClusterSettings": (
            "all_to_all_latency_ms",
            "gather_gb_s",
        ),
        "ClusterTimeSettings": ("only",),
        "CollectiveTimeSettings": ("only",),
        "CorpusLengthsSettings": (
            "only",
            "quantiles",
        ),
        "CostModelErrorSettings": ("only",),
        "CostScaleSettings": ("only",),
        "CostSettings": (
            "only",
            "published_usd",
        ),
        "EmulatedSwitchSettings": (
            "failures",
            "technology",
        ),
        "Experiment": (
            "corpora",
            "plans",
            "runs",
            "figures",
            "live",
            "networks",
            "profiles",
            "steps",
            "sweeps",
            "transitions",
        ),
        "HeldMemorySettings": ("only",),
        "IterationPartsSettings": ("note",),
        "LatencyLoadSettings": (
            "only",
            "panels",
        ),
        "LayoutSettings": (
            "mesh",
            "x",
            "y",
        ),
        "LiveSettings": ("latencies_ms",),
        "LiveSwitchingSettings": ("only",),
        "PipelineScheduleSettings": ("only",),
        "PlannersSettings": ("published",),
        "PlanningHiddenSettings": ("only",),
        "PricedNetwork": ("copper_links",),
        "ProfileSettings": ("exchange_degrees",),
        "RailBillsSettings": ("switch",),
        "RailRingsSettings": ("only",),
        "ReconfigurationSettings": ("only",),
        "ReplaySettings": (
            "on_demand_latencies_ms",
            "provisioned_latencies_ms",
        ),
        "RingAllReduceSettings": ("only",),
        "PlanGroupsSettings": ("only",),
        "StageMemorySettings": ("only",),
        "WeightedModel": ("stage_layers",),
        "StepSweepsSettings": (
            "bandwidth",
            "experts",
            "scaling",
            "utilisation",
        ),
        "StepTimeSettings": (
            "named",
            "only",
        ),
        "StepWindowsSettings": (
            "passes",
            "timeline",
        ),
        "SweepSettings": (
            "bandwidth_latencies_ms",
            "bandwidths_gb_s",
            "loads",
        ),
        "TechnologiesSettings": (
            "chips_per_server",
            "sides",
        ),
        "OverheadSettings": ("only",),
        "TopologyMetricsSettings": ("only",),
        "TrackingSettings": ("entity",),
        "TrainingSettings": (
            "on_demand_latencies_ms",
            "provisioned_latencies_ms",
        ),
        "UnderlayFigureSettings": ("only",),
        "UnderlaySettings": (
            "networks",
            "outside_gb_s",
            "plans",
        ),
        "UnderlyingNetwork": ("groups",),
        "KHopRingSettings": ("failed",),
        "TraceSettings": ("spare_shares",),
        "ArenaFigureSettings": (
            "only",
            "marked",
        ),
        "TopoOptSettings": ("strides",),
        "ArenaSettings": (
            "networks",
            "traffics",
            "loads_over_bound",
            "jobs",
        ),
        "PointSettings": ("price_sets",),
        "HostSettings": ("fitted_on",),
        "NodePricesSettings": ("only",),
        "FaultTraceSettings": ("only",),
        "PipelineSpeedupsSettings": ("only",),
        "PlansAtScaleSettings": ("model",),
        "ShardedReplicasSettings": ("device",),
    },
    # Numbers that only enter formulas, and limits of searches that end by themselves.
    "huge": {
        "DesignSettings": (
            "global_batch",
            "simulated",
            "simulated_chips",
            "tokens",
        ),
        "AllToAllDegreeSettings": ("devices_per_node",),
        "AnalyticCostSettings": (
            "checkpoint_layers",
            "state_bytes_per_parameter",
        ),
        "BatchSettings": ("max_length_tokens",),
        "ChunkFlowSettings": (
            "alignment_tokens",
            "checkpointed_layers",
            "chunk_tokens",
            "kept_chunks",
            "most_parts",
        ),
        "ClusterSettings": ("tokens_per_device",),
        "CollectiveSettings": ("payload_bytes",),
        "DappleSettings": (
            "checkpointed_layers",
            "chunk_tokens",
            "most_parts",
        ),
        "DegreeSettings": ("tensor",),
        "DynaPipeSettings": ("checkpointed_layers",),
        "DynamicCPSettings": ("tokens_per_rank",),
        "ExpertSettings": ("experts",),
        "FittedCostSettings": (
            "checkpoint_layers",
            "state_bytes_per_parameter",
        ),
        "FlexSPMilpSettings": ("work_limit",),
        "JobSettings": (
            "micro_batch_sequences",
            "bytes_per_element",
            "gradient_bytes_per_element",
            "sequence_tokens",
        ),
        "JointSettings": ("most_stages",),
        "MegatronPipelineSettings": (
            "checkpointed_layers",
            "chunk_tokens",
            "devices_per_node",
        ),
        "MegatronSettings": ("devices_per_node",),
        "MixtureCorpusSettings": ("longest_tokens",),
        "OptimizerSettings": ("decay_steps",),
        "PermutationTraffic": ("offset",),
        "PipelineSettings": (
            "alignment_tokens",
            "most_slices",
        ),
        "ProfileSettings": ("held_out_seed",),
        "ProfiledCostSettings": (
            "checkpoint_layers",
            "state_bytes_per_parameter",
        ),
        "RailBillsSettings": (
            "least_gpus",
            "transceivers_per_gpu",
        ),
        "RailPlatform": (
            "chips_per_server",
            "electrical_switch_radix",
        ),
        "RailRingsSettings": ("line",),
        "RailSettings": ("gpus_per_server",),
        "Seq1F1BSettings": (
            "alignment_tokens",
            "checkpointed_layers",
            "chunk_tokens",
            "most_parts",
        ),
        "SlimPipeSettings": (
            "alignment_tokens",
            "checkpointed_layers",
            "most_parts",
            "slice_tokens",
        ),
        "StageMemorySettings": ("replica",),
        "StdlibCorpusSettings": ("sequences",),
        "StepJob": (
            "bytes_per_element",
            "micro_batch_sequences",
            "sequence_tokens",
        ),
        "WeightedModel": (
            "attention_weights",
            "dense_weights",
            "expert_weights",
            "experts",
            "hidden",
            "input_weights",
            "norm_weights",
            "output_weights",
            "score_width",
            "shared_weights",
            "whole_attention_weights",
        ),
        "TechnologiesSettings": ("chips_per_server",),
        "TrackingSettings": ("table_rows",),
        "TrainingSettings": ("checkpoint_every",),
        "VariantSettings": ("micro_batch_sequences",),
        "ArenaFigureSettings": ("chips",),
        "ScalingSettings": ("published_every",),
        "ArenaSettings": ("packet_chips",),
        "ExpertTraffic": ("group",),
        "TrainingJob": ("tokens",),
        "ServingJob": (
            "tokens",
            "expert",
        ),
        "PointSettings": (
            "tokens",
            "global_batch",
        ),
        "ExpertCounts": ("exchanged_copies",),
    },
    # Text for readers, and words that a figure looks up in the tables of a run.
    "name": {
        "AdaptiveSpeedupsSettings": ("plans",),
        "AllToAllDegreeSettings": (
            "model",
            "plans",
        ),
        "ClusterSettings": ("name",),
        "CollectiveTimeSettings": ("scope",),
        "DeviceSettings": ("name",),
        "EmulatedSwitchSettings": (
            "state_file",
            "technology",
        ),
        "Experiment": ("name",),
        "IterationPartsSettings": (
            "note",
            "title",
        ),
        "MixtureCorpusSettings": (
            "anchors",
            "name",
        ),
        "ModelSettings": ("name",),
        "NetworkPricesSettings": ("price_set",),
        "PlannersSettings": (
            "context",
            "model",
        ),
        "QuantileCorpusSettings": ("name",),
        "RailBillsSettings": ("switch",),
        "RailSettings": ("host",),
        "StdlibCorpusSettings": ("name",),
        "WeightedModel": ("name",),
        "StepSweepsSettings": (
            "bandwidth",
            "experts",
            "rule",
            "scaling",
            "utilisation",
        ),
        "StepSwitchesSettings": ("rule",),
        "StepTimeSettings": ("named",),
        "StepWindowsSettings": (
            "passes",
            "timeline",
        ),
        "TrackingSettings": (
            "entity",
            "project",
        ),
        "UnderlayFigureSettings": (
            "adaptive",
            "single",
        ),
        "UnderlyingNetwork": ("label",),
        "TraceSettings": ("file",),
        "FaultTraceSettings": (
            "file",
            "only",
        ),
        "AllClaimsSettings": ("paper",),
        "ArenaFigureSettings": ("marked",),
        "FileCorpusSettings": (
            "name",
            "column",
        ),
        "HostSettings": ("fitted_on",),
        "PlansAtScaleSettings": ("model",),
        "ShardedReplicasSettings": ("device",),
    },
}

#: A line that says what is allowed can be long, but not a page.
MOST_CHARACTERS = 4000


@dataclass(frozen=True)
class Setting:
    """A place in an experiment that holds a value: its type and whose field it is."""

    key: str
    hint: Any
    value: Any
    owner: Any

    @property
    def field(self) -> str:
        return f"{type(self.owner).__name__}.{self.key.rpartition('.')[2]}"


@dataclass(frozen=True)
class Mistake:
    """A value that a setting of an experiment cannot have."""

    kind: str
    setting: Setting
    experiment: str
    value: Any

    @property
    def key(self) -> str:
        return self.setting.key

    @property
    def overrides(self) -> tuple[str, str]:
        """The same in Hydra's syntax."""
        return f"experiment={self.experiment}", f"{self.key}={in_grammar(self.value)}"

    def __str__(self) -> str:
        return f"{self.kind}: {' '.join(self.overrides)}"


def in_grammar(value: Any) -> str:
    """A value as Hydra's overrides write it."""
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {in_grammar(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(in_grammar, value)) + "]"
    return "null" if value is None else str(value).lower()


def settings_of(cls: type, settings: Any, key: str = "") -> Iterator[Setting]:
    """Every setting of checked settings, containers before what they hold."""
    for name, hint in field_hints(cls).items():
        own = f"{key}.{name}" if key else name
        value = getattr(settings, name)
        yield Setting(own, hint, value, settings)
        yield from _below(value, own)


def _below(value: Any, key: str) -> Iterator[Setting]:
    if dataclasses.is_dataclass(value):
        yield from settings_of(type(value), value, key)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            # A key of digits or with a point is no override.
            if str(name).isidentifier():
                yield from _below(inner, f"{key}.{name}")


#: Of every type one value.
_VALUES: Mapping[Any, Any] = {
    str: "no such word",
    int: 7,
    float: 0.125,
    bool: True,
    list: [1],
    dict: {"no_such_key": 1},
}


def mistakes_of(hint: Any) -> Iterator[tuple[str, Any]]:
    """Kinds of mistakes and values of them, for a setting of a type."""
    kinds, carried = _options(hint)
    if type(None) not in kinds:
        yield "null", None
    yield from (("type", value) for value in _of_other_types(kinds))
    for one in carried:
        yield from (("range", value) for value in _outside(one))
    if Literal in kinds:
        yield "choice", "no_such_choice"
        yield "choice", ""
    if str in kinds:
        yield "name", "no_such_name"
        yield "empty", ""
    if int in kinds:
        yield from (("huge", value) for value in (10**12, -(10**12), 10**30))
    if int in kinds or float in kinds:
        yield "huge", 1e300
    if float in kinds:
        yield "range", float("nan")
        yield "range", float("inf")
    if list in kinds:
        yield "empty", []
        (item, *_) = get_args(kinds[list])
        yield from ((kind, [value]) for kind, value in mistakes_of(item))
    if dict in kinds:
        yield "empty", {}
        yield "unknown", {"no_such_key": 1}


def _options(hint: Any) -> tuple[dict[Any, Any], list[Any]]:
    """What a type can be, by kind, and the constraints that ``Annotated`` carries."""
    if get_origin(hint) is Annotated:
        inner, *carried = get_args(hint)
        if any(isinstance(one, Registered) for one in carried):
            return {dataclasses: inner}, []
        kinds, own = _options(inner)
        return kinds, [*carried, *own]
    if get_origin(hint) in (Union, types.UnionType):
        kinds, carried = {}, []
        for option in get_args(hint):
            own_kinds, own = _options(option)
            kinds |= own_kinds
            carried += own
        return kinds, carried
    if dataclasses.is_dataclass(hint):
        return {dataclasses: hint}, []
    origin = get_origin(hint) or hint
    kind = {tuple: list, Mapping: dict, typing.Mapping: dict}.get(origin, origin)
    return {kind: hint}, []


def _of_other_types(kinds: Mapping[Any, Any]) -> Iterator[Any]:
    also = {
        str: str in kinds or Literal in kinds,
        int: bool({int, float, Literal} & kinds.keys()),
        float: float in kinds,
        bool: bool in kinds or Literal in kinds,
        list: list in kinds,
        dict: dict in kinds or dataclasses in kinds,
    }
    yield from (value for kind, value in _VALUES.items() if not also[kind])


def _outside(constraint: Any) -> Iterator[Any]:
    """Values that a constraint refuses."""
    if isinstance(constraint, AtLeast):
        yield constraint.minimum - 1
    elif isinstance(constraint, Between):
        yield from (constraint.minimum - 1, constraint.maximum + 1)
    elif isinstance(constraint, Positive):
        yield from (0, -1)
    elif isinstance(constraint, NonNegative):
        yield -1
    elif isinstance(constraint, Fraction):
        yield from (0, 1.5, -1)
    elif isinstance(constraint, PowerOfTwo):
        yield from (3, 0, -2)
    elif isinstance(constraint, OneOf):
        yield "no_such_choice"


def experiment_mistakes(names: Iterable[str]) -> Iterator[Mistake]:
    """Mistakes in every setting of the experiments, each once for a field."""
    seen: set[tuple[str, str]] = set()
    for name in names:
        settings = compose_experiment([f"experiment={name}"])
        for setting in settings_of(Experiment, settings):
            drawn = list(mistakes_of(setting.hint))
            if dataclasses.is_dataclass(setting.value):
                drawn.append(("unknown", {**to_dict(setting.value), "no_such_key": 1}))
            for kind, value in drawn:
                known = (setting.field, "unknown" if kind == "unknown" else repr(value))
                if known not in seen and not is_allowed(kind, setting.field):
                    seen.add(known)
                    yield Mistake(kind, setting, name, value)


def is_allowed(kind: str, field: str) -> bool:
    """Whether what is drawn of a field is no mistake there."""
    cls, _, name = field.partition(".")
    return name in ALLOWED.get(kind, {}).get(cls, ())


class Checker:
    """Says how mistakes are met."""

    def __init__(self) -> None:
        self._plain: dict[str, dict[str, Any]] = {}

    def unclear(self, mistake: Mistake) -> str:
        """What is wrong with how a mistake is met; empty where nothing is."""
        try:
            self._check(mistake)
        except SettingsError as error:
            return _unclear(str(error), mistake)
        except Exception as error:
            return f"ends in {type(error).__name__}: {error}"
        return "is accepted"

    def _check(self, mistake: Mistake) -> None:
        owner, name = mistake.setting.owner, mistake.experiment
        above, _, own = mistake.key.rpartition(".")
        if above:
            # Most mistakes are met here, in a thousandth of the time.
            part = {one.name: getattr(owner, one.name) for one in dataclasses.fields(owner)}
            kind = TopologySettings if hasattr(owner, "family") else type(owner)
            load(kind, {**part, own: mistake.value}, above)
        if name not in self._plain:
            self._plain[name] = to_dict(compose_experiment([f"experiment={name}"]))
        plain = self._plain[name]
        top, *below = mistake.key.split(".")
        changed = {**plain, top: _with_value(plain[top], below, mistake.value)}
        check_experiment(load(Experiment, changed))


def _with_value(plain: Any, way: list[str], value: Any) -> Any:
    if not way:
        return value
    return {**plain, way[0]: _with_value(plain[way[0]], way[1:], value)}


def _unclear(line: str, mistake: Mistake) -> str:
    if "\n" in line or len(line) > MOST_CHARACTERS:
        return f"takes more than a line: {line!r}"
    # What is too large together is said of one of its parts, what is empty of who asks.
    named = ".".join(mistake.key.split(".")[:2]) if mistake.kind == "huge" else mistake.key
    if named not in line and not (mistake.kind == "empty" and "." not in named):
        return f"does not name {named}: {line}"
    if "allowed" not in line and "is missing" not in line:
        return f"does not say what is allowed: {line}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw mistakes; see whether all are refused.")
    parser.add_argument("--most", type=int, default=0, help="so many, drawn (0: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--experiments", nargs="*", default=choices("experiment"))
    options = parser.parse_args()
    drawn = list(experiment_mistakes(options.experiments))
    if options.most:
        drawn = random.Random(options.seed).sample(drawn, min(options.most, len(drawn)))
    checker = Checker()
    unclear = 0
    for mistake in drawn:
        said = checker.unclear(mistake)
        if said:
            unclear += 1
            print(f"{mistake} ({mistake.setting.field}) {said}", flush=True)
    print(f"{len(drawn)} mistakes, {unclear} not met with one clear line")
    return 1 if unclear else 0


if __name__ == "__main__":
    sys.exit(main())
