"""Settings of the mapping stage: jobs and the topologies they are laid on.

A job says on which axes its parallelisms lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal, TypeAlias

from railx.effort import Cost, Costs
from railx.families import TopologySettings, families_with, family_of
from railx.network.settings import StaticRoutingName
from railx.performance.decoder import ModelSettings
from railx.performance.devices import ChipSettings
from railx.performance.memory import plan_memory_gb
from railx.performance.models import Model
from railx.performance.plans import Plan
from railx.settings import AtLeast, NonNegative, NotEmpty, Positive, SettingsError, check_names
from railx.steps.settings import StepSettings

#: Tensor, sequence (context), expert, data and pipeline parallelism.
PARALLELISMS = ("tensor", "sequence", "expert", "data", "pipeline")

Degrees: TypeAlias = dict[str, Annotated[int, AtLeast(1)]]


@dataclass(frozen=True)
class LayoutSettings:
    """Which parallelism lies on which axis, from the inside out: degrees by name.

    A job takes as many chips of a node, nodes of a row and nodes of a column as the
    products of the degrees say. A parallelism may lie on several axes; its degree is
    then the product.
    """

    mesh: Degrees
    """Degrees on the mesh of a node: tensor, sequence, expert, data or pipeline."""
    x: Degrees
    """Degrees on a row of nodes."""
    y: Degrees
    """Degrees on a column of nodes."""

    def __post_init__(self) -> None:
        for axis in ("mesh", "x", "y"):
            for name in getattr(self, axis):
                if name not in PARALLELISMS:
                    raise SettingsError(
                        f"{axis}.{name}", f"unknown parallelism; allowed: {', '.join(PARALLELISMS)}"
                    )

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Chips of a node, nodes of a row, nodes of a column."""
        return math.prod(self.mesh.values()), math.prod(self.x.values()), math.prod(self.y.values())

    @property
    def chips(self) -> int:
        return math.prod(self.sizes)

    @property
    def degrees(self) -> list[tuple[str, int]]:
        """Names and degrees from the inside out."""
        return [*self.mesh.items(), *self.x.items(), *self.y.items()]

    def degree(self, parallelism: str, axes: Sequence[str] = ("mesh", "x", "y")) -> int:
        """The product of the parallelism's degrees on some axes."""
        return math.prod(getattr(self, axis).get(parallelism, 1) for axis in axes)


@dataclass(frozen=True)
class ExpertSettings:
    """A mixture of experts.

    Every feed-forward layer becomes several, of which a token visits a few.
    """

    experts: Annotated[int, AtLeast(2)]
    """Experts per layer."""
    experts_per_token: Annotated[int, AtLeast(1)]
    """Experts that each token visits; at most experts."""

    def __post_init__(self) -> None:
        if self.experts_per_token > self.experts:
            raise SettingsError(
                "experts_per_token",
                f"got {self.experts_per_token}; allowed: at most {self.experts}, the experts",
            )


