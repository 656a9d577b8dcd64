"""Plans of parallelism: one, and a table of many for vectorised pricing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import permutations
from typing import Annotated, Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from railx.settings import AtLeast, NonNegative, SettingsError

Array: TypeAlias = npt.NDArray[Any]
#: Axes of a plan's ranks; experts are spread over the context and data axes.
Axis: TypeAlias = Literal["tensor", "context", "data", "pipeline"]
AXES: tuple[Axis, ...] = get_args(Axis)
#: Placements: the axes from neighbouring ranks outwards. The first is the usual one.
ORDERS: tuple[tuple[str, ...], ...] = tuple(permutations(AXES))
#: Instead of a number of ``ORDERS``, for bounds: every axis as if it came first.
ALL_INNERMOST = len(ORDERS)
#: What the data-parallel ranks divide: nothing, the optimizer's state, also gradients,
#: also parameters (ZeRO stages 0 to 3, Rajbhandari 2020).
SHARDINGS = ("replicated", "optimizer", "gradients", "parameters")
#: What a backward pass computes again: nothing, attention's scores, or whole layers.
RECOMPUTATIONS = ("none", "selective", "full")
SCHEDULES = ("1f1b", "interleaved", "gpipe")


def distinct(columns: Iterable[Array]) -> tuple[Array, Array]:
    """The first row of each combination of values, and the combination of each row."""
    code: Any = 0
    for column in columns:
        values, numbers = np.unique(column, return_inverse=True)
        code = code * len(values) + numbers
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return first, inverse


@dataclass(frozen=True)
class Plan:
    """How one training step is divided among devices."""

    data: Annotated[int, AtLeast(1)] = 1
    """Replicas, or shards of the model (FSDP)."""
    tensor: Annotated[int, AtLeast(1)] = 1
    """Ranks that divide each matrix product."""
    context: Annotated[int, AtLeast(1)] = 1
    """Ranks that divide each sequence."""
    pipeline: Annotated[int, AtLeast(1)] = 1
    """Stages."""
    expert: Annotated[int, AtLeast(1)] = 1
    """Ranks that share the experts of a layer; a divisor of data x context."""
    virtual: Annotated[int, AtLeast(1)] = 1
    """Virtual stages of a stage; more than 1 where interleaved."""
    micro_batch: Annotated[int, AtLeast(1)] = 1
    """Sequences of a micro-batch."""
    micro_batches: Annotated[int, AtLeast(1)] = 1
    """Micro-batches of a replica in a step."""
    sequence_tokens: Annotated[int, AtLeast(1)] = 2048
    """Tokens of a sequence."""
    sharding: Literal["replicated", "optimizer", "gradients", "parameters"] = "replicated"
    """What the data-parallel ranks divide (ZeRO stages 0 to 3)."""
    recompute: Literal["none", "selective", "full"] = "none"
    """What a backward pass computes again: nothing, the scores, or whole layers."""
    recompute_layers: Annotated[float, NonNegative()] = 1.0
    """Share of the layers of a stage to which ``recompute`` applies."""
    schedule: Literal["1f1b", "interleaved", "gpipe"] = "1f1b"
    """Order of the passes of a pipeline."""
    sequence_parallel: bool = False
    """Whether tensor ranks divide the tokens between matrix products."""
    order: tuple[Axis, ...] = AXES
    """Axes from neighbouring ranks outwards; the first ones fill a node."""

    def __post_init__(self) -> None:
        if (self.virtual > 1) != (self.schedule == "interleaved"):
            raise SettingsError(
                "virtual", f"got {self.virtual} with {self.schedule}; allowed: 1 unless interleaved"
            )
        if self.data * self.context % self.expert:
            raise SettingsError(
                "expert",
                f"got {self.expert}; allowed: a divisor of data x context,"
                f" {self.data * self.context}",
            )
        if self.sequence_tokens % self.context:
            raise SettingsError(
                "context",
                f"got {self.context}; allowed: a divisor of {self.sequence_tokens} tokens",
            )
        if not 0 <= self.recompute_layers <= 1:
            raise SettingsError(
                "recompute_layers", f"got {self.recompute_layers}; allowed: from 0 to 1"
            )
        if sorted(self.order) != sorted(AXES):
            raise SettingsError("order", f"got {self.order}; allowed: each of {', '.join(AXES)}")

    @property
    def devices(self) -> int:
        """All devices of the plan."""
        return self.data * self.tensor * self.context * self.pipeline

    @property
    def global_batch(self) -> int:
        """Sequences of a step."""
        return self.data * self.micro_batch * self.micro_batches

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.global_batch * self.sequence_tokens


@dataclass(frozen=True, eq=False)
class Plans:
    """Plans as columns, one row a plan: ``column("tensor")`` is int[plans].

    Words are numbers: the position in ``SHARDINGS``, ``RECOMPUTATIONS``, ``SCHEDULES``,
    ``ORDERS``.
    """

    columns: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.columns["data"])

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    @classmethod
    def of(cls, plans: Iterable[Plan]) -> Plans:
        """Columns of some plans."""
        rows = list(plans)
        return cls.table({name: [getattr(plan, name) for plan in rows] for name in _COLUMNS})

    @classmethod
    def table(cls, columns: Mapping[str, Any]) -> Plans:
        """From columns of values, words or one value for all rows, or else defaults."""
        values = {**_DEFAULTS, **columns}
        arrays = {name: np.atleast_1d(_coded(name, values[name])) for name in _COLUMNS}
        size = max(len(array) for array in arrays.values())
        return cls({name: np.broadcast_to(a, size) for name, a in arrays.items()})

    def take(self, rows: Array) -> Plans:
        """The plans of some rows: int[n] or bool[plans]."""
        return Plans({name: array[rows] for name, array in self.columns.items()})

    def placed(self, order: int | Array) -> Plans:
        """The same plans in other placements, numbers of ``ORDERS``."""
        return Plans({**self.columns, "order": np.broadcast_to(order, len(self))})

    def plan(self, row: int) -> Plan:
        """One row as a plan."""
        words = {name: codes[int(self[name][row])] for name, codes in _CODES.items()}
        numbers = {name: self[name][row].item() for name in _COLUMNS if name not in _CODES}
        return Plan(**numbers, **words)

    @property
    def devices(self) -> Array:
        """Devices of each plan, int[plans]."""
        return math.prod(self[axis] for axis in AXES)  # type: ignore[return-value]

    @property
    def tokens(self) -> Array:
        """Tokens of a step of each plan, int[plans]."""
        return self["data"] * self["micro_batch"] * self["micro_batches"] * self["sequence_tokens"]

    def members_in_node(self, axis: str, node_devices: int) -> Array:
        """How many ranks of a group along an axis sit in one node, float[plans].

        Ranks are numbered along the axes in order; nodes take them one after another.
        Below 1: of how many nodes in a row one has a rank of the group, inverted.
        """
        inner = math.prod(
            np.where(_INNER[AXES.index(name), AXES.index(axis)][self["order"]], self[name], 1)
            for name in AXES
        )
        inside = np.where(inner > node_devices, node_devices / inner, node_devices // inner)
        return np.asarray(np.where(self[axis] == 1, 1, np.minimum(inside, self[axis])))


_COLUMNS = tuple(f.name for f in fields(Plan))
_CODES: Mapping[str, tuple[Any, ...]] = {
    "sharding": SHARDINGS,
    "recompute": RECOMPUTATIONS,
    "schedule": SCHEDULES,
    "order": ORDERS,
}
_DEFAULTS = {f.name: f.default for f in fields(Plan)}
#: Whether one axis precedes another in a placement: bool[axes, axes, orders + 1].
_INNER = np.array(
    [
        [[o.index(first) < o.index(second) for o in ORDERS] + [False] for second in AXES]
        for first in AXES
    ]
)


def _coded(name: str, values: Any) -> Array:
    array = np.asarray(values)
    if name in _CODES and array.dtype.kind in "UO":
        codes = {word: number for number, word in enumerate(_CODES[name])}
        words = array.reshape(-1, len(AXES)).tolist() if name == "order" else array.ravel().tolist()
        return np.array([codes[tuple(w) if name == "order" else w] for w in words], np.int64)
    return array
