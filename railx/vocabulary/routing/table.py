"""A routing as one table, for every family of topologies and every simulator.

A packet carries a small *state*: its decisions so far (the number of rails taken, the
exit chosen). For a state, a vertex and a destination the table gives the *choices* of a
packet. A choice is a *pool* of equal channels (link rows with all their lanes or one of
each, on one virtual channel) and the state after the hop. The packet simulator, the
exact channel loads, the hop counts and the deadlock check all read this table, so they
describe the same routing.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from railx.vocabulary.arrays import FloatArray, Int32Array, IntArray, offsets
from railx.vocabulary.routing.groups import DestinationGroups
from railx.vocabulary.topology import Topology

#: ``weighted``: a choice is drawn with its weight when the packet's head arrives;
#: ``adaptive``: the choice with the shortest expected wait and path is taken then. Both
#: are final; within the pool the packet takes any channel with room.
Selection = Literal["weighted", "adaptive"]
#: Destination chips, int32[D]; None: all chips.
Destinations: TypeAlias = Int32Array | None

#: Sources, destinations and amounts (arrays[pairs]) to the load of every lane and the
#: longest flight in nanoseconds, as
#: :func:`railx.vocabulary.routing.analysis.pair_loads` on a topology and a table.
PairLoads: TypeAlias = Callable[[IntArray, IntArray, FloatArray], tuple[FloatArray, float]]

#: A choice of a set: its columns and its bytes.
_CHOICE = np.dtype(
    [("pool", "i4"), ("state", "i4"), ("weight", "f8"), ("probe", "i4"), ("delay_ns", "f8")]
)
_PACK = struct.Struct("=iidid").pack
#: The bytes after pool and state of a choice that is the only one.
_ALONE = _PACK(0, 0, 1.0, -1, 0.0)[8:]
#: Destinations in a block of a table with groups.
_BLOCK = 256


@dataclass(frozen=True, eq=False)
class RoutingTable:
    """The choices of packets, by state, vertex and destination.

    * ``entry`` (int32[states, vertices, destinations]): the set of choices; -1 where no
      packet ever stands. A packet starts in state 0 at its source and is delivered at
      its destination whatever its state. ``destinations`` (int32[D]) are the chips of
      the last axis. With ``groups`` the last axis has a column for each of them, and
      :meth:`blocks` gives the entries of destinations.
    * ``set_start`` (int32[sets + 1]): set k has the choices set_start[k] to set_start[k
      + 1].
    * ``choice_pool``, ``choice_state``, ``choice_weight`` (the weights of a set sum to
      1): pool, state after the hop, share of the traffic.
    * ``choice_probe`` (a row of ``topology.links``, -1: the first link of the pool) and
      ``choice_delay_ns``: an adaptive router compares the flits that wait for the
      probed link, plus the unloaded time of the full path that the choice implies.
    * ``pool_start`` (int32[pools + 1]), ``pool_link`` (rows of ``topology.links``),
      ``pool_class`` (a class of virtual channels), ``pool_lane`` (the only lane used of
      each row, -1: all of them): pools of channels, any of which will do.
    * ``channel_class`` (int32[virtual channels of a link]): the class of each virtual
      channel. The order of the classes keeps packets from waiting for each other in a
      circle; a packet takes any channel of the class that it goes on in. As built, each
      class has one.
    """

    routing: str
    selection: Selection
    channel_class: Int32Array
    destinations: Int32Array
    entry: Int32Array
    set_start: Int32Array
    choice_pool: Int32Array
    choice_state: Int32Array
    choice_weight: FloatArray
    choice_probe: Int32Array
    choice_delay_ns: FloatArray
    pool_start: Int32Array
    pool_link: Int32Array
    pool_class: Int32Array
    pool_lane: Int32Array
    groups: DestinationGroups | None = None

    @property
    def states(self) -> int:
        return len(self.entry)

    @property
    def virtual_channels(self) -> int:
        return len(self.channel_class)

    @property
    def classes(self) -> int:
        return int(self.channel_class.max()) + 1

    @cached_property
    def entry_codes(self) -> Int32Array:
        """``entry`` with -2 - choice for sets of one choice; large, so made once."""
        alone = np.where(
            np.diff(self.set_start) == 1,
            -2 - self.set_start[:-1],
            np.arange(len(self.set_start) - 1),
        )
        # -1 takes the last code.
        codes = np.append(alone, -1).astype(np.int32)
        result = np.empty(self.entry.shape, dtype=np.int32)
        for state, sets in enumerate(self.entry):
            result[state] = codes[sets]
        return result

    def blocks(self) -> Iterator[tuple[slice, Int32Array]]:
        """Entries of all destinations (int32[states, vertices, block]), in order.

        Part by part where the table has groups, each with the places of its
        destinations.
        """
        seen = self.groups
        if seen is None:
            yield slice(0, len(self.destinations)), self.entry
            return
        vertex = np.arange(self.entry.shape[1])[:, None]
        for begin in range(0, len(self.destinations), _BLOCK):
            end = min(begin + _BLOCK, len(self.destinations))
            sets = self.entry[:, vertex, seen.seen(begin, end)]
            # numpy leaves it in another order, for which loops would be compiled again.
            yield slice(begin, end), np.ascontiguousarray(sets)

    def over_pairs(self) -> RoutingTable:
        """The same routing with a column for each destination."""
        if self.groups is None:
            return self
        pairs = np.empty((*self.entry.shape[:2], len(self.destinations)), dtype=np.int32)
        for block, entry in self.blocks():
            pairs[:, :, block] = entry
        return dataclasses.replace(self, entry=pairs, groups=None)

    def spread_pools(self, width: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Every pool on all channels of its class.

        Returns for each entry of a pool its member (0 to below ``width``, int[pools])
        and virtual channel, and the start of each pool. All members on the first
        channel of the class come first, then those on the next.
        """
        of_class = np.argsort(self.channel_class, kind="stable")
        channels = np.bincount(self.channel_class)
        first = (np.cumsum(channels) - channels)[self.pool_class]
        size = width * channels[self.pool_class]
        start = np.concatenate([[0], np.cumsum(size)])
        pool = np.repeat(np.arange(len(size)), size)
        turn, member = np.divmod(np.arange(start[-1]) - start[pool], width[pool])
        return member, of_class[first[pool] + turn], start


