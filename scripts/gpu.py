"""What to measure with one GPU: ``python scripts/gpu.py run FOLDER --out OUT``.

``folder`` prepares a folder on a machine with everything: the code, the plans and the
sequences of an experiment, its runs as resolved settings, and small stand-ins of all of
these. ``run`` needs that folder, torch, numpy and pyarrow, and no network. It takes the
steps one after another, each in a process of its own with a time limit; a step that
fails or takes too long does not stop the next. ``--steps 1``, ``2`` and ``3`` are parts
of at most eight minutes. Each step writes OUT/steps/NAME.json and NAME.log, and
OUT/report.json has them all.

Without a GPU, ``--dry-run`` takes every step on the CPU with the stand-ins. It shows
that the steps run; nothing is measured on a GPU then, and the report says so.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

#: Here lie railx/ and training/: in the prepared folder beside this file, in the
#: repository above it.
_HERE = Path(__file__).resolve().parent
CODE = _HERE if (_HERE / "railx").is_dir() else _HERE.parent
sys.path.insert(0, str(CODE))

_CALL_LIMIT_S = 480
_NOT_ON_A_GPU = "nothing was measured on a GPU (fidelity measured_cpu)"
#: The code that travels.
_CODE = ("railx", "training")
_STAND_INS = "dry"
_LENGTHS = {0: 40, 1: 24, 2: 17, 3: 15}
_VOCABULARY = 257


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

    def settings(self, name: str, *, stand_in: bool = False) -> dict[str, Any]:
        """A run of the folder, with its paths as they are on this machine."""
        folder = self.folder / _STAND_INS if self.dry or stand_in else self.folder
        settings: dict[str, Any] = json.loads((folder / "runs" / f"{name}.json").read_text())
        settings["plan"] = str(folder / settings["plan"])
        settings["corpus"] = str(folder / settings["corpus"])
        settings["training"]["device"] = self.device
        return settings

    def command(self, name: str, settings: Mapping[str, Any]) -> list[str]:
        """The launch of a run under ``name``."""
        config = self.out / "configs" / f"{name}.json"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(json.dumps(settings, indent=1))
        command = [sys.executable, "-m", "training.run", "--config", str(config)]
        return [*command, "--out", str(self.out / "runs" / name)]

    def train(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Train to the end; the result of the run."""
        subprocess.run(self.command(name, settings), check=True, env=_environment())
        result: dict[str, Any] = json.loads((self.out / "runs" / name / "result.json").read_text())
        return result


class Skipped(Exception):
    """A step that cannot be taken here, and why."""


# --------------------------------------------------------------------------- steps


def versions(work: Work) -> dict[str, Any]:
    """Driver, torch, CUDA, NCCL, and where the folder comes from."""
    import torch

    found: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": None,
        "gpu": None,
    }
    with contextlib.suppress(OSError, ValueError):
        found["folder"] = json.loads((work.folder / "manifest.json").read_text())
    if not work.dry:
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv"]
        with contextlib.suppress(OSError):
            found["driver"] = subprocess.run(
                query, capture_output=True, text=True, check=False
            ).stdout.strip()
        found["gpu"] = torch.cuda.get_device_name()
        found["compute_capability"] = list(torch.cuda.get_device_capability())
        found["memory_bytes"] = torch.cuda.get_device_properties(0).total_memory
        found["nccl"] = list(torch.cuda.nccl.version())
    return found


