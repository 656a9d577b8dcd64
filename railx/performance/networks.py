"""Networks: the time of a collective or a send, by kind, bytes and group.

All networks answer one question, :meth:`Network.time_s`, for arrays of transfers at
once. Bytes are those of the whole tensor: what an all-reduce sums, an all-gather
gathers, a reduce-scatter scatters, what a rank exchanges in an all-to-all, what it
sends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Literal, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow.csv

from railx.performance.devices import Device
from railx.performance.plans import Array
from railx.places import SHIPPED

Number = TypeVar("Number", float, Array)
Level = TypeVar("Level")
Detail = TypeVar("Detail")

Kind: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]
#: Rounds of a ring in units of (members - 1), and the share of the tensor that a rank
#: sends in units of (members - 1) / members.
_RING = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


def ring_bytes(kind: Kind, size_bytes: Number, members: Number) -> Number:
    """Bytes that each rank of a ring sends in a collective of a tensor."""
    sent: Number = _RING[kind] * size_bytes * (members - 1) / members
    return sent


def fastest_order(
    levels: Sequence[Level],
    size_bytes: float,
    members: Callable[[Level], int],
    price: Callable[[Level, float], tuple[float, Detail]],
) -> list[tuple[float, Detail]]:
    """The steps of a gather over levels of groups, one level after the other, in the
    fastest order.

    A reduce-scatter goes from the first level to the last, an all-gather back; a level
    gets the bytes that those before it left. ``price``: the time of a level for its
    bytes, and what else is known of it.
    """
    best: list[tuple[float, Detail]] = []
    for order in permutations(levels):
        left, steps = size_bytes, []
        for level in order:
            steps.append(price(level, left))
            left /= members(level)
        if not best or sum(time for time, _ in steps) < sum(time for time, _ in best):
            best = steps
    return best


class Network(Protocol):
    """What joins the devices."""

    @property
    def node_devices(self) -> int:
        """Devices of the fast domain."""
        ...

    @property
    def words(self) -> str:
        """What it is, in some words."""
        ...

    def time_s(self, kind: Kind, size_bytes: Array, members: Array, inside: Array) -> Array:
        """Seconds of one transfer, float[transfers].

        ``members``: ranks of the group; ``inside``: how many of them share a node, as
        whole numbers are taken from it, or below 1 the inverse of the nodes from one to
        the next. A send goes from a member to the next.
        """
        ...


@dataclass(frozen=True, eq=False)
class MeasuredTable:
    """All-reduces measured inside a node: seconds over bytes, by number of ranks.

    Between measured sizes the logarithms are interpolated; above them the bandwidth of
    the largest size holds, below them its smallest time.
    """

    by_ranks: Mapping[int, tuple[Array, Array]]

    def seconds(self, size_bytes: Array, ranks: Array) -> Array:
        """Time of all-reduces, float[n], of the next measured number of ranks."""
        known = np.array(sorted(self.by_ranks))
        column = known[np.minimum(np.searchsorted(known, ranks), len(known) - 1)]
        result = np.zeros(np.broadcast(size_bytes, ranks).shape)
        for count in np.unique(column):
            rows = column == count
            sizes, times = self.by_ranks[int(count)]
            size = np.log(np.maximum(np.broadcast_to(size_bytes, result.shape)[rows], 1.0))
            above = np.maximum(size - sizes[-1], 0.0)
            result[rows] = np.exp(np.interp(size, sizes, times) + above)
        return result


@cache
def measured_table(file: str, device: str) -> MeasuredTable:
    """The rows of one device in a file of ``resources/measured``."""
    table = pyarrow.csv.read_csv(SHIPPED / "resources" / "measured" / file).to_pandas()
    rows = table[table["device"] == device].sort_values("bytes")
    return MeasuredTable(
        {
            int(ranks): (
                np.log(group["bytes"].to_numpy(float)),
                np.log(group["time_ns"].to_numpy(float) * 1e-9),
            )
            for ranks, group in rows.groupby("ranks")
        }
    )


@dataclass(frozen=True, eq=False)
class TwoLevelRing:
    """Rings over nodes of directly or fully joined devices.

    A ring of n ranks, k of them in each node, sends (n - 1) / n of a tensor once
    (gather, scatter, exchange) or twice (all-reduce). It enters and leaves a node once
    for each of k parallel rings, so that k devices share the traffic between nodes
    (arXiv 2410.00273). A send takes the mean time over the boundaries between members,
    of which those between nodes are slow. ``fast_share`` and ``slow_share`` are the
    shares of the rated bandwidths that are reached.
    """

    node_devices: int
    fast_gb_s: float
    slow_gb_s: float
    fast_latency_s: float
    slow_latency_s: float
    fast_share: float = 0.8
    slow_share: float = 0.8
    table: MeasuredTable | None = None

    @classmethod
    def of(
        cls,
        device: Device,
        *,
        fast_share: float,
        slow_share: float,
        slow_gb_s: float | None = None,
        node_devices: int | None = None,
    ) -> TwoLevelRing:
        """The network of the nodes that a device is sold in."""
        file, _, column = device.all_reduce.partition(":")
        return cls(
            node_devices or device.node_devices,
            device.fast_gb_s,
            slow_gb_s or device.slow_gb_s,
            device.fast_latency_s,
            device.slow_latency_s,
            fast_share,
            slow_share,
            measured_table(file, column) if file else None,
        )

    @property
    def words(self) -> str:
        fast, slow = self.fast_gb_s * self.fast_share, self.slow_gb_s * self.slow_share
        return (
            f"two-level ring, {fast:.4g} GB/s in nodes of {self.node_devices}, {slow:.4g} between"
        )

    def time_s(self, kind: Kind, size_bytes: Array, members: Array, inside: Array) -> Array:
        fast = self.fast_gb_s * 1e9 * self.fast_share
        slow = self.slow_gb_s * 1e9 * self.slow_share
        members, inside = np.asarray(members, float), np.maximum(np.floor(inside), 1.0)
        if kind == "send":
            far = self.slow_latency_s + size_bytes / slow
            # Links between nodes may also reach a rank of the same node.
            near = np.minimum(self.fast_latency_s + size_bytes / fast, far)
            slow_ones = (np.ceil(members / inside) - 1) / np.maximum(members - 1, 1)
            return np.asarray(near + (far - near) * slow_ones)
        passes, sent = _RING[kind], ring_bytes(kind, size_bytes, members)
        nodes = members / inside
        if self.table is None:
            near = sent / fast + passes * (members - nodes) * self.fast_latency_s
        else:
            near = self.table.seconds(size_bytes, inside) * passes / 2
        # An exchange leaves a node with the share that belongs to other nodes only.
        leaving = (
            sent * (1 - inside / members) * members / (members - 1.0 + (members == 1))
            if (kind == "all_to_all")
            else sent / inside
        )
        far = leaving / slow + passes * (nodes - 1) * self.slow_latency_s
        return np.where(members <= 1, 0.0, np.where(nodes <= 1, near, np.maximum(near, far)))
