"""Settings of the tenancy studies: the grid, jobs, faults, and the stream of jobs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from railx.effort import Cost, Costs
from railx.families import TopologySettings, families_with, family_named, family_of
from railx.families.family import JobPlaces, PlaceRule
from railx.settings import AtLeast, Between, NonNegative, NotEmpty, Positive, SettingsError
from railx.vocabulary.topology import FamilySettings

#: Wiring of the rails of a job's lines: all-to-all in every line, the same ring on all
#: rails in both dimensions, one line's ring.
Wiring = Literal["hyperx", "torus", "ring"]
#: RailX and HammingMesh take any rows times any columns, the torus a contiguous block
#: (which may wrap around).
System = Literal["railx", "hammingmesh", "torus"]
#: All of them, in the order of the tables.
SYSTEMS: tuple[System, ...] = ("railx", "hammingmesh", "torus")
#: The family whose rule of places a system of the grid follows.
_FAMILY_OF: dict[str, str] = {
    "railx": "railx_hyperx",
    "hammingmesh": "hammingmesh",
    "torus": "torus_2d",
}
FitPolicy = Literal["first_fit", "best_fit"]
#: reject: jobs that do not fit at once are lost; fifo: jobs start in their order;
#: backfill: a later job may overtake a waiting one.
Queue = Literal["reject", "fifo", "backfill"]


def place_rule(system: System) -> PlaceRule:
    """How jobs take nodes of the grid: by the rule of the system's family."""
    places = family_named(_FAMILY_OF[system]).job_places
    assert places is not None  # each of the three has one
    return places.rule


def job_places(network: FamilySettings, key: str = "family") -> JobPlaces[FamilySettings]:
    """A network's rule of places; SettingsError naming ``key`` where it has none."""
    places = family_of(network).job_places
    if places is None:
        raise SettingsError(
            key,
            f"got {network.family!r}, which does not say where jobs fit; allowed:"
            f" {families_with('job_places')}",
        )
    return places