def attention(work: Work) -> dict[str, Any]:
    """Every kernel against float64: largest errors forward and backward, peak memory.

    Grouped heads, earlier context, a sequence of one token, heads of three widths.
    """
    import torch

    from training.attention import Packing, choose_kernel, variable_length_attention

    device = torch.device(work.device)
    packing = Packing((130, 64, 1, 7), (390, 64, 1, 300))
    rows = []
    for head_size in (16, 64, 128):
        draw = torch.Generator().manual_seed(head_size)
        exact = [
            torch.randn(tokens, heads, head_size, dtype=torch.float64, generator=draw)
            .to(device)
            .requires_grad_()
            for tokens, heads in (
                (sum(packing.queries), 8),
                (sum(packing.keys), 4),
                (sum(packing.keys), 4),
            )
        ]
        reference = variable_length_attention(*exact, packing, "blocks")
        expected = [reference, *torch.autograd.grad(reference.square().sum(), exact)]
        textbook = _textbook(*exact, packing)
        for precision in (torch.bfloat16, torch.float32, torch.float64):
            low = [tensor.detach().to(precision).requires_grad_() for tensor in exact]
            chosen = choose_kernel("auto", device, precision, head_size)
            for kernel in dict.fromkeys((chosen, "blocks")):
                if not work.dry:
                    torch.cuda.reset_peak_memory_stats()
                mixed = variable_length_attention(*low, packing, kernel)
                found = [mixed, *torch.autograd.grad(mixed.double().square().sum(), low)]
                errors = [
                    float((ours.double() - theirs).abs().max())
                    for ours, theirs in zip(found, expected, strict=True)
                ]
                rows.append(
                    {
                        "head_size": head_size,
                        "precision": str(precision).removeprefix("torch."),
                        "kernel": kernel,
                        "chosen": kernel == chosen,
                        "forward_error": errors[0],
                        "backward_error": max(errors[1:]),
                        "reference_error": float((textbook - reference).abs().max()),
                        "peak_memory_bytes": None
                        if work.dry
                        else torch.cuda.max_memory_allocated(),
                    }
                )
    return {"rows": rows, "growth": _attention_growth(work)}


def _textbook(queries: Any, keys: Any, values: Any, packing: Any) -> Any:
    """Attention with every score in memory, to hold the reference to."""
    import torch

    mixed, at, behind = [], 0, 0
    for asked, seen in zip(packing.queries, packing.keys, strict=True):
        query = queries[at : at + asked]
        key, value = (
            part[behind : behind + seen].repeat_interleave(queries.shape[1] // keys.shape[1], 1)
            for part in (keys, values)
        )
        scores = torch.einsum("qhd,khd->hqk", query, key) / query.shape[-1] ** 0.5
        hidden = torch.ones(asked, seen, dtype=torch.bool, device=query.device)
        scores = scores.masked_fill(hidden.triu(seen - asked + 1), float("-inf"))
        mixed.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), value))
        at, behind = at + asked, behind + seen
    return torch.cat(mixed).detach()


def _attention_growth(work: Work) -> list[dict[str, Any]]:
    """Peak memory at two lengths: twice the tokens, twice the memory and not four
    times.
    """
    import torch

    from training.attention import Packing, choose_kernel, variable_length_attention

    if work.dry:
        return []
    rows = []
    for tokens in (8192, 16384):
        for precision in (torch.bfloat16, torch.float32):
            kernel = choose_kernel("auto", torch.device("cuda"), precision, 128)
            tensors = [
                torch.randn(length, heads, 128, dtype=precision, device="cuda").requires_grad_()
                for length, heads in ((tokens, 16), (2 * tokens, 4), (2 * tokens, 4))
            ]
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            packing = Packing((tokens,), (2 * tokens,))
            variable_length_attention(*tensors, packing, kernel).sum().backward()
            torch.cuda.synchronize()
            rows.append(
                {
                    "tokens": tokens,
                    "precision": str(precision).removeprefix("torch."),
                    "kernel": kernel,
                    "peak_memory_bytes": torch.cuda.max_memory_allocated() - before,
                }
            )
    return rows


def streams(work: Work) -> dict[str, Any]:
    """One rank over NCCL (gloo on the CPU): buffers reused at once, waits out of order,
    and FSDP2 over railx against the same without.
    """
    import torch
    import torch.distributed as dist

    repeats = 50 if work.dry else 1000
    with _one_rank(work, "nccl"):
        wrong = 0
        buffer = torch.empty(1 << 10 if work.dry else 1 << 20, device=work.device)
        for number in range(repeats):
            _keep_busy(work)
            buffer.fill_(number)
            dist.all_reduce(buffer, async_op=True).wait()
            copy = buffer.clone()
            # The buffer is written again before anything has waited on the device.
            buffer.fill_(-1)
            wrong += int(copy[-1].item() != number)
        tensors = [torch.full((1 << 10,), float(number), device=work.device) for number in range(8)]
        pending = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for one in reversed(pending):
            one.wait()
        late = sum(int(tensor[0].item() != number) for number, tensor in enumerate(tensors))
        over_railx = _fsdp(work)
    with _one_rank(work, "nccl", plain=True):
        plain = _fsdp(work)
    return {
        "repeats": repeats,
        "wrong_after_reuse": wrong,
        "wrong_after_waits_out_of_order": late,
        "fsdp": {"railx": over_railx, "plain": plain},
        "losses_agree": over_railx["losses"] == plain["losses"],
        "ok": not wrong and not late,
    }


