"""What every step stands on: its folder and device, what it found, processes."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

_PACKAGE = Path(__file__).resolve().parent
#: Here lie railx/ and training/: in the prepared folder beside this package, in the
#: repository above its folder.
CODE = _PACKAGE.parent if (_PACKAGE.parent / "railx").is_dir() else _PACKAGE.parent.parent
sys.path.insert(0, str(CODE))

#: Where the stand-ins of a dry run lie in a prepared folder.
STAND_INS = "dry"

#: Set in a step that is taken anew, whatever earlier calls had finished of it.
AGAIN = "RAILX_GPU_AGAIN"

Relation = Literal["equal", "at_most", "at_least"]


class Skipped(Exception):
    """A step that cannot be taken here, and why."""


@dataclass
class Findings:
    """What a step found; ``fidelity`` is that of numbers which say nothing else."""

    fidelity: str
    checks: list[dict[str, Any]] = field(default_factory=list)
    measurements: list[dict[str, Any]] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def check(
        self,
        name: str,
        found: float | None,
        relation: Relation,
        expected: float,
        *,
        subject: str = "",
        unit: str = "",
        goal: bool = False,
        fidelity: str = "",
    ) -> None:
        """Hold a number to what is expected; None where this device has none."""
        from training.records import holds

        if found is not None and not math.isfinite(found):
            # No number is as far off as can be said in JSON.
            found = -sys.float_info.max if relation == "at_least" else sys.float_info.max
        self.checks.append(
            {
                "name": name,
                "subject": subject,
                "found": found,
                "relation": relation,
                "expected": expected,
                "unit": unit,
                "passed": None if found is None else holds(found, relation, expected),
                "goal": goal,
                "fidelity": fidelity or self.fidelity,
            }
        )

    def measured(
        self,
        name: str,
        value: float | None,
        *,
        subject: str = "",
        sample: object = "",
        unit: str = "",
        fidelity: str = "",
    ) -> None:
        """Note a number for the tables; nothing where there is none."""
        if value is not None and math.isfinite(value):
            self.measurements.append(
                {
                    "name": name,
                    "subject": subject,
                    "sample": str(sample),
                    "value": value,
                    "unit": unit,
                    "fidelity": fidelity or self.fidelity,
                }
            )


@dataclass(frozen=True)
class Work:
    """What a step has: the prepared folder, the folder to write, and the device."""

    folder: Path
    out: Path
    dry: bool

    @property
    def device(self) -> str:
        return "cpu" if self.dry else "cuda"

    @property
    def fidelity(self) -> str:
        return "measured_cpu" if self.dry else "measured_gpu"

    def findings(self) -> Findings:
        """An empty sheet."""
        return Findings(self.fidelity)

    def resolved(self, kind: str, name: str, *, stand_in: bool = False) -> dict[str, Any]:
        """Settings of the folder: of ``runs`` or ``profiles``."""
        folder = self.folder / STAND_INS if self.dry or stand_in else self.folder
        path = folder / kind / f"{name}.json"
        if not path.exists():
            raise Skipped(f"the folder has no {kind}/{name}.json")
        settings: dict[str, Any] = json.loads(path.read_text())
        return settings

    def settings(self, name: str, *, stand_in: bool = False) -> dict[str, Any]:
        """A run of the folder, with its paths as they are on this machine."""
        settings = self.resolved("runs", name, stand_in=stand_in)
        folder = self.folder / STAND_INS if self.dry or stand_in else self.folder
        settings["plan"] = str(folder / settings["plan"])
        settings["corpus"] = str(folder / settings["corpus"])
        settings["training"]["device"] = self.device
        return settings

    def config(self, name: str, settings: Mapping[str, Any]) -> Path:
        """Write settings for a process of their own."""
        path = self.out / "configs" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings, indent=1))
        return path

    def command(self, name: str, settings: Mapping[str, Any]) -> list[str]:
        """The launch of a run under ``name``."""
        config = self.config(name, settings)
        command = [sys.executable, "-m", "training.run", "--config", str(config)]
        return [*command, "--out", str(self.out / "runs" / name)]

    def train(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Train to the end; the result of the run.

        What an earlier call finished of the same run is not trained again, unless the
        step is taken anew.
        """
        place = self.out / "runs" / name
        said = self.config(name, settings).read_text()
        noted = self.out / "runs" / f"{name}.settings.json"
        if AGAIN in os.environ or not noted.exists() or noted.read_text() != said:
            shutil.rmtree(place, ignore_errors=True)
            place.parent.mkdir(parents=True, exist_ok=True)
            noted.write_text(said)
        if not (place / "result.json").exists():
            # Blocks that a call which was cut off had finished are kept by the run.
            command = [*self.command(name, settings), "--replace"]
            subprocess.run(command, check=True, env=environment())
        result: dict[str, Any] = json.loads((place / "result.json").read_text())
        return result


def environment(**changes: str) -> dict[str, str]:
    """Children find the code that lies beside this package."""
    before = os.environ.get("PYTHONPATH")
    paths = [str(CODE), *([before] if before else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **changes}


@contextlib.contextmanager
def one_rank(work: Work, inner: str, *, plain: bool = False) -> Iterator[None]:
    """A world of one rank over ``railx`` without switching, or over its inner backend.

    NCCL takes one rank; on the CPU gloo stands in for it.
    """
    import torch.distributed as dist

    from railx_torch import backend
    from railx_torch.trace import Recorder

    name = "gloo" if work.dry else inner
    if not plain:
        recorder = Recorder(0, device=work.device)
        options: Any = backend.BackendOptions
        backend.configure(options(name, None, "electrical", 1), recorder)
    dist.init_process_group(
        name if plain else "railx", store=dist.HashStore(), rank=0, world_size=1
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def wait_for(work: Work) -> None:
    """Wait until the device has done everything."""
    import torch

    if not work.dry:
        torch.cuda.synchronize()


def busy(work: Work, ms: float) -> None:
    """Let the current stream wait, so that the host runs ahead of it."""
    import torch

    if not work.dry:
        # Cycles of a clock of at most 2 GHz.
        cuda: Any = torch.cuda
        cuda._sleep(round(ms * 2e6))


def now_ms() -> float:
    """The wall clock that only goes on."""
    return time.perf_counter() * 1e3