class _Singles:
    """The numbers of sets of one choice, by state and pool; -1 for none.

    Each state has those of the pools from its first to its last one. All pools of all
    states would be a hundred times as many.
    """

    def __init__(self) -> None:
        self._by_state: dict[int, tuple[int, Int32Array]] = {}

    def of(self, state: int, first: int, last: int) -> Int32Array:
        """Those of the pools from first to last, to read and to write."""
        begin, numbers = self._by_state.get(state, (first, np.empty(0, dtype=np.int32)))
        end = begin + len(numbers)
        if first < begin or last >= end:
            # Twice as many at least, as they may come one by one.
            low = begin if first >= begin else max(0, min(first, begin - len(numbers)))
            high = end if last < end else max(last + 1, end + len(numbers))
            wider = np.full(high - low, -1, dtype=np.int32)
            wider[begin - low : end - low] = numbers
            self._by_state[state] = begin, numbers = low, wider
        return numbers[first - begin : last + 1 - begin]

    def table(self) -> tuple[IntArray, IntArray, IntArray]:
        """Pool, state and number of each set."""
        none = np.empty((3, 0), dtype=np.int64)
        columns = [none]
        for state, (begin, numbers) in self._by_state.items():
            used = np.flatnonzero(numbers >= 0)
            columns.append(np.stack([begin + used, np.full(len(used), state), numbers[used]]))
        pool, state_of, number = np.concatenate(columns, axis=1)
        return pool, state_of, number


