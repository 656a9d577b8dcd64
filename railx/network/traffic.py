"""Traffic patterns: sources, destinations and shares of traffic.

Exact models read them as flows, the packet simulator draws from them. Loads are
relative: the shares of all flows sum to the number of chips, so that the mean chip
sends 1, and a simulator multiplies by the offered load. No chip sends to itself; a chip
that a permutation maps to itself sends nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from railx.errors import UserError
from railx.families import build_routing, family_of
from railx.families.sizes import small_graph
from railx.io import in_repository
from railx.network import settings as kinds
from railx.settings import SettingsError
from railx.vocabulary.arrays import FloatArray, Int32Array, IntArray
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import LINK_KINDS, FamilySettings, Topology

#: Up to this many chips, traffic to all chips is listed flow by flow; above, it is in
#: ``Flows.spread``.
MOST_EXPLICIT_CHIPS = 4096


@dataclass(frozen=True, eq=False)
class Flows:
    """Flows between chips, each pair at most once and none to itself.

    ``src``, ``dst`` (int32[F]) and ``share`` (float64[F], greater than 0) list flows.
    ``spread`` (float64[chips]) is further traffic of each chip in equal parts to all
    others, 0 everywhere for up to :data:`MOST_EXPLICIT_CHIPS` chips. All shares and
    spreads together sum to the number of chips.
    """

    src: Int32Array
    dst: Int32Array
    share: FloatArray
    spread: FloatArray

    def __len__(self) -> int:
        return len(self.src)

    @property
    def chips(self) -> int:
        return len(self.spread)

    def demand(self) -> FloatArray:
        """The matrix (float64[chips, chips], row = source); UserError: too large."""
        if self.chips > MOST_EXPLICIT_CHIPS:
            raise UserError(
                f"chips: got {self.chips:,}; allowed: at most {MOST_EXPLICIT_CHIPS:,} for a full"
                " traffic matrix"
            )
        matrix = np.zeros((self.chips, self.chips))
        matrix[self.src, self.dst] = self.share
        return matrix


def traffic_flows(topology: Topology, traffic: kinds.TrafficSettings, seed: int) -> Flows:
    """The flows of a traffic pattern, without the offered load.

    ``seed`` draws random permutations, hot chips and popular experts. SettingsError
    names the allowed sizes of a pattern, or an error in a matrix and its position.
    """
    chips = topology.chips
    if chips < 2:
        raise SettingsError(
            "chips", f"got {chips}; allowed: at least 2, a chip sends nothing to itself"
        )
    if isinstance(traffic, (kinds.UniformTraffic, kinds.AllToAllTraffic)):
        return _with_spread(chips, np.ones(chips), *_NO_FLOWS)
    if isinstance(traffic, kinds.HotSpotTraffic):
        return _hot_spot(topology, traffic, seed)
    if isinstance(traffic, kinds.ExpertTraffic):
        return _experts(chips, traffic, seed)
    if isinstance(traffic, kinds.PermutationTraffic):
        src = np.arange(chips)
        dst = _permutation(chips, traffic, seed)
        return _listed(chips, src[dst != src], dst[dst != src], np.ones(int((dst != src).sum())))
    if isinstance(traffic, kinds.NeighbourTraffic):
        return _neighbours(topology)
    matrix = read_matrix(traffic.path, chips)
    src, dst = np.nonzero(matrix)
    return _listed(chips, src, dst, matrix[src, dst])


def circuits_for(topology: Topology, traffic: kinds.TrafficSettings, seed: int) -> Topology:
    """The network with circuits for a pattern, if any follow it; as built: uniform."""
    if family_of(topology).traffic_circuits is None or traffic.pattern == "uniform":
        return topology
    flows = traffic_flows(topology, traffic, seed)
    return _wired(topology, flows.src, flows.dst, flows.share)


def routed_for(
    topology: Topology,
    table: RoutingTable,
    src: NDArray[np.integer],
    dst: NDArray[np.integer],
    amount: FloatArray,
) -> tuple[Topology, RoutingTable]:
    """The network and its table with circuits set for pairs of chips that send each an
    amount; as they are where no circuits follow it, or the routing takes none.
    """
    if family_of(topology).traffic_circuits is None or table.routing != "min":
        return topology, table
    wired = _wired(topology, src, dst, amount)
    return wired, build_routing(wired, table.routing, table.destinations)


def _wired(
    topology: Topology, src: NDArray[np.integer], dst: NDArray[np.integer], amount: FloatArray
) -> Topology:
    circuits = family_of(topology).traffic_circuits
    assert circuits is not None
    demand = np.zeros((topology.nodes, topology.nodes))
    np.add.at(demand, (topology.chip_node[src], topology.chip_node[dst]), amount)
    wired: Topology = circuits.wired(topology.settings, demand)
    # The rates of the network, which may not be those of its settings.
    gbps = np.zeros(len(LINK_KINDS))
    gbps[topology.links.kind] = topology.links.gbps
    return replace(wired, links=replace(wired.links, gbps=gbps[wired.links.kind]))


def hot_chips(topology: Topology, traffic: kinds.HotSpotTraffic, seed: int) -> Int32Array:
    """The hot chips (int32[hot_chips], ascending), drawn without replacement."""
    if traffic.hot_chips > topology.chips:
        raise SettingsError(
            "hot_chips",
            f"got {traffic.hot_chips}; allowed: 1 to {topology.chips}, the chips there are",
        )
    drawn = np.random.default_rng(seed).choice(topology.chips, traffic.hot_chips, replace=False)
    return np.sort(drawn).astype(np.int32)


def read_matrix(path: str | Path, chips: int) -> FloatArray:
    """Read a traffic matrix (float64[chips, chips]) from a CSV or .npy file.

    Allowed are numbers of 0 or more, a diagonal of zeros, and at least one number
    greater than 0 in every row. SettingsError names file, place and what is allowed.
    """
    file = in_repository(path)
    allowed = f"{chips} rows of {chips} numbers (row = source, one a chip)"
    if not file.is_file():
        raise SettingsError(
            "path", f"{path}: no such file; allowed: a CSV or .npy file with {allowed}"
        )
    matrix = _read_npy(file, allowed) if file.suffix == ".npy" else _read_csv(file, allowed)
    if matrix.shape != (chips, chips):
        shape = " x ".join(map(str, matrix.shape))
        raise SettingsError("path", f"{file}: the matrix is {shape}; allowed: {allowed}")
    for wrong, what in (
        (~np.isfinite(matrix), "finite numbers"),
        (matrix < 0, "numbers of 0 or greater"),
        (
            np.eye(chips, dtype=np.bool_) & (matrix != 0),
            "0 on the diagonal, a chip sends nothing to itself",
        ),
    ):
        if wrong.any():
            row, column = np.argwhere(wrong)[0].tolist()
            value = matrix[row, column]
            raise SettingsError(
                "path", f"{file}: row {row + 1}, column {column + 1} is {value:g}; allowed: {what}"
            )
    empty = np.flatnonzero(matrix.sum(axis=1) == 0)
    if len(empty):
        raise SettingsError(
            "path",
            f"{file}: row {empty[0] + 1} is empty; allowed: rows with a share greater than 0",
        )
    return matrix


def _read_npy(file: Path, allowed: str) -> FloatArray:
    try:
        loaded = np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise SettingsError(
            "path", f"{file}: not a .npy file of numbers ({error}); allowed: {allowed}"
        ) from error
    if not isinstance(loaded, np.ndarray) or loaded.dtype.kind not in "iuf":
        kind = getattr(loaded, "dtype", type(loaded).__name__)
        raise SettingsError("path", f"{file}: holds {kind}; allowed: {allowed}")
    return np.atleast_2d(loaded).astype(np.float64)


def _read_csv(file: Path, allowed: str) -> FloatArray:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError("path", f"{file}: not a text file; allowed: {allowed}") from error
    rows: list[list[float]] = []
    for number, line in enumerate(text.rstrip().splitlines(), 1):
        cells = line.split(",")
        if not line.strip():
            raise SettingsError("path", f"{file}: line {number} is empty; allowed: {allowed}")
        if rows and len(cells) != len(rows[0]):
            raise SettingsError(
                "path",
                f"{file}: line {number} has {len(cells)} numbers, line 1 has {len(rows[0])};"
                f" allowed: {allowed}",
            )
        rows.append([_number(cell, file, number, allowed) for cell in cells])
    if not rows:
        raise SettingsError("path", f"{file}: is empty; allowed: {allowed}")
    return np.array(rows, dtype=np.float64)


def _number(cell: str, file: Path, line: int, allowed: str) -> float:
    try:
        return float(cell)
    except ValueError as error:
        raise SettingsError(
            "path", f"{file}: line {line} holds {cell.strip()!r}, not a number; allowed: {allowed}"
        ) from error


def _listed(chips: int, src: IntArray, dst: IntArray, weight: FloatArray) -> Flows:
    return Flows(
        src=src.astype(np.int32),
        dst=dst.astype(np.int32),
        share=weight * (chips / weight.sum()),
        spread=np.zeros(chips),
    )


_NO_FLOWS = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)


def _with_spread(
    chips: int, spread: FloatArray, src: IntArray, dst: IntArray, share: FloatArray
) -> Flows:
    """The listed flows with ``spread[i]`` of chip i evenly to all other chips."""
    if chips > MOST_EXPLICIT_CHIPS:
        return Flows(src.astype(np.int32), dst.astype(np.int32), share, spread)
    matrix = np.repeat(spread[:, None] / (chips - 1), chips, axis=1)
    np.fill_diagonal(matrix, 0)
    matrix[src, dst] += share
    src, dst = np.nonzero(matrix)
    return Flows(src.astype(np.int32), dst.astype(np.int32), matrix[src, dst], np.zeros(chips))


def _hot_spot(topology: Topology, traffic: kinds.HotSpotTraffic, seed: int) -> Flows:
    """The hot share goes evenly to other hot chips; a single one spreads its own."""
    chips, hot = topology.chips, hot_chips(topology, traffic, seed)
    src, dst = (
        axis.ravel() for axis in np.meshgrid(np.arange(chips), hot.astype(np.int64), indexing="ij")
    )
    src, dst = src[src != dst], dst[src != dst]
    targets = np.bincount(src, minlength=chips)
    spread = np.where(targets > 0, 1 - traffic.hot_share, 1.0)
    return _with_spread(chips, spread, src, dst, traffic.hot_share / targets[src])


def _experts(chips: int, traffic: kinds.ExpertTraffic, seed: int) -> Flows:
    """Every chip of a group of two or more sends 1, by popularity, to the others."""
    draw = np.random.default_rng(seed)
    flows = []
    for first in range(0, chips, traffic.group):
        members = np.arange(first, min(first + traffic.group, chips))
        popularity = draw.permutation(np.arange(1.0, len(members) + 1) ** -traffic.skew)
        shares = np.tile(popularity, (len(members), 1))
        np.fill_diagonal(shares, 0.0)
        if len(members) > 1:
            shares /= shares.sum(axis=1, keepdims=True)
        src, dst = np.nonzero(shares)
        flows.append((members[src], members[dst], shares[src, dst]))
    src, dst, share = map(np.concatenate, zip(*flows, strict=True))
    return _listed(chips, src, dst, share)


def _permutation(chips: int, traffic: kinds.PermutationTraffic, seed: int) -> IntArray:
    chip = np.arange(chips)
    if traffic.permutation == "random":
        # Without fixed points, by rejection: e tries on average.
        rng = np.random.default_rng(seed)
        drawn: IntArray = rng.permutation(chips)
        while (drawn == chip).any():
            drawn = rng.permutation(chips)
        return drawn
    if traffic.permutation == "complement":
        return chips - 1 - chip
    if traffic.permutation == "transpose":
        side = math.isqrt(chips)
        if side**2 != chips or side < 2:
            near = " and ".join(str(k * k) for k in (side, side + 1) if k >= 2)
            raise SettingsError(
                "permutation",
                f"transpose needs a square grid and there are {chips} chips; allowed: k * k, the"
                f" nearest are {near}",
            )
        return chip % side * side + chip // side
    if traffic.permutation == "tornado":
        if chips < 3:
            raise SettingsError(
                "permutation",
                f"tornado on {chips} chips stays where it is; allowed: at least 3 chips",
            )
        return (chip + (chips - 1) // 2) % chips
    if traffic.offset % chips == 0:
        raise SettingsError(
            "offset",
            f"got {traffic.offset}, a multiple of the {chips} chips; allowed: 1 to {chips - 1}"
            f" (modulo {chips})",
        )
    return (chip + traffic.offset) % chips


def _neighbours(topology: Topology) -> Flows:
    """Chips joined by a link, and chips on one switch that is the first for both."""
    links, chips = topology.links, topology.chips
    direct = (links.src < chips) & (links.dst < chips)
    pairs = [links.src[direct].astype(np.int64) * chips + links.dst[direct]]
    up = (links.src < chips) & (links.dst >= chips)
    order = np.lexsort((links.src[up], links.dst[up]))
    chip, switch = links.src[up][order].astype(np.int64), links.dst[up][order]
    for group in np.split(chip, np.flatnonzero(np.diff(switch)) + 1):
        below = np.unique(group)
        pairs.append((below[:, None] * chips + below[None, :]).ravel())
    joined = np.unique(np.concatenate(pairs))
    src, dst = joined // chips, joined % chips
    src, dst = src[src != dst], dst[src != dst]
    degree = np.bincount(src, minlength=chips)
    if (degree == 0).any():
        lonely = int(np.flatnonzero(degree == 0)[0])
        raise SettingsError(
            "pattern",
            f"neighbour: chip {lonely} has no neighbour; allowed: topologies that join every chip"
            " to another",
        )
    return _listed(chips, src, dst, 1 / degree[src])


def is_large(settings: FamilySettings) -> bool:
    """Whether there are too many chips to list the traffic of every pair."""
    graph = small_graph(settings)
    return graph is None or graph.chips > MOST_EXPLICIT_CHIPS


def check_pattern(
    settings: FamilySettings, name: str, traffic: kinds.TrafficSettings, seed: int, key: str
) -> None:
    """Refuse a pattern, below ``key``, that does not suit the chips of a topology."""
    if traffic.pattern in ("uniform", "all_to_all"):
        return
    graph = small_graph(settings)
    if graph is None:
        return
    try:
        traffic_flows(graph, traffic, seed)
    except SettingsError as error:
        raise SettingsError(f"{key}.{error.key}", f"on {name}: {error.message}") from None


def repeat_seeds(seed: int, repeats: int) -> tuple[int, ...]:
    """``repeats`` seeds: ``seed``, then draws from it; more repeats only add seeds."""
    drawn = (
        int(np.random.SeedSequence(seed, spawn_key=(repeat,)).generate_state(1)[0])
        for repeat in range(1, repeats)
    )
    return (seed, *drawn)