@dataclass(frozen=True)
class JobSettings:
    """One training job; every replica takes the same micro-batches per step.

    They run as a 1F1B pipeline.
    """

    model: ModelSettings
    """Shape of the model."""
    experts: ExpertSettings | None
    """Experts in the place of its feed-forward layers; null: a dense model."""
    layout: LayoutSettings
    """Which parallelism lies on which axis."""
    sequence_tokens: Annotated[int, AtLeast(1)]
    """Length of every sequence; a multiple of sequence x tensor degrees."""
    micro_batches: Annotated[int, AtLeast(1)]
    """Micro-batches that a replica takes per step."""
    bytes_per_element: Annotated[int, AtLeast(1)]
    """Bytes of one activation or parameter as it is sent."""
    gradient_bytes_per_element: Annotated[int, AtLeast(1)]
    """Bytes of one gradient as it is reduced."""
    chip: ChipSettings
    """How fast one chip computes."""
    micro_batch_sequences: Annotated[int, AtLeast(1)] = 1
    """Sequences of a micro-batch."""
    recompute: Literal["none", "selective", "full"] = "none"
    """What a backward pass computes again: nothing, the scores, or whole layers."""
    overlaps_data: bool = False
    """Whether gradients and parameters travel behind the last backward pass."""
    memory_gb: Annotated[float, Positive()] | None = None
    """Memory of a chip, in 10⁹ bytes: a job that needs more has no times; null: not
    looked at."""

    def __post_init__(self) -> None:
        layout, model = self.layout, self.model
        experts = 1 if self.experts is None else self.experts.experts
        for name, count, word in (
            ("pipeline", model.layers, "layers"),
            ("tensor", model.heads, "heads"),
            ("expert", experts, "experts"),
        ):
            degree = layout.degree(name)
            if count % degree:
                allowed = f"a divisor of the {count} {word}"
                raise SettingsError("layout", f"{name} degree {degree}; allowed: {allowed}")
        parts = layout.degree("sequence") * layout.degree("tensor")
        if self.sequence_tokens % parts:
            raise SettingsError(
                "sequence_tokens",
                f"got {self.sequence_tokens}; allowed: a multiple of {parts}, sequence x tensor",
            )

    @cached_property
    def decoder(self) -> Model:
        """The model with its experts, and positions as long as the sequences."""
        shape = self.model.shape(self.sequence_tokens)
        if self.experts is None:
            return shape
        return replace(
            shape,
            experts=self.experts.experts,
            experts_per_token=self.experts.experts_per_token,
            expert_feed_forward=shape.feed_forward,
        )

    @property
    def plan(self) -> Plan:
        """Degrees of the job; replicas share the optimizer's state."""
        degree = self.layout.degree
        return Plan(
            data=degree("data") * degree("expert"),
            tensor=degree("tensor"),
            context=degree("sequence"),
            pipeline=degree("pipeline"),
            expert=degree("expert"),
            micro_batch=self.micro_batch_sequences,
            micro_batches=self.micro_batches,
            sequence_tokens=self.sequence_tokens,
            sharding="optimizer",
            recompute=self.recompute,
            sequence_parallel=True,
        )

    def check_memory(self) -> None:
        """Raise SettingsError for a job that needs more memory than a chip has."""
        if self.memory_gb is None:
            return
        needed_gb = plan_memory_gb(
            self.decoder, self.plan, self.bytes_per_element, self.gradient_bytes_per_element
        )
        if needed_gb > self.memory_gb:
            allowed = f"at most {self.memory_gb:g}, memory_gb"
            raise SettingsError("layout", f"needs {needed_gb:.4g} GB a chip; allowed: {allowed}")

    def costs(self) -> Costs:
        return {"micro_batches": Cost(1e-4, 1e2) * self.micro_batches}


@dataclass(frozen=True)
class PriceSettings:
    """The prices of networks."""

    catalogue: Annotated[str, NotEmpty()]
    """CSV table of prices, relative to the repository."""
    price_set: Annotated[str, NotEmpty()]
    """Price set of the catalogue, in proportion to the rate of a port."""


@dataclass(frozen=True)
class MappedTopology:
    """A topology of the comparison; its bill is that of the topology's own settings."""

    routings: Annotated[tuple[StaticRoutingName, ...], NotEmpty()]
    """Routings on offer; each transfer takes the best."""
    priced: bool = True
    """Whether it is compared at equal cost too; families without a bill never are."""


@dataclass(frozen=True)
class MappingSettings(PriceSettings):
    """All jobs on all topologies.

    Equal bandwidth: the ports of every topology are scaled to
    ``injection_gb_s_per_chip``. Equal cost: its ports are scaled once more, to what the
    network of ``reference`` costs per chip. Links inside a node keep the rate that they
    have at equal bandwidth: free, and with ``node_price_set`` once more charged.
    """

    jobs: Annotated[dict[str, JobSettings], NotEmpty()]
    """Jobs by name."""
    topologies: Annotated[dict[str, MappedTopology], NotEmpty()]
    """Names of the experiment's topologies, with how each is used."""
    injection_gb_s_per_chip: Annotated[float, Positive()]
    """Injection bandwidth that every topology is scaled to."""
    reference: Annotated[str, NotEmpty()]
    """Name of the topology whose cost per chip is the common one."""
    node_price_set: str | None = None
    """Price set of links inside nodes, for a comparison that charges them; null: they
    are free."""

    def __post_init__(self) -> None:
        priced = [name for name, topology in self.topologies.items() if topology.priced]
        if self.reference not in priced:
            allowed = f"{', '.join(priced)}, the priced topologies"
            raise SettingsError("reference", f"got {self.reference!r}; allowed: {allowed}")


