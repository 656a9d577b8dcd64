"""Checkpoints: parameters and optimizer of a run between two steps, cut for no plan.

Notable:

* ``torch.distributed.checkpoint`` writes what every rank keeps under the parameter's
  name in the whole model. Whoever reads takes its own rows and layers out of that: any
  other number of ranks, sharded or not, as a pipeline or not;
* a checkpoint is written beside its place and renamed when it is whole, and only then
  the one before it goes. A process killed in between leaves the last whole one;
* ``checkpoint.json`` in it says what was trained: the model, the seed, and which tokens
  every step so far took. A run that would not go on from just that is refused;
* all ranks see the folder. Reading one unpickles its index, as torch wrote it: take
  none from a stranger.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from railx.errors import UserError
from railx.io import read_json, write_json
from railx.planning.format.plan import Plan, sequence_lengths
from railx.settings import to_dict
from training.data import Sequences
from training.engine import PRECISIONS, Engine
from training.model import Decoder
from training.settings import RunSettings

__all__ = [
    "SCHEMA",
    "Checkpoint",
    "check_checkpoint",
    "find_checkpoint",
    "load_checkpoint",
    "newest_checkpoint",
    "save_checkpoint",
    "trained",
]

SCHEMA = "railx.checkpoint/1"

_NAME = re.compile(r"block_(\d+)_step_(\d+)")
_DESCRIPTION = "checkpoint.json"


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint: where it is, and what it says of itself.

    ``step`` counts the steps that are in it, ``block`` is the block of its run.
    """

    folder: Path
    block: int
    step: int
    trained: Mapping[str, Any]


def trained(settings: RunSettings, plan: Plan, sequences: Sequences) -> dict[str, Any]:
    """What decides about the weights, as plain data, whatever plan shares it out.

    The digests are those of the plan's batches in turn: of the ids and lengths of their
    sequences, and of the tokens.
    """
    model = {key: value for key, value in to_dict(settings.model).items() if key != "name"}
    held = [sorted(sequence_lengths(batch)) for batch in plan.batches]
    return {
        "model": model,
        "seed": settings.seed,
        "precision": str(_master(settings)).removeprefix("torch."),
        "batches": [_digest([repr(pairs).encode()]) for pairs in held],
        "tokens": [
            _digest(sequences[sequence][:length].tobytes() for sequence, length in pairs)
            for pairs in held
        ],
    }


def save_checkpoint(
    folder: Path,
    engine: Engine,
    *,
    block: int,
    step: int,
    trained: Mapping[str, Any],
    control: dist.ProcessGroup,
    also: Callable[[Path], None] | None = None,
) -> None:
    """Write a checkpoint into ``folder`` in place of those that are there.

    Every rank calls it at the same point; ``control`` holds all of them. ``also``
    writes more files into it, on rank 0.
    """
    distributed = _torch_checkpoint()
    name = f"block_{block:03d}_step_{step:06d}"
    beside, first = folder / f".{name}.part", dist.get_rank() == 0
    if first:
        # The ranks write once rank 0 has planned.
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True, exist_ok=True)
    distributed.save(
        engine.state_dict(),
        storage_writer=distributed.FileSystemWriter(beside),
        process_group=control,
    )
    if not first:
        return
    if also is not None:
        also(beside)
    description = {"schema": SCHEMA, "block": block, "step": step, **trained}
    write_json(beside / _DESCRIPTION, description)
    shutil.rmtree(folder / name, ignore_errors=True)
    beside.replace(folder / name)
    _sync(folder)
    for other in folder.iterdir():
        if other.name != name and _NAME.fullmatch(other.name.strip(".").removesuffix(".part")):
            shutil.rmtree(other)


def load_checkpoint(
    checkpoint: Checkpoint, engine: Engine, control: dist.ProcessGroup | None = None
) -> None:
    """Put a checkpoint into an engine; every rank calls it at the same point."""
    distributed = _torch_checkpoint()
    state = engine.state_dict()
    distributed.load(
        state,
        storage_reader=distributed.FileSystemReader(checkpoint.folder),
        process_group=control,
    )
    engine.load_state_dict(state)


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """The whole checkpoint of the last block and step below ``folder``, if any."""
    found = [
        (int(match[1]), int(match[2]), path)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := _NAME.fullmatch(path.name)) and (path / _DESCRIPTION).is_file()
    ]
    return _read(max(found)[2]) if found else None