def _keep_busy(work: Work) -> None:
    """Let the device wait, so that the host runs ahead of it."""
    import torch

    if not work.dry:
        torch.cuda._sleep(1_000_000)


def _fsdp(work: Work) -> dict[str, Any]:
    """A few steps of a small FSDP2 model: losses and the time of a step."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    width = 32 if work.dry else 2048
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).to(work.device)
    mesh = init_device_mesh(work.device, (1,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    given = torch.randn(64, width, device=work.device)
    losses = []
    begin = 0.0
    steps = 3 if work.dry else 20
    for step in range(steps):
        if step == 1:
            _wait_for(work)
            begin = time.perf_counter()
        optimizer.zero_grad()
        loss = model(given).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    _wait_for(work)
    return {"losses": losses, "step_ms": (time.perf_counter() - begin) / (steps - 1) * 1e3}


def equality(work: Work) -> dict[str, Any]:
    """Four ranks on one device against one process: losses and gradient norms.

    The small stand-ins, the same sequences in every plan, in float32 and float64.
    """
    rows = []
    for precision, allowed in (("float64", 1e-9), ("float32", 1e-4)):
        results = {}
        for name in ("alone", "static", "flexsp", "pipeline"):
            settings = work.settings(name, stand_in=True)
            settings["training"] |= {
                "precision": precision,
                "on_demand_latencies_ms": [],
                "provisioned_latencies_ms": [],
            }
            results[name] = work.train(f"equality_{name}_{precision}", settings)["settings"][0]
        for name, result in results.items():
            differences = {
                key: max(
                    abs(ours - theirs) / abs(theirs)
                    for ours, theirs in zip(result[key], results["alone"][key], strict=True)
                )
                for key in ("losses", "gradient_norms")
            }
            rows.append(
                {
                    "precision": precision,
                    "plan": name,
                    **differences,
                    "equal": max(differences.values()) <= allowed,
                }
            )
    return {"rows": rows, "ok": all(row["equal"] for row in rows)}


def static(work: Work) -> dict[str, Any]:
    """Four ranks on one device, one degree of sequence parallelism, every latency."""
    return _trained(work, "static")


def flexsp(work: Work) -> dict[str, Any]:
    """Four ranks on one device, groups that adapt, every latency."""
    return _trained(work, "flexsp")


def pipeline(work: Work) -> dict[str, Any]:
    """Four ranks on one device, two pipelines of two stages, every latency."""
    return _trained(work, "pipeline")


def _trained(work: Work, name: str) -> dict[str, Any]:
    """A run as the experiment has it, one repeat."""
    settings = work.settings(name)
    settings["training"] |= {"repeats": 1, "most_extra_repeats": 0}
    return _short(work.train(name, settings))


def kill(work: Work) -> dict[str, Any]:
    """Kill a rank in the middle of a run: how soon all end, and what is said."""
    settings = work.settings("static", stand_in=True)
    settings["training"] |= {
        "iterations": 100_000,
        "on_demand_latencies_ms": [],
        "provisioned_latencies_ms": [],
        "timeout_s": 60.0,
    }
    command = work.command("kill", settings)
    launcher = subprocess.Popen(
        command, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        ranks = _ranks_of(launcher)
        # Long enough for all of them to be in the middle of an iteration.
        time.sleep(8 if work.dry else 20)
        begin = time.monotonic()
        os.kill(ranks[-1], signal.SIGKILL)
        _, errors = launcher.communicate(timeout=60)
        ended_s = time.monotonic() - begin
    finally:
        launcher.kill()
        launcher.communicate()
    said = [line for line in errors.splitlines() if "error" in line]
    return {
        "ended_s": ended_s,
        "exit_code": launcher.returncode,
        "said": said[-1] if said else None,
        "ok": launcher.returncode != 0,
    }


def _ranks_of(launcher: subprocess.Popen[str]) -> list[int]:
    """The processes of the four ranks, once they are there: children of the fork
    server, itself a child of the launcher.
    """
    for _ in range(600):
        if launcher.poll() is not None:
            raise RuntimeError(f"ended before its ranks began: {launcher.communicate()[1]}")
        parents = _parents()
        grandchildren = sorted(
            process for process, parent in parents.items() if parents.get(parent) == launcher.pid
        )
        if len(grandchildren) >= 4:
            return grandchildren[:4]
        time.sleep(0.1)
    raise RuntimeError("the ranks never began")


def _parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                rest = (entry / "stat").read_text().rpartition(")")[2].split()
                found[int(entry.name)] = int(rest[1])
    return found


def profiles(work: Work) -> dict[str, Any]:
    """Decoder layers over lengths, degrees, slices and checkpointing."""
    if importlib.util.find_spec("training.profile") is None:
        raise Skipped("training.profile is not there")
    folder = work.folder / _STAND_INS if work.dry else work.folder
    wanted = sorted((folder / "profiles").glob("*.json"))
    if not wanted:
        raise Skipped(f"no profile in {folder / 'profiles'}")
    rows = {}
    for path in wanted:
        settings = json.loads(path.read_text())
        if "device" in settings:
            settings["device"] = work.device
        config = work.out / "configs" / f"profile_{path.name}"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(json.dumps(settings))
        points = work.out / "profiles" / path.name
        points.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "training.profile", "--config", str(config)]
        subprocess.run([*command, "--out", str(points)], check=True, env=_environment())
        rows[path.stem] = len(json.loads(points.read_text()))
    return {"points": rows}


def eager(work: Work) -> dict[str, Any]:
    """The whole model on one rank, 100 steps: tokens/s, MFU, peak memory, losses."""
    return _alone(work, "eager", compiled=False)


def compiled(work: Work) -> dict[str, Any]:
    """As ``eager`` with layers compiled by torch.compile."""
    return _alone(work, "compiled", compiled=True)


def _alone(work: Work, name: str, *, compiled: bool) -> dict[str, Any]:
    settings = work.settings("alone")
    settings["training"] |= {
        "compile": compiled,
        "repeats": 1,
        "most_extra_repeats": 0,
        "warmup_iterations": 2 if work.dry else 4,
        "iterations": 2 if work.dry else 100,
        "on_demand_latencies_ms": [],
        "provisioned_latencies_ms": [],
    }
    return _short(work.train(name, settings))


def kernels(work: Work) -> dict[str, Any]:
    """One step under torch's profiler: kernels and waits of the host per layer."""
    from collections import Counter

    import torch
    from torch.profiler import ProfilerActivity, profile

    from railx.planning.plan import read_plan
    from training.data import plan_lengths, read_sequences
    from training.engine import Engine
    from training.settings import load_run_settings
    from training.timeline import Timeline

    settings = load_run_settings(work.settings("alone"))
    plan = read_plan(settings.plan)
    sequences = read_sequences(settings.corpus, plan_lengths(plan), settings.model.vocabulary)
    with _one_rank(work, "gloo"):
        engine = Engine(
            settings, plan, sequences, device=torch.device(work.device), timeline=Timeline()
        )
        for step in range(2):
            engine.step(plan.batches[0], step)
        _wait_for(work)
        activities = [ProfilerActivity.CPU]
        activities += [] if work.dry else [ProfilerActivity.CUDA]
        with profile(activities=activities) as recorded:
            engine.step(plan.batches[0], 2)
            _wait_for(work)
    passes = settings.model.layers * len(plan.batches[0].micro_batches)
    names: Counter[str] = Counter()
    busy_us: Counter[str] = Counter()
    waits = 0
    for event in recorded.events() or []:
        if str(event.device_type).endswith("CUDA"):
            names[event.name] += 1
            busy_us[event.name] += int(event.device_time_total)
        elif "Synchronize" in event.name:
            waits += 1
    longest = [
        {"kernel": name, "calls": names[name], "ms": time_us / 1e3}
        for name, time_us in busy_us.most_common(30)
    ]
    return {
        "layers_times_micro_batches": passes,
        "kernels": names.total(),
        "kernels_per_layer": names.total() / passes,
        "waits_of_the_host": waits,
        "longest": longest,
    }


