"""Which light paths a group of GPUs needs, and the rule that every light path obeys.

GPU g sits in server g // gpus_per_server on rail g % gpus_per_server; each rail has one
optical circuit switch, and each GPU two ports on it, ``left`` and ``right``. A circuit
joins the right port of one GPU to the left port of another one of the rail, in both
directions. A port has one peer at most, so the circuits that are up at one time are a
matching (Opus, arXiv 2602.12521).

* Two GPUs that exchange activations (a pair a < b) need right(a) - left(b). A middle
  stage of a pipeline so keeps both neighbours.
* A collective needs the ring of its members, right(i) - left(next of i), on each rail
  that it uses. A ring of two takes both ports of both GPUs, as every ring does, so that
  the group has the bandwidth of all its ports.
* A group inside one server talks through the scale-up network and needs no circuit at
  all.

Where a server of the group has no member on a rail that the group uses, the GPU of that
server on that rail stands in: the data goes there through the scale-up network.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Literal, NamedTuple

from railx.errors import UserError

#: The phase name of operations that need no circuit.
SCALE_UP = "scale-up"


class Port(NamedTuple):
    """One of the two ports of a GPU on the optical switch of its rail."""

    gpu: int
    side: Literal["left", "right"]


class Circuit(NamedTuple):
    """A light path from the right port of ``right`` to the left port of ``left``."""

    right: int
    left: int

    @property
    def ports(self) -> tuple[Port, Port]:
        """The two ports that the circuit occupies."""
        return _ports(self)


@dataclass(frozen=True)
class Configuration:
    """What one kind of operation needs: the circuit of a pair or the ring of a group.

    ``members`` are global ranks in order.
    """

    kind: Literal["pair", "ring"]
    members: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.kind not in ("pair", "ring"):
            raise UserError(f"kind of a configuration: got {self.kind!r}; allowed: pair, ring")
        members = self.members
        got = f"members of a {self.kind}: got {list(members)}"
        if len(set(members)) != len(members) or len(members) < 2 or min(members) < 0:
            raise UserError(f"{got}; allowed: two or more different ranks from 0 up")
        if self.kind == "pair" and len(members) != 2:
            raise UserError(f"{got}; allowed: exactly two ranks")
        object.__setattr__(self, "members", tuple(sorted(members)))
        # Everything is looked up by configurations, and groups may be large.
        object.__setattr__(self, "_hash", hash((self.kind, self.members)))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined, no-any-return]

    def __reduce__(self) -> tuple[object, ...]:
        # The hash of another process is another one.
        return Configuration, (self.kind, self.members)

    @property
    def name(self) -> str:
        """The name of the phase in traces, e.g. ``ring 0,1,2,3``."""
        return f"{self.kind} {','.join(map(str, self.members))}"


@dataclass(frozen=True)
class Layout:
    """How global ranks fill the servers: rank = server * gpus_per_server + rail."""

    gpus_per_server: int

    def __post_init__(self) -> None:
        if self.gpus_per_server < 1:
            raise UserError(f"gpus_per_server: got {self.gpus_per_server}; allowed: at least 1")

    def server(self, gpu: int) -> int:
        """The server (scale-up domain) of a GPU."""
        return gpu // self.gpus_per_server

    def rail(self, gpu: int) -> int:
        """The rail of a GPU, its place within the server."""
        return gpu % self.gpus_per_server

    def is_scale_up(self, members: Iterable[int]) -> bool:
        """Whether all members sit in one server, so that no circuit is needed."""
        return len({self.server(member) for member in members}) <= 1

    def circuits(self, configuration: Configuration) -> tuple[Circuit, ...]:
        """What ``configuration`` needs, always a matching; none within a server."""
        return _circuits(self, configuration)

    def conflict(self, first: Configuration, second: Configuration) -> bool:
        """Whether the two cannot be up together: a port would need two peers."""
        return _conflict(self, first, second)

    def rails(self, circuits: Iterable[Circuit]) -> dict[int, tuple[Circuit, ...]]:
        """The circuits of each rail, rails in order."""
        ordered = sorted((self.rail(circuit.right), circuit) for circuit in circuits)
        groups = groupby(ordered, key=lambda item: item[0])
        return {rail: tuple(circuit for _, circuit in items) for rail, items in groups}


@lru_cache(maxsize=1 << 16)
def _ports(circuit: Circuit) -> tuple[Port, Port]:
    return Port(circuit.right, "right"), Port(circuit.left, "left")


@lru_cache(maxsize=4096)
def _circuits(layout: Layout, configuration: Configuration) -> tuple[Circuit, ...]:
    members = configuration.members
    if layout.is_scale_up(members):
        return ()
    if configuration.kind == "pair":
        low, high = members
        return (Circuit(layout.server(low) * layout.gpus_per_server + layout.rail(high), high),)
    servers = sorted({layout.server(member) for member in members})
    following = [*servers[1:], servers[0]]
    return tuple(
        Circuit(here * layout.gpus_per_server + rail, there * layout.gpus_per_server + rail)
        for rail in sorted({layout.rail(member) for member in members})
        for here, there in zip(servers, following, strict=True)
    )


@lru_cache(maxsize=4096)
def _conflict(layout: Layout, first: Configuration, second: Configuration) -> bool:
    common = set(layout.circuits(first)) & set(layout.circuits(second))
    shared = ports_of(layout.circuits(first)) & ports_of(layout.circuits(second))
    return not shared <= {port for circuit in common for port in circuit.ports}


@lru_cache(maxsize=4096)
def ports_of(circuits: tuple[Circuit, ...]) -> frozenset[Port]:
    """All ports that the circuits occupy."""
    return frozenset(port for circuit in circuits for port in circuit.ports)


COMMUNICATION = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter"),
    *("reduce_scatter", "all_to_all", "barrier", "send", "recv"),
)
