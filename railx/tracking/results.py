"""What the trackers are told: a stage result with its config, numbers and digest."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["StageResult", "TrackedRun", "flat", "numbers", "result_digest"]

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class StageResult:
    """The result of one stage.

    ``digest`` stands for the code, config and inputs that made it (see
    :func:`result_digest`). ``metrics`` may be nested; what is not a number in it is
    left out. ``artifacts`` are the files it wrote.
    """

    stage: str
    name: str
    digest: str
    config: Mapping[str, Any]
    metrics: Mapping[str, Any]
    fidelity: str | None = None
    artifacts: tuple[Path, ...] = ()

    @property
    def title(self) -> str:
        """How a tracker lists it."""
        return f"{self.stage}/{self.name}"

    @property
    def key(self) -> str:
        """16 hexadecimal digits, the same for the same result of the same stage."""
        return hashlib.sha256(f"{self.stage}\0{self.name}\0{self.digest}".encode()).hexdigest()[:16]


@dataclass(frozen=True)
class TrackedRun:
    """Where a stage result is tracked.

    ``*_found`` says that an earlier invocation had logged it. None: tracker is off.
    """

    stage: str
    name: str
    digest: str
    mlflow_run: str | None
    mlflow_found: bool
    wandb_run: str | None
    wandb_found: bool


def result_digest(config: Any, inputs: Iterable[str | Path] = (), code: str = "") -> str:
    """SHA-256 (hexadecimal) of a resolved config, its input files and its code.

    The contents of the files count in the order given, the code by a digest. Names and
    times of files play no part. Raises OSError for an input that cannot be read.
    """
    digest = hashlib.sha256(
        json.dumps(config, sort_keys=True, separators=(",", ":"), default=str).encode()
    )
    digest.update(b"\0" + code.encode())
    for path in inputs:
        contents = hashlib.sha256()
        with Path(path).open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                contents.update(block)
        digest.update(b"\0" + contents.digest())
    return digest.hexdigest()


def flat(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings with dotted keys; lists stay whole."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from flat(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix, node


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among the leaves (true and false as 1 and 0)."""
    leaves = (
        (key, float(value)) for key, value in flat(metrics) if isinstance(value, (int, float))
    )
    return {key: value for key, value in leaves if math.isfinite(value)}
