"""Settings of the tenancy studies: the grid of nodes, jobs, faults, and the stream of
jobs that is scheduled on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, Between, NonNegative, NotEmpty, Positive, SettingsError

__all__ = [
    "DegradedSettings",
    "FaultStudySettings",
    "FitPolicy",
    "GridJobSettings",
    "MixSettings",
    "Queue",
    "ScenarioSettings",
    "StreamJobSettings",
    "StreamSettings",
    "System",
    "TenancySettings",
    "Wiring",
    "check_job",
]

#: How the rails of a job's lines are set: all-to-all in every line, the same ring on
#: all rails in both dimensions, one line's ring.
Wiring = Literal["hyperx", "torus", "ring"]
#: RailX and HammingMesh take any rows times any columns, the torus a contiguous block
#: (which may wrap around).
System = Literal["railx", "hammingmesh", "torus"]
FitPolicy = Literal["first_fit", "best_fit"]
#: reject: a job that does not fit at once is lost; fifo: jobs start in their order;
#: backfill: a later job may pass a waiting one.
Queue = Literal["reject", "fifo", "backfill"]


@dataclass(frozen=True)
class GridJobSettings:
    """A job of ``rows`` x ``columns`` nodes. ``setting``: hyperx (every line an
    all-to-all), torus (every line a ring) or ring (one line of nodes only).
    """

    rows: Annotated[int, AtLeast(1)]
    columns: Annotated[int, AtLeast(1)]
    setting: Wiring

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
    """A job of the stream; ``weight`` over the sum of all weights is its share of the
    arrivals.
    """

    weight: Annotated[float, Positive()]


@dataclass(frozen=True)
class FaultStudySettings:
    """Largest usable job against failed nodes: the numbers of failed nodes, random
    draws of each number.
    """

    counts: Annotated[tuple[Annotated[int, NonNegative()], ...], NotEmpty()]
    samples: Annotated[int, AtLeast(1)]


@dataclass(frozen=True)
class DegradedSettings:
    """Bandwidth of one line after failures: numbers of failed switches (or of failed
    rails of nodes) in it, random draws each.
    """

    failures: Annotated[tuple[Annotated[int, AtLeast(1)], ...], NotEmpty()]
    samples: Annotated[int, AtLeast(1)]


@dataclass(frozen=True)
class MixSettings:
    """Jobs placed together on a grid with random failures of nodes, rails (both ports
    of one rail of a node) and switches.
    """

    jobs: Annotated[tuple[GridJobSettings, ...], NotEmpty()]
    failed_nodes: Annotated[int, NonNegative()]
    failed_rails: Annotated[int, NonNegative()]
    failed_switches: Annotated[int, NonNegative()]


@dataclass(frozen=True)
class ScenarioSettings:
    """Failures of a stream: ``failed_nodes`` from beginning to end, and failures while
    jobs run where ``mean_hours_between_failures`` of one node is given (null: none).
    """

    failed_nodes: Annotated[int, NonNegative()]
    mean_hours_between_failures: Annotated[float, Positive()] | None


@dataclass(frozen=True)
class StreamSettings:
    """A random stream of jobs, the same for every system.

    Arrivals are Poisson; ``offered_loads`` are node-hours asked for over node-hours of
    the grid without failures. Durations are log-normal with mean ``mean_hours`` and the
    standard deviation ``duration_sigma`` of their logarithm. Averages leave out the
    time before the arrival at ``warmup_share`` of them. A node that fails is repaired
    after ``repair_hours``; its job starts again from its last checkpoint, one every
    ``checkpoint_hours``, ahead of the queue.
    """

    jobs: Annotated[tuple[StreamJobSettings, ...], NotEmpty()]
    arrivals: Annotated[int, AtLeast(10)]
    samples: Annotated[int, AtLeast(1)]
    offered_loads: Annotated[tuple[Annotated[float, Positive()], ...], NotEmpty()]
    mean_hours: Annotated[float, Positive()]
    duration_sigma: Annotated[float, NonNegative()]
    warmup_share: Annotated[float, Between(0, 0.9)]
    systems: Annotated[tuple[System, ...], NotEmpty()]
    policies: Annotated[tuple[FitPolicy, ...], NotEmpty()]
    queues: Annotated[tuple[Queue, ...], NotEmpty()]
    scenarios: Annotated[dict[str, ScenarioSettings], NotEmpty()]
    repair_hours: Annotated[float, Positive()]
    checkpoint_hours: Annotated[float, Positive()]

    def __post_init__(self) -> None:
        for name in ("systems", "policies", "queues", "offered_loads"):
            values = getattr(self, name)
            if len(set(values)) != len(values):
                raise SettingsError(name, f"got {list(values)}; allowed: each value once")


@dataclass(frozen=True)
class TenancySettings:
    """Jobs and failures on a grid of R/2 x R/2 nodes around optical switches of R =
    ``ocs_radix`` ports; r = m * n rails a side.

    Nodes have m x m chips. A line takes an all-to-all of up to r + 1 nodes and a ring
    of any length.
    """

    m: Annotated[int, AtLeast(1)]
    n: Annotated[int, AtLeast(1)]
    ocs_radix: Annotated[int, AtLeast(4)]
    faults: FaultStudySettings
    degraded: DegradedSettings
    mix: MixSettings
    stream: StreamSettings

    def __post_init__(self) -> None:
        if self.ocs_radix % 2:
            raise SettingsError(
                "ocs_radix",
                f"got {self.ocs_radix}; allowed: an even number, two ports a node (the nearest are"
                f" {self.ocs_radix - 1} and {self.ocs_radix + 1})",
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
            "degraded.failures": (
                max(self.degraded.failures),
                rails - 1,
                f"of the {rails} rails of a line",
            ),
        }
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


def check_job(job: GridJobSettings, side: int, rails: int) -> None:
    """Whether a grid of ``side`` x ``side`` nodes with ``rails`` rails can hold the job
    at all; SettingsError names what can.

    An all-to-all of k nodes needs k - 1 rails, so that a line of it has at most r + 1
    nodes (RailX, theorem 3.1).
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
                f" allowed: at most {rails + 1} nodes a line (the nearest is {rails + 1}), or"
                f" setting {others} for {length}",
            )