class TableBuilder:
    """Collects distinct pools and sets.

    Meanwhile a family fills ``entry`` with array operations. ``virtual_channels``: the
    number of classes of the routing. ``destinations``: the chips to route to (default:
    all), so that large networks can be routed in blocks. ``groups``: groups of the
    destinations, where ``entry`` has a column for each group. The selection is adaptive
    for routings called ``adaptive`` or ``adaptive_...``.
    """

    def __init__(
        self,
        topology: Topology,
        routing: str,
        destinations: Destinations = None,
        groups: DestinationGroups | None = None,
        *,
        states: int,
        virtual_channels: int,
    ) -> None:
        self.topology = topology
        self.routing = routing
        self.selection: Selection = (
            "adaptive" if routing.split("_")[0] == "adaptive" else "weighted"
        )
        self.virtual_channels = virtual_channels
        self.destinations = (
            np.arange(topology.chips, dtype=np.int32)
            if destinations is None
            else destinations.astype(np.int32)
        )
        self.groups = groups
        columns = len(self.destinations) if groups is None else groups.columns
        self.entry = np.full((states, topology.vertices, columns), -1, dtype=np.int32)
        #: Keys (place * virtual channels + channel) and lane of the pools in order, and
        #: by lane the number of each key, -1: none yet. Places are of single link rows,
        #: then of all rows of a joined pair of vertices, then of other rows.
        self._pools: list[tuple[IntArray, int]] = [(np.empty(0, dtype=np.int64), -1)]
        self._pool_numbers: dict[int, IntArray] = {}
        self._pool_count = 0
        self._other_rows: dict[tuple[int, ...], int] = {}
        self._between: dict[tuple[int, int], IntArray] = {}
        #: Numbers of sets of several choices, and of one choice.
        self._sets: dict[bytes, int] = {}
        self._singles = _Singles()
        self._count = 0
        links = topology.links
        key = links.src.astype(np.int64) * topology.vertices + links.dst
        # Packets take the first channel that is empty: of unequal ones the fastest.
        self._ordered_rows = np.lexsort((-links.gbps, key))
        self._joined, row, self._pair, size = np.unique(
            key, return_index=True, return_inverse=True, return_counts=True
        )
        self._first = np.append(0, np.cumsum(size))
        self._places = np.where(size > 1, len(links) + np.arange(len(size)), row)

    def pool(self, links: Sequence[int], vc: int, lane: int = -1) -> int:
        """The pool of these link rows on a channel: all lanes, or ``lane`` of each."""
        self._check_channel(vc)
        rows = tuple(int(link) for link in links)
        pair = self._pair[rows[0]]
        if len(rows) == 1:
            place = rows[0]
        elif rows == tuple(self._ordered_rows[self._first[pair] : self._first[pair + 1]].tolist()):
            place = int(self._places[pair])
        else:
            taken = len(self._pair) + len(self._places)
            place = self._other_rows.setdefault(rows, taken + len(self._other_rows))
        return int(self._numbered(np.array([place * self.virtual_channels + vc]), lane)[0])

    def _check_channel(self, vc: int) -> None:
        if not 0 <= vc < self.virtual_channels:
            raise ValueError(
                f"{self.routing}: virtual channel {vc}; allowed: 0 to {self.virtual_channels - 1}"
            )

    def row_pools(self, rows: IntArray, vc: IntArray | int) -> IntArray:
        """The pools of single link rows on their virtual channels; -1 stays -1."""
        self._check_channel(int(np.max(vc, initial=0)))
        keys, here = rows * self.virtual_channels + vc, rows >= 0
        # Sorting the keys, to find distinct ones, takes most of the time.
        used = np.zeros(len(self._pair) * self.virtual_channels, dtype=np.bool_)
        used[keys[here]] = True
        self._numbered(np.flatnonzero(used), -1)
        return np.where(here, self._pool_numbers[-1][np.where(here, keys, 0)], -1)

    def pools_between(
        self, src: NDArray[np.integer], dst: NDArray[np.integer], vc: int, lane: int = -1
    ) -> IntArray:
        """The pool of all link rows from src to dst, -1 where they are equal.

        Pairs have any shape. Raises ValueError where no link joins a pair.
        """
        if (vc, lane) not in self._between:
            self._check_channel(vc)
            keys = self._places * self.virtual_channels + vc
            self._between[vc, lane] = self._numbered(keys, lane)
        src, dst = np.broadcast_arrays(src, dst)
        key = src.astype(np.int64) * self.topology.vertices + dst
        at = np.minimum(np.searchsorted(self._joined, key), len(self._joined) - 1)
        missing = (self._joined[at] != key) & (src != dst)
        if missing.any():
            first = int(np.flatnonzero(missing.ravel())[0])
            raise ValueError(
                f"{self.routing}: no link from vertex {src.ravel()[first]} to vertex"
                f" {dst.ravel()[first]}"
            )
        return np.where(src == dst, -1, self._between[vc, lane][at])

    def _numbered(self, keys: IntArray, lane: int) -> IntArray:
        """The pools of distinct keys; new ones get their numbers in this order."""
        numbers = self._pool_numbers.get(lane, np.empty(0, dtype=np.int64))
        size = int(keys.max(initial=0)) + 1
        if size > len(numbers):
            # Twice as many at least, as they may come one by one.
            numbers = np.append(numbers, np.full(max(size - len(numbers), len(numbers)), -1))
            self._pool_numbers[lane] = numbers
        fresh = keys[numbers[keys] < 0]
        numbers[fresh] = self._pool_count + np.arange(len(fresh))
        self._pool_count += len(fresh)
        self._pools.append((fresh, lane))
        return numbers[keys]

    def single(self, pools: NDArray[np.integer], state: NDArray[np.integer] | int) -> Int32Array:
        """Sets of a single choice (pool and state after the hop); -1 stays -1."""
        pools, states = np.broadcast_arrays(
            np.asarray(pools, dtype=np.int64), np.asarray(state, dtype=np.int64)
        )
        here, states_used = pools >= 0, len(self.entry)
        size = int(pools.max(initial=-1)) + 1
        if not size:
            return np.full(pools.shape, -1, dtype=np.int32)
        # Most calls have a few states of many.
        used_states = np.flatnonzero(np.bincount(states[here]))
        number_of = np.zeros(states_used, dtype=np.int64)
        number_of[used_states] = np.arange(len(used_states))
        key = number_of[states[here]] * size + pools[here]
        # Sorting the keys, as numpy does to find distinct ones, takes most of the time.
        if key.size < size * len(used_states) // 8:
            distinct = np.unique(key)
        else:
            used = np.zeros(size * len(used_states), dtype=np.bool_)
            used[key] = True
            distinct = np.flatnonzero(used)
        state_of, pool = np.divmod(distinct, size)
        state_of = used_states[state_of]
        first = np.flatnonzero(np.diff(state_of, prepend=-1)).tolist()
        parts = [slice(*ends) for ends in pairwise([*first, len(pool)])]
        # The pools of each state, from the first to the last one, end to end.
        ranges = [
            self._singles.of(int(state_of[part.start]), *pool[part][[0, -1]].tolist())
            for part in parts
        ]
        ends = np.cumsum([len(numbers) for numbers in ranges])
        begin = np.zeros(states_used, dtype=np.int64)
        begin[state_of[first]] = [0, *ends[:-1]] - pool[first]
        number = np.concatenate(ranges)[begin[state_of] + pool]
        fresh = np.flatnonzero(number < 0)
        fresh = fresh[np.lexsort((state_of[fresh], pool[fresh]))]
        number[fresh] = self._count + np.arange(len(fresh))
        self._count += len(fresh)
        for numbers, part in zip(ranges, parts, strict=True):
            numbers[pool[part] - pool[part.start]] = number[part]
        at = np.where(here, begin[np.where(here, states, 0)] + pools, 0)
        result: Int32Array = np.where(here, np.concatenate(ranges)[at], -1)
        return result

    def _number(self, row: bytes) -> int:
        """The number of a set by the bytes of its choices."""
        if len(row) == _CHOICE.itemsize and row.endswith(_ALONE):
            pool, state = np.frombuffer(row[:8], dtype=np.int32).tolist()
            single = self._singles.of(state, pool, pool)
            if single[0] < 0:
                single[0] = self._count
                self._count += 1
            return int(single[0])
        number = self._sets.setdefault(row, self._count)
        self._count += number == self._count
        return number

    def _choices(self) -> tuple[NDArray[np.void], IntArray]:
        """The choices of all sets, and where each set starts."""
        length = np.ones(self._count, dtype=np.int64)
        several = np.fromiter(self._sets.values(), np.int64, len(self._sets))
        length[several] = [len(row) // _CHOICE.itemsize for row in self._sets]
        start = np.concatenate([[0], np.cumsum(length)])
        choices = np.zeros(start[-1], dtype=_CHOICE)
        choices["weight"], choices["probe"] = 1.0, -1
        pool, state, single = self._singles.table()
        choices["pool"][start[single]], choices["state"][start[single]] = pool, state
        at = np.repeat(start[several], length[several]) + offsets(length[several])
        choices[at] = np.frombuffer(b"".join(self._sets), dtype=_CHOICE)
        return choices, start

    def choice_set(
        self,
        choices: Sequence[tuple[int, int]],
        weights: Sequence[float] | None = None,
        probes: Sequence[int] | None = None,
        delays_ns: Sequence[float] | None = None,
    ) -> int:
        """The set of these choices (pool, state after the hop).

        Weights default to equal, probes to the pool itself.
        """
        count = len(choices)
        share = [1 / count] * count if weights is None else list(map(float, weights))
        if len(share) != count or min(share) < 0 or abs(sum(share) - 1) > 1e-9:
            raise ValueError(
                f"{self.routing}: weights {share}; allowed: {count} shares that sum to 1"
            )
        probed = [-1] * count if probes is None else probes
        delays = [0.0] * count if delays_ns is None else delays_ns
        row = b"".join(
            _PACK(pool, state, weight, probe, delay)
            for (pool, state), weight, probe, delay in zip(
                choices, share, probed, delays, strict=True
            )
            if weight > 0 or self.selection == "adaptive"
        )
        return self._number(row)

    def choice_sets(
        self, pool: Int32Array, state: Int32Array, weight: FloatArray, ends: IntArray
    ) -> list[int]:
        """Sets of choices that follow each other, each up to one of ``ends``; every
        weight is above 0.
        """
        first = np.concatenate([[0], ends[:-1]])
        sums = np.add.reduceat(weight, first) if len(ends) else weight
        if np.abs(sums - 1).max(initial=0.0) > 1e-9:
            raise ValueError(
                f"{self.routing}: weights with sums {sums}; allowed: shares that sum to 1"
            )
        choices = np.zeros(len(pool), dtype=_CHOICE)
        choices["pool"], choices["state"], choices["weight"] = pool, state, weight
        choices["probe"] = -1
        return self._numbers(choices, ends)

    def _numbers(self, choices: NDArray[np.void], ends: IntArray) -> list[int]:
        """The numbers of sets of choices that follow each other."""
        every, cuts = choices.tobytes(), (ends * _CHOICE.itemsize).tolist()
        rows = [every[i:j] for i, j in pairwise([0, *cuts])]
        if np.diff(ends, prepend=0).min(initial=2) == 1:
            return [self._number(row) for row in rows]
        fresh = [row for row in dict.fromkeys(rows) if row not in self._sets]
        self._sets.update(zip(fresh, range(self._count, self._count + len(fresh)), strict=True))
        self._count += len(fresh)
        return [self._sets[row] for row in rows]

    def merge(
        self, first: NDArray[np.integer], second: NDArray[np.integer], share: float = 0.5
    ) -> Int32Array:
        """Sets with the choices of two; ``share`` of the traffic to the first."""
        key = np.asarray(first, dtype=np.int64) << 32 | np.asarray(second, dtype=np.int64)
        distinct, where = np.unique(key, return_inverse=True)
        parts = np.array([share, 1 - share])
        used = parts > 0
        sets = np.stack(np.divmod(distinct, 1 << 32), axis=-1)[:, used].ravel()
        choices, start = self._choices()
        length = start[sets + 1] - start[sets]
        merged = choices[np.repeat(start[sets], length) + offsets(length)]
        merged["weight"] *= np.repeat(np.tile(parts[used], len(distinct)), length)
        ends = np.cumsum(length)[used.sum() - 1 :: used.sum()]
        ids = np.array(self._numbers(merged, ends), dtype=np.int32)
        return ids[where].reshape(key.shape)

    def build(self) -> RoutingTable:
        """The table; call it once ``entry`` is filled."""
        choices, start = self._choices()
        columns = {name: np.ascontiguousarray(choices[name]) for name in _CHOICE.names or ()}
        # Places of all rows that a pool may have, end to end.
        alone, others = np.arange(len(self._pair)), list(self._other_rows)
        several = np.array([len(rows) for rows in others], dtype=np.int64)
        size = np.concatenate([np.ones_like(alone), np.diff(self._first), several])
        rows = np.concatenate([alone, self._ordered_rows, *others])
        place, vc = np.divmod(
            np.concatenate([keys for keys, _ in self._pools]), self.virtual_channels
        )
        length = size[place]
        at = np.repeat((np.cumsum(size) - size)[place], length) + offsets(length)
        return RoutingTable(
            routing=self.routing,
            selection=self.selection,
            channel_class=np.arange(self.virtual_channels, dtype=np.int32),
            destinations=self.destinations,
            entry=self.entry,
            set_start=start.astype(np.int32),
            **{f"choice_{name}": column for name, column in columns.items()},
            pool_start=np.append(0, np.cumsum(length)).astype(np.int32),
            pool_link=rows[at].astype(np.int32),
            pool_class=vc.astype(np.int32),
            pool_lane=np.repeat(
                [lane for _, lane in self._pools], [len(keys) for keys, _ in self._pools]
            ).astype(np.int32),
            groups=self.groups,
        )