@dataclass(frozen=True)
class GridJobSettings:
    """A job of rows x columns nodes."""

    rows: Annotated[int, AtLeast(1)]
    """Rows of nodes that the job takes."""
    columns: Annotated[int, AtLeast(1)]
    """Columns of nodes that the job takes."""
    setting: Wiring
    """How the rails of its lines are set. ``hyperx`` makes every line an all-to-all,
    ``torus`` every line a ring; ``ring`` is one line of nodes only."""

    def __post_init__(self) -> None:
        if self.setting == "ring" and min(self.rows, self.columns) > 1:
            nodes = self.rows * self.columns
            raise SettingsError(
                "setting",
                f"got ring for {self.rows} x {self.columns} nodes; allowed: ring for the nodes of"
                f" one line (the nearest is 1 x {nodes}), or torus and hyperx for {self.rows} x"
                f" {self.columns}",
            )

    @property
    def nodes(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class StreamJobSettings(GridJobSettings):
    """A job of the stream."""

    weight: Annotated[float, Positive()]
    """Its share of the arrivals, over the sum of all weights."""


@dataclass(frozen=True)
class FaultStudySettings:
    """Largest usable job against failed nodes."""

    counts: Annotated[tuple[Annotated[int, NonNegative()], ...], NotEmpty()]
    """Numbers of failed nodes."""
    samples: Annotated[int, AtLeast(1)]
    """Random draws of each number."""

    def costs(self) -> Costs:
        """Estimated work by field."""
        return {"samples": Cost(1e-3) * self.samples * len(self.counts)}


@dataclass(frozen=True)
class DegradedSettings:
    """Bandwidth of one line after failures in it."""

    failures: Annotated[tuple[Annotated[int, AtLeast(1)], ...], NotEmpty()]
    """Numbers of failed switches, or of failed rails of nodes."""
    samples: Annotated[int, AtLeast(1)]
    """Random draws of each number."""

    def costs(self) -> Costs:
        """Estimated work by field."""
        return {"samples": Cost(1e-3) * self.samples * len(self.failures)}


@dataclass(frozen=True)
class MixSettings:
    """Jobs placed together on a grid with random failures."""

    jobs: Annotated[tuple[GridJobSettings, ...], NotEmpty()]
    """Jobs in the order in which they are placed."""
    failed_nodes: Annotated[int, NonNegative()]
    """Nodes that have failed."""
    failed_rails: Annotated[int, NonNegative()]
    """Rails of nodes that have failed, both ports of a rail together."""
    failed_switches: Annotated[int, NonNegative()]
    """Switches that have failed."""


@dataclass(frozen=True)
class ScenarioSettings:
    """Failures of a stream."""

    failed_nodes: Annotated[int, NonNegative()]
    """Nodes that are down from beginning to end."""
    mean_hours_between_failures: Annotated[float, Positive()] | None
    """Mean time between the failures of one node while jobs run; null: none fails."""


@dataclass(frozen=True)
class StreamSettings:
    """A random stream of jobs, the same for every system.

    Arrivals are Poisson, durations log-normal. A failed node is repaired; its job
    restarts from its last checkpoint, ahead of the queue.
    """

    jobs: Annotated[tuple[StreamJobSettings, ...], NotEmpty()]
    """Shapes of jobs with their weights."""
    arrivals: Annotated[int, AtLeast(10)]
    """Jobs that arrive."""
    samples: Annotated[int, AtLeast(1)]
    """Random streams."""
    offered_loads: Annotated[tuple[Annotated[float, Positive()], ...], NotEmpty()]
    """Node-hours asked for over node-hours of the grid without failures."""
    mean_hours: Annotated[float, Positive()]
    """Mean duration of a job."""
    duration_sigma: Annotated[float, Between(0, 20)]
    """Standard deviation of the logarithm of the durations."""
    warmup_share: Annotated[float, Between(0, 0.9)]
    """Averages leave out the time before the arrival at this share of them."""
    systems: Annotated[tuple[System, ...], NotEmpty()]
    """``railx`` and ``hammingmesh`` take any rows times any columns, ``torus`` a
    contiguous block (which may wrap around)."""
    policies: Annotated[tuple[FitPolicy, ...], NotEmpty()]
    """Which nodes a job takes: the first that fit, or those that leave the fewest
    free nodes around it."""
    queues: Annotated[tuple[Queue, ...], NotEmpty()]
    """``reject``: a job that does not fit at once is lost. ``fifo``: jobs start in
    their order. ``backfill``: a later job may pass a waiting one."""
    scenarios: Annotated[dict[str, ScenarioSettings], NotEmpty()]
    """Failures by name."""
    repair_hours: Annotated[float, Positive()]
    """How long a failed node is down."""
    checkpoint_hours: Annotated[float, Positive()]
    """Time between two checkpoints of a job."""

    def __post_init__(self) -> None:
        for name in ("systems", "policies", "queues", "offered_loads"):
            values = getattr(self, name)
            if len(set(values)) != len(values):
                raise SettingsError(name, f"got {list(values)}; allowed: each value once")

    def costs(self) -> Costs:
        """Estimated work by field."""
        lists = (self.offered_loads, self.systems, self.policies, self.queues, self.scenarios)
        streams = math.prod(map(len, lists)) * self.samples
        return {"arrivals": Cost(5e-5 * streams, 200.0) * self.arrivals}


@dataclass(frozen=True)
class FaultTraceSettings:
    """A published trace of faults, and how a network is judged under it."""

    file: Annotated[str, NotEmpty()]
    """The trace, a CSV file of the repository: time_days, node, event."""
    servers: Annotated[int, Between(1, 1_000_000)]
    """Servers of the traced cluster, those that never failed among them."""
    chips_per_server: Annotated[int, Between(1, 1024)]
    """Chips that a server of the trace takes with it."""
    days: Annotated[float, Positive()]
    """How long the trace is."""
    job_chips: Annotated[tuple[Annotated[int, Between(1, 10_000_000)], ...], NotEmpty()]
    """Sizes of small jobs, as groups of tensor or expert parallelism."""
    draws: Annotated[int, AtLeast(1)]
    """Random orders of the servers."""
    step_days: Annotated[float, Positive()] | None = field(default=None, kw_only=True)
    """Time between two looks at the cluster; null: at every change."""

    def costs(self) -> Costs:
        """Estimated work by field, for a network."""
        looks = 1200 if self.step_days is None else self.days / self.step_days
        return {"draws": Cost(5e-3 * looks) * self.draws}


@dataclass(frozen=True)
class TraceSettings(FaultTraceSettings):
    """Networks under a published trace of faults."""

    networks: Annotated[dict[str, TopologySettings], NotEmpty()]
    """Networks by name, of at most as many chips as the servers have."""
    spare_shares: tuple[Annotated[float, Between(0, 1)], ...]
    """Shares of the chips that a job leaves as spares."""

    def __post_init__(self) -> None:
        most = self.servers * self.chips_per_server
        for name, network in self.networks.items():
            places = job_places(network, f"networks.{name}.family")
            shape, unit = places.shape(network), places.unit_chips(network)
            chips, line, largest = math.prod(shape) * unit, max(shape) * unit, max(self.job_chips)
            if chips > most:
                allowed = f"allowed: at most {most}, the servers'"
                raise SettingsError(f"networks.{name}", f"got {chips} chips; {allowed}")
            if places.rule in ("lines", "blocks", "boxes") and largest > line:
                allowed = f"allowed: at most {line}, the chips of a line of {name}"
                message = f"got {largest}; {allowed}; the nearest is {line}"
                raise SettingsError("job_chips", message)

    def costs(self) -> Costs:
        """Estimated work by field."""
        return {key: cost * len(self.networks) for key, cost in super().costs().items()}


@dataclass(frozen=True)
class TenancySettings:
    """Jobs and failures on a grid of R/2 x R/2 nodes.

    The optical switches have R = ``ocs_radix`` ports. A node has m x m chips and r = m
    * n rails per side. A line takes an all-to-all of up to r + 1 nodes and a ring of
    any length.
    """

    m: Annotated[int, AtLeast(1)]
    """Chips along a side of a node."""
    n: Annotated[int, AtLeast(1)]
    """Ports on each of the 4 sides of a chip."""
    ocs_radix: Annotated[int, AtLeast(6)]
    """R, ports of an optical switch; even, two per node of a line."""
    faults: FaultStudySettings
    """Largest usable job against failed nodes."""
    degraded: DegradedSettings
    """Bandwidth of one line after failures."""
    mix: MixSettings
    """Jobs placed together around failures, checked port by port."""
    stream: StreamSettings
    """Jobs that come and go."""
    trace: TraceSettings
    """Networks under a trace of faults."""

    def __post_init__(self) -> None:
        if self.ocs_radix % 2:
            raise SettingsError(
                "ocs_radix",
                f"got {self.ocs_radix}; allowed: an even number, two ports per node (the nearest"
                f" are {self.ocs_radix - 1} and {self.ocs_radix + 1})",
            )
        for group, jobs in (("mix.jobs", self.mix.jobs), ("stream.jobs", self.stream.jobs)):
            for i, job in enumerate(jobs):
                try:
                    check_job(job, self.side, self.rails)
                except SettingsError as error:
                    raise error.under(f"{group}[{i}]") from None
        self._check_counts()

    @property
    def side(self) -> int:
        """Nodes of a line, R/2."""
        return self.ocs_radix // 2

    @property
    def rails(self) -> int:
        """Rails of a side of a node, r = m n."""
        return self.m * self.n

    def _check_counts(self) -> None:
        nodes, rails, line = self.side**2, self.rails, min(self.side, self.rails + 1)
        ports, switches = 2 * nodes * rails, 2 * self.side * rails
        asked = {
            "faults.counts": (max(self.faults.counts), nodes - 1, "nodes"),
            **{
                f"stream.scenarios.{name}.failed_nodes": (scenario.failed_nodes, nodes - 1, "nodes")
                for name, scenario in self.stream.scenarios.items()
            },
            "mix.failed_nodes": (self.mix.failed_nodes, nodes - 1, "nodes"),
            "mix.failed_rails": (self.mix.failed_rails, ports, "rails of nodes"),
            "mix.failed_switches": (self.mix.failed_switches, switches, "switches"),
        }
        of_line = f"of the {rails} rails of a line"
        asked["degraded.failures"] = max(self.degraded.failures), rails - 1, of_line
        for key, (got, most, what) in asked.items():
            if got > most:
                raise SettingsError(
                    key, f"got {got}; allowed: at most {most} {what}, the nearest is {most}"
                )
        if line < 3:
            raise SettingsError(
                "n",
                f"m * n = {rails} rails join lines of {line} nodes; allowed: m * n of at least 2",
            )

    def costs(self) -> Costs:
        """Estimated work by field."""
        return {
            "m": Cost(0.1, 1e6) * self.m,
            "n": Cost(0.1, 1e6) * self.n,
            "ocs_radix": Cost(1e-3, 2e3) * (self.ocs_radix / 2) ** 2,
        }


def check_job(job: GridJobSettings, side: int, rails: int) -> None:
    """Refuse a job too large for the idle grid; SettingsError names the allowed sizes.

    The grid has ``side`` x ``side`` nodes with ``rails`` rails. An all-to-all of k
    nodes needs k - 1 rails, so a line of it has at most r + 1 nodes (RailX, theorem
    3.1).
    """
    for key in ("rows", "columns"):
        length = getattr(job, key)
        if length > side:
            raise SettingsError(
                key,
                f"got {length}; allowed: at most {side}, the nodes of a line of the grid, the"
                f" nearest is {side}",
            )
        others = "torus or ring" if min(job.rows, job.columns) == 1 else "torus"
        if job.setting == "hyperx" and length > rails + 1:
            raise SettingsError(
                key,
                f"an all-to-all of {length} nodes needs {length - 1} rails and a side has {rails};"
                f" allowed: at most {rails + 1} nodes per line (the nearest is {rails + 1}), or"
                f" setting {others} for {length}",
            )
