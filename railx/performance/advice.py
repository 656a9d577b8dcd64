"""Advice on a training job: the best plan, its time, memory and rivals, and why;
also as lines of text (``railx advise``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from railx.errors import UserError
from railx.performance.closed import PARTS
from railx.performance.devices import device_named
from railx.performance.huggingface import model_from_config
from railx.performance.layers import Setting
from railx.performance.memory import MEMORY_PARTS
from railx.performance.models import model_named
from railx.performance.networks import Network, TwoLevelRing
from railx.performance.plans import AXES, RECOMPUTATIONS, SHARDINGS, Array, Plan, Plans
from railx.performance.programs import Constants, constants_named, default_constants, program_named
from railx.performance.search import DEGREES, Job, Priced, first_plans, price, search, search_below
from railx.settings import AtLeast, Fraction, NotEmpty, Positive, SettingsError

if TYPE_CHECKING:
    from railx.vocabulary.topology import FamilySettings

#: Networks priced by rings: switches that never are the bottleneck.
RING_NETWORKS = ("rail_optimised", "fat_tree")
#: Tokens of a step where no batch is given (Llama 3's first phase, arXiv 2407.21783).
_STEP_TOKENS = 2**22
#: Fields of a plan that a row has after its degrees.
_OF_ROWS = (
    *("virtual", "micro_batch", "micro_batches", "schedule", "sharding", "recompute"),
    "sequence_parallel",
)
#: How many plans are shown.
_SHOWN = 3
#: NVIDIA's rule: most parameters of the class, least and most tensor degree, least and
#: most stages (Megatron Bridge, guide to parallelism strategies).
_RULE = (
    (1e9, 1, 1, 1, 1),
    (10e9, 2, 4, 1, 1),
    (70e9, 4, 8, 2, 4),
    (175e9, 8, 8, 4, 8),
    (math.inf, 8, 8, 8, 16),
)


@dataclass(frozen=True)
class NetworkOverrides:
    """Numbers of the network that differ from those of the device's usual node."""

    node_devices: Annotated[int, AtLeast(1)] | None = None
    """Devices of the fast domain; null: those of the device's node, or of a topology's.
    """
    slow_gb_s: Annotated[float, Positive()] | None = None
    """Bandwidth of a device between nodes; null: that of the device's node."""


@dataclass(frozen=True)
class GivenPlan:
    """A plan given by its degrees; the data degree follows, so that no device idles."""

    tensor: Annotated[int, AtLeast(1)] = 1
    """Tensor degree."""
    context: Annotated[int, AtLeast(1)] = 1
    """Context degree."""
    pipeline: Annotated[int, AtLeast(1)] = 1
    """Stages."""
    expert: Annotated[int, AtLeast(1)] = 1
    """Expert degree."""
    virtual: Annotated[int, AtLeast(1)] = 1
    """Virtual stages."""
    micro_batch: Annotated[int, AtLeast(1)] = 1
    """Sequences of a micro-batch."""
    recompute: Literal["none", "selective", "full"] = "none"
    """What backward passes compute again."""
    sharding: Literal["replicated", "optimizer", "gradients", "parameters"] = "optimizer"
    """What data-parallel ranks divide."""


