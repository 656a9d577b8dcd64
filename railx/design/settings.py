"""What ``railx design`` is asked: the job, the prices, the faults and the networks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, TypeAlias

from railx.economics import read_catalogue
from railx.effort import Cost, Costs
from railx.errors import UserError
from railx.families import TopologySettings, family_of
from railx.network.settings import PacketNetworkSettings, TrafficSettings
from railx.performance.advice import AdviceSettings
from railx.performance.devices import device_named
from railx.performance.models import model_named
from railx.performance.programs import program_named
from railx.settings import (
    AtLeast,
    Between,
    Fraction,
    NotEmpty,
    Positive,
    SettingsError,
)
from railx.tenancy.settings import FaultTraceSettings

Objective: TypeAlias = Literal["step_time", "cost", "joules"]


@dataclass(frozen=True)
class PointSettings:
    """A job, its prices and the faults: all of a design point but the network."""

    gpus: Annotated[int, Between(2, 10_000_000)] = 256
    """Devices that the job has."""
    model: Annotated[str, NotEmpty()] = "llama3_8b"
    """Model of the catalogue."""
    devices: Annotated[str, NotEmpty()] = "h100"
    """Device of the catalogue."""
    tokens: Annotated[int, AtLeast(1)] = 8192
    """Tokens of a sequence."""
    global_batch: Annotated[int, AtLeast(1)] | None = None
    """Sequences of a step; null: 4 Mi tokens or more, and a multiple of the devices
    without those beyond a multiple of eight, so that replicas of eight divide it."""
    precision: Literal["bf16", "fp16", "fp8", "fp4"] = "bf16"
    """Precision of matrix products."""
    program: Annotated[str, NotEmpty()] = "torchtitan"
    """Program that trains."""
    memory_share: Annotated[float, Fraction()] = 0.9
    """Share of a device's memory that a plan may fill."""
    catalogue: Annotated[str, NotEmpty()] = "resources/catalogue/prices.csv"
    """Price catalogue, a CSV file."""
    price_set: Annotated[str, NotEmpty()] = "opus_400g"
    """Price set that ranks."""
    price_sets: tuple[str, ...] = ("opus_400g_notebook", "hammingmesh_2022")
    """Further price sets: with the first, the range of dollars and watts."""
    node_price_set: str | None = "node_assumed"
    """Price set of the links inside nodes and on boards; null: they are free."""
    include_accelerators: bool = False
    """Whether dollars and budgets cover the job's accelerators, at the price of an
    ``accelerator`` in ``price_set``. No source gives one: take a catalogue of your own.
    """
    port_share: Annotated[float, Fraction()] | None = None
    """Share of a port's rate that collectives reach, on every network; null: that of
    the program's constants, fitted between nodes.
    """
    node: Literal["device", "as_set"] = "device"
    """Links inside nodes: as fast as in the device's usual node, and nodes of its size
    where a network has none; or as the networks say.
    """
    faults: Annotated[float, Between(0, 0.5)] = 0.01
    """Share of servers, of as many devices as a usual node, that has failed."""
    fault_samples: Annotated[int, AtLeast(1)] = 16
    """Random draws of failed servers."""
    seed: Annotated[int, Between(0, 2**31 - 1)] = 1
    """Seed of these draws."""

    @property
    def advice(self) -> AdviceSettings:
        """The job as ``railx advise`` takes it."""
        names = ("model", "devices", "gpus", "tokens", "precision", "program", "memory_share")
        given = {name: getattr(self, name) for name in names}
        return AdviceSettings(**given, global_batch=self.batch)

    @property
    def batch(self) -> int:
        """Sequences of a step."""
        devices = self.gpus - self.gpus % 8 or self.gpus
        return self.global_batch or -(-max(1, 2**22 // self.tokens) // devices) * devices

    def check_names(self) -> None:
        """Refuse models, devices, programs and price sets that the catalogues lack."""
        for key, name, lookup in (
            ("model", self.model, model_named),
            ("devices", self.devices, device_named),
            ("program", self.program, program_named),
        ):
            try:
                lookup(name)
            except UserError as error:
                raise SettingsError(key, str(error).partition(": ")[2]) from None
        try:
            catalogue = read_catalogue(self.catalogue)
        except UserError as error:
            raise SettingsError("catalogue", str(error)) from None
        sets = {"price_set": (self.price_set,), "price_sets": self.price_sets}
        sets["node_price_set"] = () if self.node_price_set is None else (self.node_price_set,)
        for key, names in sets.items():
            for name in names:
                try:
                    catalogue.components(name)
                except SettingsError as error:
                    raise SettingsError(key, error.message) from None
        if self.include_accelerators and "accelerator" not in catalogue.components(self.price_set):
            raise SettingsError(
                "include_accelerators",
                f"got true; allowed: false, or a catalogue with an accelerator in {self.price_set}",
            )

    def costs(self) -> Costs:
        return {"fault_samples": Cost(2e-3) * self.fault_samples}


@dataclass(frozen=True)
class DesignSettings(PointSettings):
    """A search over networks, their settings and plans."""

    networks: dict[str, TopologySettings] = field(default_factory=dict)
    """Networks by name; each takes its smallest size with as many chips as devices."""
    families: tuple[str, ...] = ()
    """Families that are searched; empty: all of the networks'."""
    budget_usd: Annotated[float, Positive()] | None = None
    """Most dollars of the network and the links inside nodes; null: no limit."""
    watts: Annotated[float, Positive()] | None = None
    """Most watts of the network and the links inside nodes; null: no limit."""
    objective: Objective = "step_time"
    """What orders the front: step time, dollars, or joules of a step."""
    most_chips: Annotated[float, AtLeast(1)] = 1.35
    """Most chips of a network over the devices of the job."""
    price_change: Annotated[float, Between(0, 1)] = 0.2
    """Relative change of each price for which changes of choice are shown."""
    simulated: Annotated[int, AtLeast(1)] = 3
    """Points that are simulated on request."""
    simulated_chips: Annotated[int, AtLeast(2)] = 1100
    """Most chips of a network whose all-to-all is simulated in packets."""

    def __post_init__(self) -> None:
        names = sorted({family_of(network).name for network in self.networks.values()})
        for name in self.families:
            if name not in names:
                raise SettingsError(
                    "families",
                    f"got {name!r}; allowed: {', '.join(names) or 'none without networks'}",
                )

    def check_names(self) -> None:
        """Refuse no networks, and names that the catalogues lack."""
        super().check_names()
        if not self.networks:
            raise SettingsError("networks", "got none; allowed: one or more (conf/design)")

    @property
    def searched(self) -> dict[str, TopologySettings]:
        """The networks of the families that are searched."""
        return {
            name: network
            for name, network in self.networks.items()
            if not self.families or family_of(network).name in self.families
        }

    def costs(self) -> Costs:
        networks = max(1, len(self.searched))
        return {
            "gpus": Cost(1e-3 * networks, 5e5) * self.gpus,
            "fault_samples": Cost(2e-3 * networks) * self.fault_samples,
        }


@dataclass(frozen=True)
class TrainingJob:
    """A model that is trained on all chips, by the best plan of each network."""

    kind: Literal["training"]
    """Which kind of job: training."""
    model: Annotated[str, NotEmpty()]
    """Model of the catalogue."""
    tokens: Annotated[int, AtLeast(1)] = 8192
    """Tokens of a sequence."""


@dataclass(frozen=True)
class ServingJob:
    """A model that is served by all chips: prompts, or tokens one after another."""

    kind: Literal["prefill", "decode"]
    """Which kind of job: whole prompts, or the next token of each sequence."""
    model: Annotated[str, NotEmpty()]
    """Model of the catalogue."""
    tokens: Annotated[int, AtLeast(1)] = 8192
    """Tokens of a prompt, or in the cache of a sequence."""
    expert: Annotated[int, AtLeast(1)] = 1
    """Expert degree."""
    most_latency_ms: Annotated[float, Positive()] = 50.0
    """Longest step of decoding; a prefill has no such limit."""


@dataclass(frozen=True)
class ArenaSettings:
    """Networks, their sizes, and what is asked of them."""

    networks: dict[str, TopologySettings] = field(default_factory=dict)
    """Networks by name; each takes its smallest size with as many chips as asked."""
    chips: Annotated[tuple[Annotated[int, Between(2, 10_000_000)], ...], NotEmpty()] = (
        1296,
        4096,
        200704,
    )
    """Sizes. A network takes its smallest of as many chips, or its largest, and has one
    row that says why where that is too small.
    """
    graph_chips: Annotated[int, AtLeast(2)] = 4600
    """Largest network with a graph, exact loads and jobs; above, closed forms alone."""
    packet_chips: Annotated[int, AtLeast(2)] = 1500
    """Largest network with packets of all patterns; above, uniform traffic at the
    largest share alone.
    """
    traffics: dict[str, TrafficSettings] = field(default_factory=dict)
    """Patterns by name; their own load is not used."""
    loads_over_bound: Annotated[tuple[Annotated[float, Positive()], ...], NotEmpty()] = (
        0.2,
        0.5,
        0.8,
    )
    """Offered loads over the exact bound of uniform traffic on the same network."""
    packets: PacketNetworkSettings = field(default_factory=lambda: PacketNetworkSettings("packet"))
    """How packets are simulated; minimal routing."""
    jobs: dict[str, TrainingJob | ServingJob] = field(default_factory=dict)
    """What runs on all chips."""
    point: PointSettings = field(default_factory=lambda: PointSettings(2, "llama3_8b"))
    """Device, program, prices and faults; its number of devices, model and tokens are
    not used.
    """
    trace: FaultTraceSettings | None = None
    """Faults of servers; networks of more chips than they have are left out. null:
    none.
    """
    most_chips: Annotated[float, AtLeast(1)] = 1.35
    """Most chips of a network over those asked, or those asked over its own."""
    payload_mb: Annotated[float, Positive()] = 64.0
    """Payload of the collectives, in 10^6 bytes a chip."""

    def check_names(self, key: str) -> None:
        """Refuse names that the catalogues lack, below ``key``."""
        jobs = {
            f"jobs.{name}": replace(self.point, model=job.model) for name, job in self.jobs.items()
        }
        for name, point in ({"point": self.point} | jobs).items():
            try:
                point.check_names()
            except SettingsError as error:
                raise error.under(f"{key}.{name}") from None

    def costs(self) -> Costs:
        return {"graph_chips": Cost(1e-2 * max(1, len(self.jobs)), 5e5) * self.graph_chips}
