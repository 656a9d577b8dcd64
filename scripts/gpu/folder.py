"""The prepared folder: everything that a bare machine with one GPU needs."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .work import CODE, STAND_INS

__all__ = ["prepare", "write_folder"]

#: The code that travels, and of the tests what two steps run.
_CODE = ("railx", "railx_torch", "training")
_TESTS = (
    "commands.py",
    "training/coverage.py",
    "training/coverage_cases.py",
    "training/coverage_program.py",
    "training/cuda.ini",
    "training/test_cuda.py",
)
#: Python packages that a bare machine may lack; they need nothing else.
_PACKAGES = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
_LENGTHS = {0: 40, 1: 24, 2: 17, 3: 15}
_VOCABULARY = 257
_MODEL = {
    "name": "stand_in",
    "layers": 4,
    "hidden": 64,
    "heads": 4,
    "kv_heads": 4,
    "feed_forward": 96,
    "vocabulary": _VOCABULARY,
}


def write_folder(
    folder: Path,
    runs: Mapping[str, Mapping[str, Any]],
    manifest: Mapping[str, Any],
    profiles: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Write what a bare node needs; what lay in the folder goes.

    ``runs`` are resolved settings, ``profiles`` those of profiles. Of a corpus only the
    sequences of the plans travel.
    """
    if folder.exists() and not (folder / "manifest.json").exists() and any(folder.iterdir()):
        raise ValueError(f"{folder}: allowed: a folder that this command made, or an empty one")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in _CODE:
        _copy(CODE / name, folder / name)
    _copy(Path(__file__).parent, folder / "gpu")
    for name in _TESTS:
        target = folder / "tests" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CODE / "tests" / name, target)
    for name in _PACKAGES:
        found = find_spec(name)
        if found is not None and found.submodule_search_locations:
            _copy(Path(next(iter(found.submodule_search_locations))), folder / "packages" / name)
        elif found is not None and found.origin:
            # Behind the packages: shutil.copy needs their folder.
            shutil.copy(found.origin, folder / "packages")
    for name, settings in runs.items():
        _write_run(folder, name, settings)
    for name, settings in (profiles or {}).items():
        _write_json(folder / "profiles" / f"{name}.json", settings)
    fabric, training = (next(iter(runs.values()))[key] for key in ("fabric", "training"))
    _write_stand_ins(folder / STAND_INS, fabric, training)
    for name, settings in (profiles or {}).items():
        _write_json(folder / STAND_INS / "profiles" / f"{name}.json", _small_profile(settings))
    _write_json(folder / "manifest.json", manifest)


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))