def stages(work: Work) -> dict[str, Any]:
    """Two pipeline stages: measured peak of each against the memory model.

    Without, with half and with full checkpointing of the layers.
    """
    from railx.planning.plan import read_plan, write_plan
    from railx.planning.schedule import peak_live_chunks, stage_layers
    from railx.settings import to_dict
    from railx.workload.memory import Held, Kept, Pass, rank_memory
    from training.settings import load_run_settings

    rows = []
    for share in (0.0, 0.5, 1.0):
        settings = work.settings("stages")
        loaded = load_run_settings(settings)
        held = [len(own) for own in stage_layers(loaded.model.layers, 2)]
        plan = read_plan(settings["plan"])
        recomputed = tuple(round(share * layers) for layers in held)
        batches = [
            replace(
                batch,
                pipelines=tuple(
                    replace(
                        one,
                        chunks=tuple(
                            replace(chunk, checkpoint_layers=recomputed) for chunk in one.chunks
                        ),
                    )
                    for one in batch.pipelines
                ),
            )
            for batch in plan.pipeline_batches()[:3]
        ]
        name = f"stages_{round(share * 100)}"
        path = work.out / "configs" / f"{name}_plan.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_plan(path, replace(plan, batches=tuple(batches)))
        settings["plan"] = str(path)
        settings["training"] |= {
            "iterations": 2,
            "repeats": 1,
            "most_extra_repeats": 0,
            "on_demand_latencies_ms": [],
            "provisioned_latencies_ms": [],
        }
        result = work.train(name, settings)
        peaks = _peaks(work.out / "runs" / name / "iterations.parquet")
        training = loaded.training
        low = training.precision == "bfloat16"
        for stage, layers in enumerate(held):
            predicted = 0
            # A batch is as full as the fullest window of chunks that are alive at once.
            for pipeline in (one for batch in batches for one in batch.pipelines):
                window = peak_live_chunks(pipeline, stage)
                alive = [
                    Pass(
                        chunk.tokens,
                        context=sum(part.start for part in chunk.slices),
                        checkpoint_layers=recomputed[stage],
                        packed=len(chunk.slices) > 1,
                    )
                    for chunk in pipeline.chunks
                ]
                memory = [
                    rank_memory(
                        loaded.model,
                        Held(
                            layers,
                            embeds=stage == 0,
                            scores=stage == 1,
                            cast=low,
                            compute_bytes=2 if low else 4,
                        ),
                        alive[at : at + window],
                        loss_chunk_tokens=training.loss_chunk_tokens,
                        kept=Kept(fused_attention=result["attention"] == "varlen"),
                    ).peak_bytes
                    for at in range(max(1, len(alive) - window + 1))
                ]
                predicted = max(predicted, *memory)
            measured = peaks.get(stage)
            rows.append(
                {
                    "stage": stage,
                    "layers": layers,
                    "checkpoint_layers": recomputed[stage],
                    "predicted_bytes": predicted,
                    "measured_bytes": measured,
                    "measured_over_predicted": None if measured is None else measured / predicted,
                }
            )
    return {"rows": rows, "model": to_dict(loaded.model)}


