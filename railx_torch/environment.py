"""Environment variables that configure the backend in a plain torch program.

* ``RAILX_FABRIC``: ``electrical``, ``on_demand`` or ``provisioned``.
* ``RAILX_CONTROLLER``: host:port of the controller; ignored in electrical mode.
* ``RAILX_TOKEN``: the secret that the controller requires, if any.
* ``RAILX_GPUS_PER_SERVER``: ranks that reach one another without circuits. Default:
  LOCAL_WORLD_SIZE, which torchrun sets.
* ``RAILX_INNER``: the backend that moves the data, ``gloo`` or ``nccl``. Default:
  ``nccl`` where torch has it and there is a GPU, else ``gloo``.
* ``RAILX_TRACE``: folder for RANK.parquet, the trace of each rank, written when the
  program ends. Default: no trace.
* ``RAILX_REPORT``: 1 prints a line of JSON with the counts of the rank on stderr when
  the program ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast, get_args

import pyarrow.parquet as pq
import torch
import torch.distributed as dist

from railx.errors import UserError
from railx.fabric import Mode
from railx_torch.session import BackendOptions, Session
from railx_torch.trace import Recorder

_INNER = ("gloo", "nccl")


@dataclass(frozen=True)
class Environment:
    """The values of the variables."""

    options: BackendOptions
    trace: Path | None
    report: bool

    def recorder(self, rank: int) -> Recorder:
        """The recorder of a rank; without a folder it discards: runs last weeks."""
        return Recorder(rank, keep=self.trace is not None)

    def close(self, session: Session) -> None:
        """Write trace and report at the end of the program."""
        rank = session.recorder.rank
        if self.trace is not None:
            self.trace.mkdir(parents=True, exist_ok=True)
            pq.write_table(session.recorder.table(), self.trace / f"{rank}.parquet")
        if self.report:
            line = json.dumps({"rank": rank, **asdict(session.statistics)})
            print(line, file=sys.stderr, flush=True)


def read(variables: Mapping[str, str]) -> Environment:
    """Check all variables before anything connects; UserError names the variable."""
    modes = get_args(Mode)
    mode = _choice(variables, "RAILX_FABRIC", modes)
    controller = None
    if mode != "electrical":
        controller = _address(variables)
    cuda: Any = torch.cuda
    default = "nccl" if cuda.is_available() and dist.is_nccl_available() else "gloo"
    inner = _choice(variables, "RAILX_INNER", _INNER, default)
    trace = variables.get("RAILX_TRACE")
    return Environment(
        options=BackendOptions(
            inner=cast("Any", inner),
            controller=controller,
            mode=cast("Mode", mode),
            gpus_per_server=_gpus_per_server(variables),
            token=variables.get("RAILX_TOKEN") or None,
        ),
        trace=Path(trace) if trace else None,
        report=_choice(variables, "RAILX_REPORT", ("0", "1"), "0") == "1",
    )


def _choice(
    variables: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str | None = None
) -> str:
    value = variables.get(name) or default
    if value not in allowed:
        problem = "is missing" if value is None else f"got {value}"
        raise UserError(f"{name}: {problem}; allowed: {', '.join(allowed)}")
    return value


def _address(variables: Mapping[str, str]) -> str:
    address = variables.get("RAILX_CONTROLLER")
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        problem = f"got {address}" if address else "is missing"
        raise UserError(
            f"RAILX_CONTROLLER: {problem}; allowed: host:port of a running controller"
            " (RAILX_FABRIC=electrical needs none)"
        )
    return cast("str", address)


def _gpus_per_server(variables: Mapping[str, str]) -> int:
    for name in ("RAILX_GPUS_PER_SERVER", "LOCAL_WORLD_SIZE"):
        value = variables.get(name)
        if value:
            if not value.isdecimal() or int(value) < 1:
                raise UserError(f"{name}: got {value}; allowed: 1, 2, 3, ...")
            return int(value)
    raise UserError("RAILX_GPUS_PER_SERVER: is missing; allowed: 1, 2, 3, ...")