@dataclass(frozen=True)
class AdviceSettings:
    """What ``railx advise`` is asked."""

    model: Annotated[str, NotEmpty()]
    """Model of the catalogue, or hf with model.path."""
    devices: Annotated[str, NotEmpty()]
    """Device of the catalogue."""
    gpus: Annotated[int, AtLeast(1)]
    """Devices that there are."""
    network: Annotated[str, NotEmpty()] = "rail_optimised"
    """What joins nodes: rail_optimised or fat_tree, which give every device its full
    bandwidth to other nodes, by rings; or a choice of ``conf/topology``, by exact
    loads."""
    tokens: Annotated[int, AtLeast(1)] = 8192
    """Tokens of a sequence."""
    global_batch: Annotated[int, AtLeast(1)] | None = None
    """Sequences of a step; null: 4 Mi tokens."""
    precision: Literal["bf16", "fp16", "fp8", "fp4"] = "bf16"
    """Precision of matrix products."""
    program: str = "torchtitan"
    """Program that trains."""
    constants: str | None = None
    """Fitted constants; null: those of the device and program."""
    memory_share: Annotated[float, Fraction()] = 0.9
    """Share of a device's memory that a plan may fill."""
    model_path: str = ""
    """A config.json, with model hf."""
    on: NetworkOverrides = field(default_factory=NetworkOverrides)
    """Other numbers of the network."""
    plan: GivenPlan | None = None
    """A plan to price beside the best."""

    @property
    def batch(self) -> int:
        """Sequences of a step."""
        return self.global_batch or max(1, _STEP_TOKENS // self.tokens)

    def __post_init__(self) -> None:
        if (self.model == "hf") != bool(self.model_path):
            raise SettingsError(
                "model.path",
                f"got {self.model_path!r} with model={self.model}; allowed: the path"
                " of a config.json with model=hf, and only with it",
            )


@dataclass(frozen=True, eq=False)
class Advice:
    """The answer: the fastest plans, rivals by rule and by hand, and the plan given.

    ``rows`` are mappings of plain values, seconds, bytes and shares with units in their
    names; ``reasons`` says in words what binds.
    """

    settings: AdviceSettings
    setting: Setting
    best: list[dict[str, Any]]
    baselines: dict[str, dict[str, Any]]
    given: dict[str, Any] | None
    plan: Plan
    reasons: list[str]
    expected_error: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "model": self.setting.model.name,
            "parameters": self.setting.model.parameters,
            "devices": self.setting.device.name,
            "gpus": self.settings.gpus,
            "global_batch": self.settings.batch,
            "tokens": self.settings.tokens,
            "network": self.settings.network,
            "network_model": self.setting.network.words,
            "constants": self.setting.constants.name,
            "fidelity": "analytic",
            "expected_error": self.expected_error,
            "largest_run_devices": self.setting.constants.largest_run_devices,
            "plans": self.best,
            "baselines": self.baselines,
            "given": self.given,
            "reasons": self.reasons,
        }


def advise(
    settings: AdviceSettings,
    topologies: Sequence[FamilySettings] = (),
    known: dict[str, Sequence[float]] | None = None,
) -> Advice:
    """The best plan of a job and what the others cost.

    ``topologies``: the network, and others of its family that may be larger; none where
    the network is priced by rings. ``known``: rates of the network by earlier advice on
    the same settings and topologies; new ones are added. Raises
    :class:`railx.errors.UserError` for a model that fits no plan, for degrees that
    leave devices over, for a precision that the device lacks, and for a network that is
    too small.
    """
    setting = setting_of(settings)
    job = Job(settings.gpus, settings.batch, settings.tokens, settings.memory_share)
    rivals = {"nvidia_rule": _by_rule, "3d_by_hand": _by_hand}
    if topologies:
        setting, bound, answered, nearer = _on_topology(setting, settings, topologies, known)
        priced = search_below(setting, job, bound, _SHOWN, list(rivals.values()), answered, nearer)
    else:
        priced = search(setting, job, None, _SHOWN, list(rivals.values()))
    shown = first_plans(priced, _SHOWN)
    fastest = float(priced.times.total_s[0])
    firsts = {
        name: np.flatnonzero(rule(setting, priced.plans))[:1] for name, rule in rivals.items()
    }
    given = _given(settings, setting, job) if settings.plan else None
    best = priced.plans.plan(0)
    return Advice(
        settings,
        setting,
        [_row(priced, row, settings, fastest) for row in shown],
        {
            name: _row(priced, int(row), settings, fastest)
            for name, rows in firsts.items()
            for row in rows
        },
        _row(given, 0, settings, fastest) if given else None,
        best,
        _reasons(priced, given),
        None if topologies else _expected_error(setting, best),
    )


