"""Programs of ranks, as a replay carries them out on a virtual clock.

A program is a rank's sequence of steps: it computes, issues operations, and waits for
some of them. Operations run on lanes, one for each channel, one after another, while
the program goes on. A job of 2,048 GPUs has a million steps, so a program is a table
with one row per step, the steps of a rank in their order and ranks one after another.
Members of groups and names of channels are stored once, beside it. A file of it is one
Parquet table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from railx.errors import UserError
from railx.fabric.circuits import COMMUNICATION, Configuration
from railx.fabric.holdings import OperationKey
from railx.io import (
    as_numbers,
    as_words,
    read_metadata,
    read_table,
    write_table,
    written_by,
)
from railx.vocabulary.arrays import Array, as_integers

#: The longest wait of a collective behind a message whose receiver does not come, and
#: the shortest one: those of a run (``railx_torch.session``).
PATIENCE_NS = 2_000_000_000
IMPATIENT_NS = 20_000_000


def stuck_message(
    rank: int, number: int, iteration: int, does: str, key: OperationKey | None
) -> str:
    """Why a replay cannot end: a rank's step (by its number) that never does."""
    what = "" if key is None else f" operation {key}"
    return (
        f"rank {rank} never ends step {number} (iteration {iteration}): {does}{what};"
        " allowed: operations that all their members begin"
    )


#: What a step does, by the number in its column.
DOES: tuple[Literal["begin", "issue", "wait", "end", "compute"], ...] = (
    *("begin", "issue", "wait", "end", "compute"),
)
_ISSUE, _WAIT, _COMPUTE = map(DOES.index, ("issue", "wait", "compute"))
#: The kinds of operations, by the number in their column.
KINDS = COMMUNICATION
#: The columns with their types and defaults (None: required).
COLUMNS: Mapping[str, tuple[Any, int | None]] = {
    "rank": (np.int32, None),
    "iteration": (np.int32, None),
    "does": (np.int8, None),
    "gap_ns": (np.int64, None),
    "channel": (np.int32, None),
    "sequence": (np.int64, None),
    "configuration": (np.int32, None),
    "kind": (np.int8, -1),
    "bytes": (np.int64, 0),
    "lasts_ns": (np.int64, 0),
    "alone": (np.bool_, 0),
    "pickup_ns": (np.int64, 0),
    "resume_ns": (np.int64, 0),
}
_TIMES = ("gap_ns", "lasts_ns", "pickup_ns", "resume_ns")


@dataclass(frozen=True, eq=False)
class Programs:
    """What every rank does, in order. Columns (one entry per step):

    * ``rank``, ``iteration``; ``does``: a number of :data:`DOES`. ``begin`` and ``end``
      of an iteration, which all begin together; ``issue`` an operation; ``wait`` for
      one; ``compute``.
    * ``gap_ns``: computation since the step before; of a ``begin`` since the last rank
      is there.
    * ``channel``: a number of ``channels``. One channel is one lane: its operations run
      one after another on each rank. ``sequence``: the operation's number on it, alike
      on all members. ``configuration``: a number of ``configurations``, one for each
      channel. All three are -1 where the step has no operation.
    * ``kind``: a number of :data:`KINDS`, -1 where it is not said. ``bytes``: as in a
      trace.
    * ``lasts_ns`` (issue): how long the operation takes this member once all are there
      and circuits are up. ``alone`` (issue): where none are asked for, this member
      waits for nobody.
    * ``pickup_ns`` (issue): the operation begins so long after it is the first of its
      lane. ``resume_ns`` (wait): the program goes on so long after its end.
    """

    columns: Mapping[str, Array]
    channels: tuple[str, ...]
    configurations: tuple[Configuration, ...]

    def __post_init__(self) -> None:
        _check(self)

    def __len__(self) -> int:
        return len(self.columns["rank"])

    @property
    def ranks(self) -> int:
        """How many ranks there are: 0 to the highest that has a step."""
        return int(self.columns["rank"][-1]) + 1 if len(self) else 0

    @property
    def configuration_of(self) -> Array:
        """The configuration of each channel, -1 where it has no operation."""
        found = np.full(len(self.channels), -1, np.int32)
        operates = self.columns["channel"] >= 0
        found[self.columns["channel"][operates]] = self.columns["configuration"][operates]
        return found

    @classmethod
    def from_columns(
        cls,
        columns: Mapping[str, Any],
        channels: Sequence[str],
        configurations: Sequence[Configuration],
    ) -> Programs:
        """Programs of these columns; what :data:`COLUMNS` has a default for may lack.

        ValueError naming the fault.
        """
        unknown = sorted(set(columns) - set(COLUMNS))
        lacking = [n for n, (_, default) in COLUMNS.items() if default is None and n not in columns]
        if unknown or lacking:
            got = f"columns: got {', '.join(columns)}"
            raise UserError(f"{got}; allowed: {', '.join(COLUMNS)}")
        steps = len(columns["rank"])
        typed = {
            name: np.ascontiguousarray(columns[name], dtype=kind)
            if name in columns
            else np.full(steps, default, dtype=kind)
            for name, (kind, default) in COLUMNS.items()
        }
        return cls(typed, tuple(channels), tuple(configurations))


