"""Checkpoints: parameters and optimizer between two steps, independent of the plan.

Notable:

* ``torch.distributed.checkpoint`` writes the tensors of all ranks under parameter
  names. A reader loads its rows and layers: with any number of ranks, sharded or not,
  as a pipeline or not;
* a checkpoint is written to a temporary folder, then renamed, and then the previous one
  is removed. A process killed in between leaves a complete checkpoint;
* ``checkpoint.json`` in it describes the training: the model, the seed, and a digest of
  the tokens of every step. A run that differs from it is refused;
* all ranks see the folder. Reading a checkpoint unpickles its index: load trusted
  checkpoints only.
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
from training.engine import Engine
from training.model import PRECISIONS, Decoder
from training.settings import RunSettings

SCHEMA = "railx.checkpoint/1"

_NAME = re.compile(r"block_(\d+)_step_(\d+)")
_DESCRIPTION = "checkpoint.json"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint.

    ``step`` is the number of finished steps, ``block`` the block of its run,
    ``trained`` the description of the training.
    """

    folder: Path
    block: int
    step: int
    trained: Mapping[str, Any]


def trained(settings: RunSettings, plan: Plan, sequences: Sequences) -> dict[str, Any]:
    """The inputs that determine the weights, as plain data, independent of the plan.

    Per batch digests of its sequences' ids and lengths and of its tokens.
    """
    model = {key: value for key, value in to_dict(settings.model).items() if key != "name"}
    sequences_by_batch = [sorted(sequence_lengths(batch)) for batch in plan.batches]
    return {
        "model": model,
        "seed": settings.seed,
        "precision": str(_master(settings)).removeprefix("torch."),
        "batches": [_digest([repr(pairs).encode()]) for pairs in sequences_by_batch],
        "tokens": [
            _digest(sequences[sequence][:length].tobytes() for sequence, length in pairs)
            for pairs in sequences_by_batch
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
    """Write a checkpoint into ``folder`` and remove the others.

    Every rank of ``control`` calls it at the same point. ``also`` writes more files
    into the checkpoint, on rank 0.
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
    """Load a checkpoint into an engine; every rank calls it at the same point."""
    distributed = _torch_checkpoint()
    state = engine.state_dict()
    distributed.load(
        state, storage_reader=distributed.FileSystemReader(checkpoint.folder), process_group=control
    )
    engine.load_state_dict(state)


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """The complete checkpoint of the last block and step in ``folder``, if any."""
    candidates = [
        (int(match[1]), int(match[2]), path)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := _NAME.fullmatch(path.name)) and (path / _DESCRIPTION).is_file()
    ]
    return _read(max(candidates)[2]) if candidates else None


def find_checkpoint(path: Path, subfolders: Iterable[str]) -> Checkpoint:
    """The checkpoint ``path``, or the newest one of the run's folder ``path``.

    ``subfolders`` are the folders of a run with checkpoints, the latest first.
    ValueError, one line, where there is none.
    """
    if (path / _DESCRIPTION).is_file():
        return _read(path)
    for folder in (path, *(path / subfolder for subfolder in subfolders)):
        if (newest := newest_checkpoint(folder)) is not None:
            return newest
    raise UserError(
        f"{path}: no whole checkpoint; allowed: a checkpoint, or the folder of a run that wrote"
        " one (training.checkpoint_every)"
    )


def check_checkpoint(
    checkpoint: Checkpoint, settings: RunSettings, plan: Plan, sequences: Sequences
) -> None:
    """Refuse a checkpoint of a run with other weights or data.

    ValueError, one line, names the difference: model, seed, precision, sequences or
    tokens of a step, the name or the shape of a parameter.
    """
    where, stored = checkpoint.folder, checkpoint.trained
    expected = trained(settings, plan, sequences)
    for key, value in expected["model"].items():
        if stored["model"].get(key, value) != value:
            raise UserError(
                f"{where}: a checkpoint of another model: model.{key}: got"
                f" {stored['model'][key]}; allowed: {value}, that of the run"
            )
    _check_tensors(where, settings)
    for key in ("seed", "precision"):
        if stored[key] != expected[key]:
            raise UserError(
                f"{where}: {key}: got {stored[key]}; allowed: {expected[key]}, that of the run"
            )
    for step in range(checkpoint.step):
        for key, what in (("batches", "sequences"), ("tokens", "tokens of them")):
            theirs, ours = stored[key], expected[key]
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
    expected = {name: tuple(tensor.shape) for name, tensor in decoder.named_parameters()}
    model = {
        name.removeprefix("model."): tuple(getattr(tensor, "size", ()))
        for name, tensor in stored.items()
        if name.startswith("model.")
    }
    for name in sorted(expected.keys() | model.keys()):
        if expected.get(name) != model.get(name):
            raise UserError(
                f"{where}: a checkpoint of another model: {name}: got"
                f" {_shape(model.get(name))}; allowed: {_shape(expected.get(name))}"
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
    return torch.promote_types(PRECISIONS[settings.training.precision], torch.float32)


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def _torch_checkpoint() -> Any:
    """Torch's module, imported at its first use because the import is slow."""
    return importlib.import_module("torch.distributed.checkpoint")


def _sync(folder: Path) -> None:
    """Flush a folder, so that a rename in it survives a crash."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