def setting_of(settings: AdviceSettings) -> Setting:
    """Model, device, program and constants of a job, on rings of the device's nodes."""
    if settings.model == "hf":
        model = model_from_config(Path(settings.model_path))
    else:
        model = model_named(settings.model, "hf")
    device = device_named(settings.devices)
    device.peak_flops(settings.precision)
    if settings.constants:
        constants = constants_named(settings.constants)
    else:
        constants = default_constants(device.name, settings.program)
    network = TwoLevelRing.of(device, **_shares(constants, settings))
    program, precision = program_named(settings.program), settings.precision
    words = {"fp8": ("fp8", "float8"), "fp4": ("fp4",)}.get(precision, ())
    recipes = [name for name in constants.gains if any(word in name for word in words)]
    recipe = recipes[0] if recipes else ""
    return Setting(model, device, network, program, constants, precision, recipe)


def _on_topology(
    setting: Setting,
    settings: AdviceSettings,
    topologies: Sequence[FamilySettings],
    known: dict[str, Sequence[float]] | None,
) -> tuple[Setting, Network, Network, Network | None]:
    """The setting on a topology of enough chips, a network that bounds it, one that
    does where transfers were not asked, and one that asks what takes little time.
    """
    from railx.performance.topologies import Answered, on_devices, sized

    topology = sized(topologies[0], topologies[1:], settings.gpus, "network")
    shares = _shares(setting.constants, settings)
    network, bound = on_devices(topology, setting.device, settings.gpus, **shares, known=known)
    nearer = Answered(network, bound, asks=True) if network.bounds_gathers else None
    return replace(setting, network=network), bound, Answered(network, bound), nearer


def _shares(constants: Constants, settings: AdviceSettings) -> dict[str, Any]:
    """What a network takes besides its device."""
    return {
        "fast_share": constants.fast_share,
        "slow_share": constants.slow_share,
        "slow_gb_s": settings.on.slow_gb_s,
        "node_devices": settings.on.node_devices,
    }


def _by_rule(setting: Setting, plans: Plans) -> Array:
    """Plans that NVIDIA's rule by model size allows; where there are experts, these."""
    model = setting.model
    size = model.parameters
    _, least_tensor, most_tensor, least_stages, most_stages = next(
        entry for entry in _RULE if size <= entry[0]
    )
    if model.experts:
        spread: Array = (plans["tensor"] <= 2) & (plans["expert"] > 1) & (plans["context"] == 1)
        return spread
    allowed: Array = (
        (plans["tensor"] >= least_tensor)
        & (plans["tensor"] <= most_tensor)
        & (plans["pipeline"] >= least_stages)
        & (plans["pipeline"] <= most_stages)
        & (plans["context"] == 1)
        & (plans["sharding"] == SHARDINGS.index("optimizer"))
    )
    return allowed


def _by_hand(setting: Setting, plans: Plans) -> Array:
    """3D parallelism by hand: tensor ranks fill a node, as few stages as fit, no
    interleaving, the rest data parallel with everything recomputed.
    """
    node = setting.network.node_devices
    mask: Array = (
        (plans["tensor"] == min(node, setting.model.heads))
        & (plans["context"] == 1)
        & (plans["virtual"] == 1)
        & (plans["recompute"] == RECOMPUTATIONS.index("full"))
        & (plans["sharding"] == SHARDINGS.index("optimizer"))
    )
    least = plans["pipeline"][mask].min() if mask.any() else 0
    mask &= plans["pipeline"] == least
    return mask