@dataclass(frozen=True)
class SwitchedNetwork:
    """A network whose circuits are set for a job, or switched in it."""

    topology: TopologySettings
    """The network; its size and its ports are what it is priced at."""
    routings: Annotated[tuple[StaticRoutingName, ...], NotEmpty()]
    """Routings on offer for groups alone on a line; each transfer takes the best."""
    counting: str | None = None
    """Another way to count its bill that the family knows; null: by used ports."""

    def __post_init__(self) -> None:
        for capability in ("lines", "bill"):
            if getattr(family_of(self.topology), capability) is None:
                raise SettingsError(
                    "topology.family",
                    f"got {self.topology.family!r}; allowed: {families_with(capability)}",
                )
        bill = family_of(self.topology).bill
        if self.counting is not None and bill is not None and self.counting not in bill.countings:
            got = f"got {self.counting!r}"
            allowed = ", ".join((*bill.countings, "null"))
            raise SettingsError("counting", f"{got}; allowed on {self.topology.family}: {allowed}")


@dataclass(frozen=True)
class RailStep:
    """A generated training step, and how its servers may lie on a grid."""

    step: StepSettings
    """The family of jobs that it is of."""
    job: Annotated[str, NotEmpty()]
    """Which of them."""
    layouts: Annotated[tuple[LayoutSettings, ...], NotEmpty()]
    """Data and pipeline parallelism on rows and columns of servers; networks take the
    best. The mesh is empty: a node is a server."""

    def __post_init__(self) -> None:
        jobs = self.step.jobs()
        check_names("job", [self.job], jobs)
        degrees = jobs[self.job].degrees
        if degrees.context > 1 and not degrees.context_in_server:
            raise SettingsError("job", "context ranks on rails; allowed: in a server, or none")
        if degrees.expert_servers not in (1, degrees.data):
            got = f"experts over {degrees.expert_servers} servers"
            raise SettingsError("job", f"{got}; allowed: 1, or {degrees.data} as the replicas")
        job_degrees = {"data": degrees.data, "pipeline": degrees.pipeline}
        for number, layout in enumerate(self.layouts):
            where = f"layouts[{number}]"
            if layout.mesh:
                raise SettingsError(f"{where}.mesh", "allowed: empty, a node is a server")
            for name in PARALLELISMS:
                degree = layout.degree(name)
                if degree != job_degrees.get(name, 1):
                    allowed = f"{job_degrees.get(name, 1)}, as in the job"
                    raise SettingsError(where, f"{name} {degree}; allowed: {allowed}")
            both = {
                name
                for name in ("data", "pipeline")
                if layout.x.get(name, 1) > 1 and layout.y.get(name, 1) > 1
            }
            if "pipeline" in both or (both and degrees.expert_servers > 1):
                raise SettingsError(
                    where, "allowed: stages on one axis, and replicas too where experts span them"
                )


@dataclass(frozen=True)
class _ComparedNetworks:
    """Networks with circuits set once or switched, at equal rate and equal cost."""

    networks: Annotated[dict[str, SwitchedNetwork], NotEmpty()]
    """Networks by name."""
    reference: Annotated[str, NotEmpty()]
    """Network whose cost per chip all have at equal cost."""
    latencies_ms: Annotated[tuple[Annotated[float, NonNegative()], ...], NotEmpty()]
    """Time that a switch takes to change circuits."""

    def __post_init__(self) -> None:
        check_names("reference", [self.reference], self.networks)


@dataclass(frozen=True)
class RailStepsSettings(_ComparedNetworks):
    """Generated training steps on networks with nodes as large as the jobs' servers."""

    steps: Annotated[dict[str, RailStep], NotEmpty()]
    """Steps by name."""


@dataclass(frozen=True)
class SwitchedSettings(_ComparedNetworks, PriceSettings):
    """Jobs on circuits that are set once, switched in the job, or both."""

    jobs: Annotated[dict[str, JobSettings], NotEmpty()]
    """Jobs by name."""
    injection_gb_s_per_chip: Annotated[float, Positive()]
    """Injection bandwidth that every network is scaled to at equal bandwidth."""
    generated: RailStepsSettings | None = None
    """Generated training steps that are replayed on such networks; null: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, job in self.jobs.items():
            if job.overlaps_data:
                allowed = "false where circuits switch"
                raise SettingsError(f"jobs.{name}.overlaps_data", f"got true; allowed: {allowed}")