def write_programs(
    path: str | Path, programs: Programs, *, notes: Mapping[str, Any] | None = None
) -> None:
    """Write programs as one Parquet table; ``notes`` (JSON values) travel with them."""
    names: Mapping[str, Sequence[str]] = {"does": DOES, "channel": programs.channels, "kind": KINDS}
    columns = {
        name: as_words(values.astype(np.int32), names[name]) if name in names else pa.array(values)
        for name, values in programs.columns.items()
    }
    configurations = [[item.kind, *item.members] for item in programs.configurations]
    metadata = {"channels": list(programs.channels), "configurations": configurations}
    write_table(path, pa.table(columns), metadata=metadata | {"notes": dict(notes or {})})


def read_programs(path: str | Path) -> Programs:
    """Read what :func:`write_programs` wrote; ValueError naming the fault."""
    metadata, table = read_metadata(path), read_table(path)
    if "configurations" not in metadata or not set(COLUMNS) <= set(table.column_names):
        raise UserError(f"{path}: is no file of programs; allowed: one of write_programs")
    with written_by(path, "railx steps --out"):
        channels = tuple(metadata["channels"])
        names: Mapping[str, Sequence[str]] = {"does": DOES, "channel": channels, "kind": KINDS}
        columns = {
            name: as_numbers(table[name], names[name])
            if name in names
            else table[name].to_numpy(zero_copy_only=False)
            if kind is np.bool_
            else as_integers(table[name], kind)
            for name, (kind, _) in COLUMNS.items()
        }
        configurations = [
            Configuration(kind, tuple(members)) for kind, *members in metadata["configurations"]
        ]
        programs = Programs.from_columns(columns, channels, configurations)
        if programs.ranks > len(programs):
            last, limit = programs.ranks - 1, len(programs)
            raise UserError(f"rank: got {last}; allowed: below {limit}, the number of steps")
    return programs


def _check(programs: Programs) -> None:
    columns = programs.columns
    sizes = {name: len(columns[name]) for name in COLUMNS}
    if len(set(sizes.values())) > 1:
        raise UserError(f"columns: got lengths {sizes}; allowed: one entry for each step")
    if not len(programs):
        return
    rank, does, channel = columns["rank"], columns["does"], columns["channel"]
    if rank[0] < 0 or (np.diff(rank) < 0).any():
        raise UserError("rank: got steps out of order; allowed: all steps of a rank together")
    if does.min() < 0 or does.max() > _COMPUTE:
        raise UserError(f"does: got {does.min()} to {does.max()}; allowed: 0 to {_COMPUTE}")
    for name in _TIMES:
        if columns[name].min() < 0:
            raise UserError(f"{name}: got {columns[name].min()}; allowed: 0 or more")
    operates = (does == _ISSUE) | (does == _WAIT)
    limits = {"channel": len(programs.channels), "configuration": len(programs.configurations)}
    for name, limit in limits.items():
        values = columns[name]
        if (values[operates] < 0).any() or values.max() >= limit or (values[~operates] >= 0).any():
            raise UserError(
                f"{name}: got {values.min()} to {values.max()}; allowed: 0 to {limit - 1} where a"
                " step has an operation, -1 elsewhere"
            )
    found = programs.configuration_of[channel[operates]]
    if (found != columns["configuration"][operates]).any():
        raise UserError("configuration: got several for a channel; allowed: one for each channel")
