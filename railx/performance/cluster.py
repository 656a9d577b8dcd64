"""The machine of a plan.

Devices, memory and all-to-all bandwidth by the degree of sequence parallelism;
bandwidth between and within pipeline stages, where known.

Larger powers of two than in the table of bandwidths (the published ones end at degree
64) take its last value, which flatters them, as they were not measured. Another degree
takes the value of the next larger one of the table, in FlexSP's the slower of its
neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from railx.effort import Cost, Costs
from railx.settings import AtLeast, NonNegative, NotEmpty, Positive, PowerOfTwo, SettingsError


@dataclass(frozen=True)
class ClusterSettings:
    """Devices of one kind."""

    name: Annotated[str, NotEmpty()]
    """Name that plans and figures show."""
    devices: Annotated[int, AtLeast(1)]
    """Devices of all nodes together, any number of them."""
    memory_gib: Annotated[float, Positive()]
    """What training may use of one device's memory."""
    tokens_per_device: Annotated[int, AtLeast(1)] | None
    """Most tokens that one device holds; null takes what follows from the memory."""
    device_tflop_s: Annotated[float, Positive()]
    """Peak of one device; the analytic cost model alone uses it."""
    all_to_all_gb_s: Mapping[str, Annotated[float, Positive()]]
    """Bandwidth of one device in an all-to-all, by the degree of sequence parallelism.
    Powers of two beyond the last one listed take its value, one missing before it is
    not used; any other degree takes the value of the next larger one listed. Degree 1
    exchanges nothing."""
    topology: str | None = None
    """Name of a topology of the experiment's bandwidth settings, whose table takes the
    place of these bandwidths; null: these are used."""
    all_to_all_latency_ms: Mapping[str, Annotated[float, NonNegative()]] = field(
        default_factory=dict
    )
    """Time of the exchanges of one layer, forward and backward, whatever they move, by
    degree as above; pipelines pay it for every chunk, sequence-parallel groups where
    the cost model sets so. Degrees that are missing have none."""
    point_to_point_gb_s: Annotated[float, Positive()] | None = None
    """Bandwidth of one device to its counterpart of the next pipeline stage; null: what
    stages send takes no time."""
    point_to_point_latency_ms: Annotated[float, NonNegative()] = 0.0
    """Time of what a stage sends for a chunk whatever its size; with a bandwidth
    alone."""
    gather_gb_s: Mapping[str, Annotated[float, Positive()]] = field(default_factory=dict)
    """Bandwidth of one device in a gather among the devices of a pipeline stage, by
    their number as degrees above. More than the last one listed take the bandwidth of
    the cost model's own traffic of ZeRO-3."""

    def __post_init__(self) -> None:
        for key in ("all_to_all_gb_s", "all_to_all_latency_ms", "gather_gb_s"):
            for degree in getattr(self, key):
                plain = degree.isdecimal() and degree == str(int(degree))
                if not plain or int(degree) < 2 or not PowerOfTwo().accepts(int(degree)):
                    raise SettingsError(
                        f"{key}.{degree}", "unknown degree; allowed: a power of two from 2"
                    )

    def costs(self) -> Costs:
        return {"devices": Cost(1e-3, 1e4) * self.devices}


def all_to_all_gb_s(cluster: ClusterSettings) -> dict[int, float]:
    """Bandwidth (GB/s per device) by power-of-two degree up to the devices, ascending.

    Degrees beyond the table have its last value.
    """
    table = _table(cluster)
    last = max(table, default=0)
    powers = [1 << exponent for exponent in range(1, cluster.devices.bit_length())]
    return {
        degree: table[min(degree, last)]
        for degree in powers
        if table and (degree in table or degree > last)
    }


def bandwidth_gb_s(cluster: ClusterSettings, degree: int) -> float | None:
    """Bandwidth (GB/s per device) of any degree from 2; None with an empty table.

    That of the next larger degree of the table; beyond its last one, the last value.
    """
    table = _table(cluster)
    if not table:
        return None
    return table[min((listed for listed in table if listed >= degree), default=max(table))]


def with_topology(
    cluster: ClusterSettings, rows: Iterable[Mapping[str, Any]], unit: float = 1.0
) -> ClusterSettings:
    """The cluster with the all-to-all bandwidths of a topology.

    ``rows`` are those of its table (stage bandwidth): the exact rates of groups of
    consecutive ranks, in 10^9 byte/s; ``unit`` is that of the cost model
    (``bandwidth_unit``). SettingsError for a table without such groups.
    """
    table = {
        str(row["group_size"]): row["gb_s"] / unit
        for row in rows
        if (row["operation"], row["stride"], row["fidelity"]) == ("all_to_all", 1, "analytic")
        and row["group_size"] <= cluster.devices
    }
    if not table:
        raise SettingsError(
            "cluster.topology",
            f"got {cluster.topology!r}, whose table has no exact all-to-all; allowed: one of"
            " fidelity analytic",
        )
    return replace(cluster, all_to_all_gb_s=table)


def _table(cluster: ClusterSettings) -> dict[int, float]:
    return {int(degree): bandwidth for degree, bandwidth in cluster.all_to_all_gb_s.items()}