def _write_run(folder: Path, name: str, settings: Mapping[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from railx.planning.format.files import read_plan
    from training.data import plan_lengths

    plan = f"plans/{name}.json"
    (folder / "plans").mkdir(exist_ok=True)
    shutil.copy(settings["plan"], folder / plan)
    wanted = pa.array(sorted(plan_lengths(read_plan(settings["plan"]))))
    corpus = f"corpora/{name}.parquet"
    (folder / "corpora").mkdir(exist_ok=True)
    table = pq.read_table(settings["corpus"])
    column = table["sequence"]
    kept = table.filter(pc.is_in(column, value_set=wanted.cast(column.type)))
    pq.write_table(kept, folder / corpus, compression="zstd")
    _write_json(folder / "runs" / f"{name}.json", {**settings, "plan": plan, "corpus": corpus})


def _write_stand_ins(folder: Path, fabric: Mapping[str, Any], training: Mapping[str, Any]) -> None:
    """Small runs under the names of the real ones: one batch, a tiny model."""
    import numpy as np
    import pyarrow as pa

    from railx.io import write_table
    from railx.planning.format.files import write_plan

    draw = np.random.default_rng(1)
    rows = [
        {
            "sequence": sequence,
            "length_tokens": length,
            "tokens": draw.integers(0, 256, length, dtype=np.uint8).tobytes(),
        }
        for sequence, length in _LENGTHS.items()
    ]
    write_table(folder / "corpus.parquet", pa.Table.from_pylist(rows))
    small = {
        "device": "auto",
        "precision": "float32",
        "loss_chunk_tokens": 16,
        "warmup_iterations": 1,
        "iterations": 2,
        "repeats": 1,
        "most_extra_repeats": 0,
        "disturbed_share": 1.0,
        "threads_per_rank": 1,
        "on_demand_latencies_ms": [1],
        "provisioned_latencies_ms": [1],
        "loss_tolerance": 1e-5,
        "timeout_s": 60.0,
    }
    for name, plan in _stand_in_plans().items():
        write_plan(folder / f"{name}.plan.json", plan)
        _write_json(
            folder / "runs" / f"{name}.json",
            {
                "name": name,
                "seed": 1,
                "plan_name": name,
                "plan": f"{name}.plan.json",
                "corpus": "corpus.parquet",
                "model": _MODEL,
                "fabric": {**fabric, "timeout_s": 60.0},
                "training": {**training, **small},
            },
        )


def _stand_in_plans() -> dict[str, Any]:
    """Plans by hand for the same four sequences."""
    from railx.planning.format.parts import Chunk, Group, MicroBatch, Pipeline, Slice
    from railx.planning.format.plan import SCHEMA, PipelineBatch, Plan, SequenceParallelBatch

    ids, lengths = tuple(_LENGTHS), tuple(_LENGTHS.values())

    def groups(devices: int, *cut: tuple[tuple[int, ...], tuple[int, ...]]) -> Plan:
        micro_batch = MicroBatch(
            tuple(
                Group(ranks, members, tuple(_LENGTHS[one] for one in members), 1.0, 1.0)
                for ranks, members in cut
            ),
            1.0,
        )
        batch = SequenceParallelBatch(0, (micro_batch,), sequences=ids, lengths=lengths)
        return Plan(SCHEMA, "sequence_parallel", "hand", devices, {}, (batch,))

    def chunk(*parts: tuple[int, int, int]) -> Chunk:
        slices = tuple(Slice(one, start, stop, _LENGTHS[one]) for one, start, stop in parts)
        return Chunk(slices, 1.0, 2.0)

    sliced = (chunk((0, 0, 16)), chunk((0, 16, 40), (3, 0, 15)))
    whole = (chunk((1, 0, 24)), chunk((2, 0, 17)))

    def pipelines(devices: int, *made: Pipeline) -> Plan:
        batch = PipelineBatch(0, made, sequences=ids, lengths=lengths)
        return Plan(SCHEMA, "pipeline", "hand", devices, {}, (batch,))

    return {
        "alone": groups(1, ((0,), ids)),
        "static": groups(4, ((0, 1, 2, 3), ids)),
        "flexsp": groups(4, ((0, 1), (0,)), ((2,), (1,)), ((3,), (2, 3))),
        "pipeline": pipelines(4, Pipeline(2, 0, sliced), Pipeline(2, 1, whole)),
        "stages": pipelines(2, Pipeline(2, 0, (*sliced, *whole))),
    }


def _small_profile(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same questions to a layer that a core computes in no time."""
    sliced = len(settings["contexts"]) > 2
    lengths = {"lengths": [32, 64, 128], "contexts": [0, 64]}
    if sliced:
        lengths = {"lengths": [32, 64, 128], "contexts": [0, 32, 64, 96]}
    return {
        **settings,
        **lengths,
        "model": _MODEL | {"name": settings["model"]["name"]},
        "device": "cpu",
        "precision": "float32",
        "threads": 1,
        "degrees": [1] if sliced else [1, 2],
        "warmups": 1,
        "repeats": 2,
    }


def step_model_ms(run: Mapping[str, Any]) -> dict[str, float]:
    """The step model's ms of a run on one GPU, by the beginning of a device's name.

    The mean over the plan's batches, with constants of torchtitan's eager runs, fitted
    on others' measurements of H100. A step is a polynomial of the tokens of a sequence
    (docs/performance.md), so that three lengths give the cost of any.
    """
    import numpy as np

    from railx.performance.closed import step_times
    from railx.performance.decoder import ModelSettings
    from railx.performance.devices import device_named
    from railx.performance.layers import Setting
    from railx.performance.networks import TwoLevelRing
    from railx.performance.plans import Plan, Plans
    from railx.performance.programs import constants_named, program_named
    from railx.planning.format.files import read_plan
    from railx.planning.format.plan import sequence_lengths

    batches = read_plan(run["plan"]).batches
    lengths = np.array([tokens for batch in batches for _, tokens in sequence_lengths(batch)])
    shape, tokens = ModelSettings(**run["model"]).shape(), (16_384, 32_768, 65_536)
    constants = constants_named("torchtitan_h100")
    times = {}
    for name, key in (("NVIDIA H100 80GB HBM3", "h100_80gb"), ("NVIDIA H200", "h200")):
        device = device_named(key)
        network = TwoLevelRing.of(device, fast_share=1, slow_share=1)
        program = program_named(constants.program)
        setting = Setting(shape, device, network, program, constants, recipe="bf16 eager")
        seconds = step_times(setting, Plans.of([Plan(sequence_tokens=one) for one in tokens]))
        square, linear, fixed = np.polyfit(tokens, seconds.total_s * 1e3, 2)
        total_ms = square * (lengths.astype(float) ** 2).sum() + linear * lengths.sum()
        times[name] = float(total_ms / len(batches) + fixed)
    return times


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def prepare(options: argparse.Namespace) -> int:
    """``folder``: make plans and corpora by the pipeline and write the folder.

    Alone in this package it needs the packages of the whole project.
    """
    os.chdir(CODE)
    from railx.planning.format.files import read_plan
    from workflow.experiment import checked_experiment
    from workflow.stages import STAGES, inputs_of

    experiment = checked_experiment(["experiment=gpu", "tracking=off"])
    files = {run: inputs_of(STAGES["training"], experiment, run) for run in experiment["runs"]}
    made = dict.fromkeys(str(path) for read in files.values() for path in read.values())
    command = [sys.executable, "-m", "snakemake", *made, "--cores", str(options.cores)]
    command += ["--quiet", "all", "--config", "experiment=gpu", "tracking=off"]
    if subprocess.run(command, check=False).returncode:
        logs = CODE / "results" / "gpu" / "logs"
        raise ValueError(f"the plans could not be made; {logs} says why")
    runs = {}
    for run, read in files.items():
        settings = experiment["runs"][run]
        runs[run.removesuffix("_gpu")] = {
            "name": run,
            "seed": settings["seed"],
            "plan_name": settings["plan"],
            "plan": str(read["plan"]),
            "corpus": str(read["corpus"]),
            "model": read_plan(str(read["plan"])).settings["model"],
            "fabric": settings["fabric"],
            "training": settings["training"],
        }
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    manifest = {
        "experiment": "gpu",
        "seed": experiment["seed"],
        "commit": commit or None,
        "step_model_ms": step_model_ms(runs["alone"]),
    }
    profiles = experiment["profiles"]
    write_folder(options.folder, runs, manifest, profiles)
    size = sum(path.stat().st_size for path in options.folder.rglob("*") if path.is_file())
    print(
        f"{options.folder}: {size / 2**20:.1f} MiB; runs: {', '.join(runs)}; profiles:"
        f" {', '.join(profiles)}"
    )
    return 0