def _given(settings: AdviceSettings, setting: Setting, job: Job) -> Priced:
    """The plan given by its degrees, on all devices."""
    assert settings.plan is not None
    degrees = asdict(settings.plan)
    inside = degrees["tensor"] * degrees["context"] * degrees["pipeline"]
    if settings.gpus % inside:
        raise UserError(
            f"plan: got tensor x context x pipeline {inside}, which leaves"
            f" {settings.gpus % inside} of {settings.gpus} gpus over; allowed: degrees whose"
            " product divides gpus"
        )
    data = settings.gpus // inside
    step = data * degrees["micro_batch"]
    if job.global_batch % step:
        raise UserError(
            f"plan.micro_batch: got {degrees['micro_batch']} with {data} replicas; allowed: their"
            f" product divides global_batch, {job.global_batch}"
        )
    if setting.model.heads % degrees["tensor"]:
        raise UserError(
            f"plan.tensor: got {degrees['tensor']}; allowed: a divisor of the"
            f" {setting.model.heads} heads"
        )
    if degrees["pipeline"] * degrees["virtual"] > setting.model.layers:
        raise UserError(
            f"plan.pipeline: got {degrees['pipeline']} x {degrees['virtual']} stages; allowed: at"
            f" most {setting.model.layers}, the layers"
        )
    if degrees["virtual"] > 1 == degrees["pipeline"]:
        raise UserError(
            f"plan.virtual: got {degrees['virtual']} with one stage; allowed: 1, or plan.pipeline"
            " above 1"
        )
    micro_batches = job.global_batch // step
    if degrees["virtual"] > 1 and micro_batches % degrees["pipeline"]:
        raise UserError(
            f"plan.virtual: got {degrees['virtual']} with {micro_batches} micro-batches in"
            f" {degrees['pipeline']} stages; allowed: 1, or micro-batches that are a multiple of"
            " the stages"
        )
    experts = setting.model.experts or 1
    if experts % degrees["expert"]:
        raise UserError(
            f"plan.expert: got {degrees['expert']}; allowed: a divisor of the experts, {experts}"
        )
    try:
        plan = Plan(
            **degrees,
            data=data,
            micro_batches=micro_batches,
            sequence_tokens=settings.tokens,
            sequence_parallel=degrees["tensor"] > 1,
            schedule="interleaved" if degrees["virtual"] > 1 else "1f1b",
        )
    except SettingsError as error:
        raise error.under("plan") from None
    return price(setting, Plans.of([plan]))


def _row(priced: Priced, row: int, settings: AdviceSettings, fastest_s: float) -> dict[str, Any]:
    plan = priced.plans.plan(row)
    seconds = float(priced.times.total_s[row])
    tokens_s = plan.tokens / seconds
    device = priced.setting.device
    watts, room_gb = device.watts, device.capacity_gb * settings.memory_share
    return {
        **{name: getattr(plan, name) for name in (*DEGREES, *_OF_ROWS)},
        "order": list(plan.order),
        "gpus": plan.devices,
        "idle_gpus": settings.gpus - plan.devices,
        "step_s": seconds,
        "slower": seconds / fastest_s - 1,
        "tokens_per_s": tokens_s,
        "tokens_per_s_gpu": tokens_s / plan.devices,
        "mfu": float(priced.utilisation[row]),
        "tokens_per_joule": tokens_s / (plan.devices * watts) if watts else None,
        "time_s": {name: float(priced.times.parts[name][row]) for name in PARTS},
        "memory_gb": {name: float(priced.memory.parts[name][row]) / 1e9 for name in MEMORY_PARTS},
        "memory_total_gb": float(priced.memory.total_bytes[row]) / 1e9,
        "fits": bool(priced.memory.total_bytes[row] <= room_gb * 1e9),
    }


def _reasons(priced: Priced, given: Priced | None) -> list[str]:
    """What binds the best plan, and where a given one loses."""
    parts = {name: float(priced.times.parts[name][0]) for name in PARTS}
    total = sum(parts.values())
    largest = sorted((name for name in PARTS if name != "compute"), key=lambda name: -parts[name])
    memory = float(priced.memory.total_bytes[0]) / (priced.setting.device.capacity_gb * 1e9)
    reasons = [
        ", ".join(
            f"{name} {parts[name] / total:.0%}"
            for name in ("compute", *largest[:2])
            if parts[name] >= 0.005 * total
        )
        + " of the step",
        f"memory is {memory:.0%} full",
    ]
    if given is not None:
        difference = {name: float(given.times.parts[name][0]) - parts[name] for name in PARTS}
        worst = sorted(filter(difference.get, PARTS), key=lambda name: -abs(difference[name]))[:3]
        listed = ", ".join(f"{name} {difference[name]:+.3g} s" for name in worst)
        reasons.append(f"the given plan differs by {listed or 'nothing'}")
    return reasons