def find_checkpoint(path: Path, places: Iterable[str]) -> Checkpoint:
    """The checkpoint that ``path`` is, or the newest one of the run's folder ``path``.

    ``places`` are the folders of a run that may hold some, the latest first.
    ValueError, one line, where there is none.
    """
    if (path / _DESCRIPTION).is_file():
        return _read(path)
    for folder in (path, *(path / place for place in places)):
        if (newest := newest_checkpoint(folder)) is not None:
            return newest
    raise UserError(
        f"{path}: no whole checkpoint; allowed: a checkpoint, or the folder of a run that wrote"
        " one (training.checkpoint_every)"
    )


def check_checkpoint(
    checkpoint: Checkpoint, settings: RunSettings, plan: Plan, sequences: Sequences
) -> None:
    """Refuse a checkpoint that this run would not go on from as if never stopped.

    ValueError, one line, names what differs: model, seed, precision, sequences or
    tokens of a step, the name or the shape of a parameter.
    """
    where, wanted, found = checkpoint.folder, trained(settings, plan, sequences), checkpoint.trained
    for key, value in wanted["model"].items():
        if found["model"].get(key, value) != value:
            raise UserError(
                f"{where}: a checkpoint of another model: model.{key}: got"
                f" {found['model'][key]}; allowed: {value}, that of the run"
            )
    _check_tensors(where, settings)
    for key in ("seed", "precision"):
        if found[key] != wanted[key]:
            raise UserError(
                f"{where}: {key}: got {found[key]}; allowed: {wanted[key]}, that of the run"
            )
    for step in range(checkpoint.step):
        for key, what in (("batches", "sequences"), ("tokens", "tokens of them")):
            theirs, ours = found[key], wanted[key]
            if theirs[step % len(theirs)] != ours[step % len(ours)]:
                raise UserError(
                    f"{where}: step {step} took other {what} than this run's; allowed: a plan of"
                    " the same batches in the same order, on the same corpus"
                )


def _check_tensors(where: Path, settings: RunSettings) -> None:
    try:
        stored = _torch_checkpoint().FileSystemReader(where).read_metadata().state_dict_metadata
    except Exception as error:
        raise UserError(
            f"{where}: cannot be read ({type(error).__name__}: {error}); allowed: a whole"
            " checkpoint"
        ) from None
    decoder = Decoder(settings.model, seed=0, compute=_master(settings), device="meta")
    wanted = {name: tuple(one.shape) for name, one in decoder.named_parameters()}
    model = {
        name.removeprefix("model."): tuple(getattr(one, "size", ()))
        for name, one in stored.items()
        if name.startswith("model.")
    }
    for name in sorted(wanted.keys() | model.keys()):
        if wanted.get(name) != model.get(name):
            raise UserError(
                f"{where}: a checkpoint of another model: {name}: got"
                f" {_shape(model.get(name))}; allowed: {_shape(wanted.get(name))}"
            )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else " x ".join(map(str, shape))


def _read(folder: Path) -> Checkpoint:
    value = read_json(folder / _DESCRIPTION)
    keys = {"schema", "block", "step", "model", "seed", "precision", "batches", "tokens"}
    if not isinstance(value, dict) or value.get("schema") != SCHEMA or keys - set(value):
        raise UserError(f"{folder / _DESCRIPTION}: allowed: a description with schema {SCHEMA}")
    return Checkpoint(folder, value["block"], value["step"], value)


def _master(settings: RunSettings) -> torch.dtype:
    compute = PRECISIONS[settings.training.precision]
    return torch.float32 if compute == torch.bfloat16 else compute


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def _torch_checkpoint() -> Any:
    """Torch's module, which is slow to import; most runs never need it."""
    return importlib.import_module("torch.distributed.checkpoint")


def _sync(folder: Path) -> None:
    """A rename is safe once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