def _peaks(path: Path) -> dict[int, int]:
    """The most bytes of each rank; none on the CPU, where nothing counts them."""
    from railx.io import read_rows

    peaks: dict[int, int] = {}
    for row in read_rows(path):
        if row["peak_memory_bytes"] is not None:
            peaks[row["rank"]] = max(row["peak_memory_bytes"], peaks.get(row["rank"], 0))
    return peaks


@dataclass(frozen=True)
class Step:
    """A step, what it may take, and the part that it belongs to."""

    take: Callable[[Work], dict[str, Any]]
    limit_s: int
    part: int

    @property
    def name(self) -> str:
        return self.take.__name__


#: In the order in which they are taken. What a whole part may take fits one call.
STEPS = (
    Step(versions, 30, 1),
    Step(attention, 60, 1),
    Step(streams, 60, 1),
    Step(equality, 240, 1),
    Step(kill, 80, 1),
    Step(static, 120, 2),
    Step(flexsp, 120, 2),
    Step(pipeline, 120, 2),
    Step(profiles, 110, 2),
    Step(eager, 150, 3),
    Step(compiled, 170, 3),
    Step(kernels, 50, 3),
    Step(stages, 100, 3),
)


# ---------------------------------------------------------------- one rank in here


@contextlib.contextmanager
def _one_rank(work: Work, inner: str, *, plain: bool = False) -> Any:
    """A world of one rank over ``railx`` without switching, or over its inner backend.

    NCCL takes one rank; on the CPU gloo stands in for it.
    """
    import torch.distributed as dist

    from training import backend
    from training.trace import Recorder

    name = "gloo" if work.dry else inner
    if not plain:
        recorder = Recorder(0, device=work.device)
        backend.configure(backend.BackendOptions(name, None, "electrical", 1), recorder)
    dist.init_process_group(
        name if plain else "railx", store=dist.HashStore(), rank=0, world_size=1
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def _wait_for(work: Work) -> None:
    import torch

    if not work.dry:
        torch.cuda.synchronize()


def _short(result: Mapping[str, Any]) -> dict[str, Any]:
    """What a report shows of a run; its folder has the rest."""
    kept = ("run", "plan", "model", "parameters", "ranks", "device_name", "backend", "attention")
    return {key: result[key] for key in kept} | {
        "losses_agree": result["losses_agree"],
        "settings": result["settings"],
        "ok": result["losses_agree"],
    }


def _environment() -> dict[str, str]:
    """Children find the code that lies beside this file."""
    before = os.environ.get("PYTHONPATH")
    paths = [str(CODE), *([before] if before else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


# ---------------------------------------------------------------------- the folder


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
        shutil.copytree(
            CODE / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    shutil.copy(Path(__file__), folder / "gpu.py")
    for name, settings in runs.items():
        _write_run(folder, name, settings)
    for name, settings in (profiles or {}).items():
        _write_json(folder / "profiles" / f"{name}.json", settings)
    fabric, training = (next(iter(runs.values()))[key] for key in ("fabric", "training"))
    _write_stand_ins(folder / _STAND_INS, fabric, training)
    _write_json(folder / "manifest.json", manifest)


def _write_run(folder: Path, name: str, settings: Mapping[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from railx.planning.plan import read_plan
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
    from railx.planning.plan import write_plan

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
    model = {
        "name": "stand_in",
        "layers": 4,
        "hidden": 64,
        "heads": 4,
        "kv_heads": 4,
        "feed_forward": 96,
        "vocabulary": _VOCABULARY,
    }
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
                "model": model,
                "fabric": {**fabric, "timeout_s": 60.0},
                "training": {**training, **small},
            },
        )


def _stand_in_plans() -> dict[str, Any]:
    """Plans by hand for the same four sequences."""
    from railx.planning.plan import (
        SCHEMA,
        Chunk,
        Group,
        MicroBatch,
        Pipeline,
        PipelineBatch,
        Plan,
        SequenceParallelBatch,
        Slice,
    )

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


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def prepare(options: argparse.Namespace) -> int:
    """``folder``: make plans and corpora by the pipeline and write the folder.

    Alone in this file it needs the packages of the whole project.
    """
    os.chdir(CODE)
    from railx.planning.plan import read_plan
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
    manifest = {"experiment": "gpu", "seed": experiment["seed"], "commit": commit or None}
    write_folder(options.folder, runs, manifest)
    size = sum(path.stat().st_size for path in options.folder.rglob("*") if path.is_file())
    print(f"{options.folder}: {size / 2**20:.1f} MiB; runs: {', '.join(runs)}")
    return 0


# ------------------------------------------------------------------------- running


def chosen(wanted: Iterable[str]) -> list[Step]:
    """Steps by name or by the number of their part, in the order of the list."""
    names = [name for one in wanted for name in one.split(",") if name]
    known = {step.name for step in STEPS} | {str(step.part) for step in STEPS}
    for name in names:
        if name not in known:
            raise ValueError(f"--steps: got {name!r}; allowed: {', '.join(sorted(known))}")
    return [step for step in STEPS if not names or {step.name, str(step.part)} & set(names)]


def run(options: argparse.Namespace) -> int:
    """``run``: take the steps and print a table; 1 where one failed."""
    import torch

    steps = chosen(options.steps)
    if not (options.folder / "manifest.json").exists():
        raise ValueError(f"{options.folder}: allowed: a folder that `folder` made")
    if not options.dry_run and not torch.cuda.is_available():
        raise ValueError("no CUDA device is there; allowed here: --dry-run")
    work = Work(options.folder.resolve(), options.out.resolve(), options.dry_run)
    (work.out / "steps").mkdir(parents=True, exist_ok=True)
    for number, step in enumerate(steps):
        print(f"[{number + 1}/{len(steps)}] {step.name}, at most {step.limit_s} s", flush=True)
        found = _taken(work, step)
        print(f"    {found['status']} after {found['seconds']:.0f} s", flush=True)
        _report(work)
    rows = _report(work)["steps"]
    for row in rows:
        print(f"{row['step']:<10} {row['status']:<8} {row['seconds']:>6.0f} s  {_told(row)}")
    if work.dry:
        print(_NOT_ON_A_GPU)
    bad = [row for row in rows if row["status"] not in ("ok", "skipped")]
    return 1 if bad else 0


def _taken(work: Work, step: Step) -> dict[str, Any]:
    """Take a step in a process of its own; what it found, or how it ended."""
    path = work.out / "steps" / f"{step.name}.json"
    path.unlink(missing_ok=True)
    command = [sys.executable, str(Path(__file__).resolve()), "step", step.name]
    command += [str(work.folder), "--out", str(work.out)]
    command += ["--dry-run"] if work.dry else []
    begin = time.monotonic()
    with (work.out / "steps" / f"{step.name}.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=_environment(), start_new_session=True
        )
        try:
            code: int | None = process.wait(step.limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # The step and every rank that it started; nobody is left with the GPU.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    found: dict[str, Any] = {}
    if path.exists():
        found = json.loads(path.read_text())
    elif code is None:
        found = {"status": "too long", "why": f"more than {step.limit_s} s"}
    else:
        last = (work.out / "steps" / f"{step.name}.log").read_text().strip().splitlines()
        found = {"status": "failed", "why": last[-1] if last else f"exit code {code}"}
    found |= {"step": step.name, "seconds": time.monotonic() - begin}
    found |= {"fidelity": work.fidelity, "device": work.device}
    _write_json(path, found)
    return found


def take(options: argparse.Namespace) -> int:
    """``step``: one step, in this process."""
    step = next(step for step in STEPS if step.name == options.name)
    work = Work(options.folder, options.out, options.dry_run)
    try:
        found = step.take(work)
        status = "ok" if found.get("ok", True) else "wrong"
        written = {"status": status, "found": found}
    except Skipped as reason:
        written = {"status": "skipped", "why": str(reason)}
    _write_json(work.out / "steps" / f"{step.name}.json", written)
    return 0


def _report(work: Work) -> dict[str, Any]:
    """All steps that were taken so far, also by earlier calls."""
    rows = [
        json.loads(path.read_text())
        for step in STEPS
        if (path := work.out / "steps" / f"{step.name}.json").exists()
    ]
    report = {
        "fidelity": work.fidelity,
        "measured_on_a_gpu": not work.dry,
        "note": _NOT_ON_A_GPU if work.dry else "NCCL between GPUs was not run: there is one",
        "steps": rows,
    }
    _write_json(work.out / "report.json", report)
    return report


def _told(row: Mapping[str, Any]) -> str:
    """The end of a line of the table: the numbers of a run, or why there are none."""
    if "why" in row:
        return str(row["why"])
    settings = row["found"].get("settings")
    if not settings:
        return ""
    first = settings[0]
    mfu = "unknown" if first["mfu"] is None else f"{first['mfu']:.1%}"
    peak = first["peak_memory_bytes"]
    memory = "unknown" if peak is None else f"{peak / 2**30:.1f} GiB"
    return f"{first['tokens_per_s']:.0f} tokens/s, MFU {mfu}, peak memory {memory}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    folder = actions.add_parser("folder", help="prepare a folder, with everything installed")
    folder.add_argument("folder", type=Path)
    folder.add_argument("--cores", default="all", help="cores for Snakemake (default: all)")
    folder.set_defaults(action=prepare)
    running = actions.add_parser("run", help="take the steps, with torch, numpy and pyarrow")
    running.add_argument("folder", type=Path)
    running.add_argument("--out", type=Path, required=True, help="the folder to write")
    running.add_argument(
        "--steps", nargs="*", default=[], help="names or parts 1, 2, 3 (default: all)"
    )
    running.set_defaults(action=run)
    one = actions.add_parser("step", help="take one step in this process")
    one.add_argument("name", choices=[step.name for step in STEPS])
    one.add_argument("folder", type=Path)
    one.add_argument("--out", type=Path, required=True, help="the folder to write")
    one.set_defaults(action=take)
    for parser_of in (running, one):
        parser_of.add_argument("--dry-run", action="store_true", help="stand-ins, on the CPU")
    options = parser.parse_args(arguments)
    try:
        return int(options.action(options))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