def _expected_error(setting: Setting, plan: Plan) -> float | None:
    """Mean error of rows left out of the fit, for plans like this one."""
    errors: Mapping[str, float] = setting.constants.errors
    node_devices = setting.network.node_devices
    if plan.tensor > node_devices and "tensor_across_nodes" in errors:
        return errors["tensor_across_nodes"]
    kind = "one_node" if plan.devices <= node_devices else "several_nodes"
    return errors.get(kind, errors.get("all"))


def advice_lines(advice: Advice) -> list[str]:
    """The best plans, why the first is the best, and what it is compared with."""
    answer = advice.as_dict()
    lines = [
        (
            f"{answer['model']} ({answer['parameters'] / 1e9:.1f} B) on {answer['gpus']}"
            f" {answer['devices']}, steps of {answer['global_batch']:,} sequences of"
            f" {answer['tokens']:,} tokens, network {answer['network']}"
            f" ({answer['network_model']}), constants {answer['constants']}"
        )
    ]
    for number, row in enumerate(answer["plans"], 1):
        lines += [f"\n{number}. {_degrees(row)}", f"   {_numbers(row)}"]
        if number == 1:
            lines.append("   time: " + _listed_parts(row["time_s"], "s"))
            lines.append("   memory: " + _listed_parts(row["memory_gb"], "GB"))
    lines.append("\nwhy: " + "; ".join(answer["reasons"]))
    for name, row in answer["baselines"].items():
        lines.append(f"{name.replace('_', ' ')}: {_degrees(row)}; {_numbers(row)}")
    if answer["given"]:
        lines.append(f"given plan: {_degrees(answer['given'])}; {_numbers(answer['given'])}")
    if answer["expected_error"] is not None:
        lines.append(
            f"expected error of these times: {answer['expected_error']:.0%}, the mean on measured"
            f" runs of at most {answer['largest_run_devices']} devices left out of the fit"
            " (railx validate)"
        )
    else:
        lines.append("expected error of these times: not known, no such run is measured")
    return lines


def comparison_lines(advice: Advice) -> list[str]:
    """The best plan beside the given one, part by part of time and memory.

    There must be a given plan.
    """
    best, given = advice.best[0], advice.given
    assert given is not None
    lines = [
        f"best:  {_degrees(best)}\n       {_numbers(best)}",
        f"given: {_degrees(given)}\n       {_numbers(given)}\n",
    ]
    for title, key, unit in (("time", "time_s", "s"), ("memory", "memory_gb", "GB")):
        lines.append(f"{title:<12}{'best':>10}{'given':>10}{'difference':>12}  {unit}")
        for name in best[key]:
            ours, theirs = best[key][name], given[key][name]
            if ours or theirs:
                lines.append(f"{name:<12}{ours:>10.3f}{theirs:>10.3f}{theirs - ours:>+12.3f}")
        lines.append("")
    return [*lines, "why: " + "; ".join(advice.reasons)]


def _degrees(row: Mapping[str, Any]) -> str:
    words = [
        f"{name} {row[name]}"
        for name in ("data", "tensor", "context", "pipeline", "expert", "virtual")
        if row[name] > 1
    ]
    words.append(f"{row['micro_batches']} micro-batches of {row['micro_batch']}")
    words.append(f"sharding {row['sharding']}, recompute {row['recompute']}")
    if tuple(row["order"]) != AXES:
        words.append(f"placed {', '.join(row['order'])} outwards")
    return ", ".join(words)


def _numbers(row: Mapping[str, Any]) -> str:
    idle = f", {row['idle_gpus']} of the gpus idle" if row["idle_gpus"] else ""
    slower = f", {row['slower']:+.1%}" if row["slower"] else ""
    fits = "" if row["fits"] else " (does not fit)"
    joule = (
        f", {row['tokens_per_joule']:.2f} tokens/J at rated power"
        if row["tokens_per_joule"]
        else ""
    )
    return (
        f"step {row['step_s']:.3f} s{slower}, {row['tokens_per_s']:,.0f} tokens/s, MFU"
        f" {row['mfu']:.1%}, {row['memory_total_gb']:.1f} GB{fits}{joule}{idle}"
    )


def _listed_parts(parts: Mapping[str, float], unit: str) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in parts.items() if value) + f" {unit}"
