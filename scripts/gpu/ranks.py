"""Steps of several ranks on one device, which talk over gloo and pinned host memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .host import SWITCHED_S, layers_that_fit, run_seconds
from .stages import recomputing
from .work import Findings, Work, environment

__all__ = ["coverage", "equality", "flexsp", "kill", "pipeline", "static"]

#: What a dry run tries of the matrix: one of each kind of operation.
_FEW = (
    "all_reduce",
    "all_gather_into_tensor, joined",
    "reduce_scatter_tensor",
    "all_to_all_single, unequal parts",
    "send and recv around the ring",
    "DistributedDataParallel",
)
_RANKS = 4


def equality(work: Work) -> Findings:
    """Four ranks on one device against one process: losses and gradient norms.

    The small stand-ins, the same sequences in every plan, in float32 and float64.
    """
    found = work.findings()
    precisions = {"float64": 1e-9} if work.dry else {"float64": 1e-9, "float32": 1e-4}
    for precision, allowed in precisions.items():
        results = {}
        for name in ("alone", "static", "flexsp", "pipeline"):
            settings = work.settings(name, stand_in=True)
            settings["training"] |= {
                "precision": precision,
                "on_demand_latencies_ms": [],
                "provisioned_latencies_ms": [],
            }
            results[name] = work.train(f"equality_{name}_{precision}", settings)["settings"][0]
        for name in ("static", "flexsp", "pipeline"):
            for key in ("losses", "gradient_norms"):
                difference = max(
                    abs(ours - theirs) / abs(theirs)
                    for ours, theirs in zip(results[name][key], results["alone"][key], strict=True)
                )
                subject = f"{name} {key} {precision}"
                found.check(
                    "difference_from_one_process", difference, "at_most", allowed, subject=subject
                )
                found.measured("difference_from_one_process", difference, subject=subject)
    return found


def coverage(work: Work) -> Findings:
    """What passes over plain gloo with tensors on the device passes over railx too."""
    from tests.training import coverage as matrix
    from tests.training.coverage_cases import CASES

    found = work.findings()
    titles = tuple(case.title for case in CASES)
    if work.dry:
        titles = tuple(title for title in titles if title in _FEW)
    matrix.RANKS = (2,) if work.dry else (_RANKS,)
    (ranks,) = matrix.RANKS
    os.environ |= environment(COVERAGE_DEVICE=work.device, RAILX_INNER="gloo")
    folder = work.out / "coverage"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    written = matrix.run(folder, titles)
    table = {
        title: {
            mode: matrix.verdict(written, title, mode, ranks) for mode in ("gloo", *matrix.MODES)
        }
        for title in titles
    }
    of_gloo = [title for title in titles if table[title]["gloo"] == "passes"]
    found.check("cases_that_gloo_passes", len(of_gloo), "at_least", len(titles) // 2)
    for mode in matrix.MODES:
        wrong = [title for title in of_gloo if table[title][mode] != "passes"]
        # A circuit has two known ends (docs/backend.md).
        known = {"recv from any source"} if mode != "electrical" and ranks > 2 else set()
        left = sorted(set(wrong) - known)
        found.check(
            "cases_that_gloo_passes_and_railx_does_not", len(left), "equal", 0, subject=mode
        )
        found.measured("cases_passed", len(of_gloo) - len(wrong), subject=mode)
        found.details.setdefault("wrong", {})[mode] = {
            title: [written[rank][f"{mode} {ranks}"][title] for rank in range(ranks)]
            for title in left
        }
    found.details["table"] = table
    return found


def static(work: Work) -> Findings:
    """Four ranks on one device, one degree of sequence parallelism, every latency."""
    return _switched(work, "static")


def flexsp(work: Work) -> Findings:
    """Four ranks on one device, groups that adapt, every latency."""
    return _switched(work, "flexsp")


def pipeline(work: Work) -> Findings:
    """Four ranks on one device, two pipelines of two stages, every latency."""
    return _switched(work, "pipeline")


def _switched(work: Work, name: str) -> Findings:
    """As many of the model's layers under a plan as there is time for, electrical and
    with switching.

    All parameters go through the host in every step.
    """
    from railx.performance.decoder import ModelSettings
    from railx.planning.format.files import read_plan

    found = work.findings()
    settings = work.settings(name)
    model, training = settings["model"], settings["training"]
    training |= {"repeats": 1, "most_extra_repeats": 0, "iterations": 2}
    for mode in ("on_demand", "provisioned"):
        latencies = f"{mode}_latencies_ms"
        training[latencies] = training[latencies][-1:]
    plan = read_plan(settings["plan"])
    layers = layers_that_fit(ModelSettings(**model), plan, training, SWITCHED_S)
    settings["plan"] = str(_of_fewer_layers(work, name, settings["plan"], layers))
    settings["model"] = {**model, "name": f"{model['name']}_{layers}_layers", "layers": layers}
    result = work.train(name, settings)
    found.details = short(result) | {
        "expected_s": run_seconds(ModelSettings(**settings["model"]), plan, training)
    }
    found.check("losses_agree", float(result["losses_agree"]), "equal", 1, subject=name)
    found.check("loss_difference", result["loss_difference"], "at_most", result["loss_tolerance"])
    on_demand = {}
    for setting in result["settings"]:
        mode, latency_ms = setting["mode"], setting["reconfiguration_latency_ms"]
        subject = mode if mode == "electrical" else f"{mode} {latency_ms:g} ms"
        fidelity = setting["fidelity"]
        for what, unit in (
            ("iteration_ms", "ms"), ("stall_ms", "ms"), ("wait_ms", "ms"),
            ("tokens_per_s", "tokens/s"), ("reconfigurations", ""), ("requests", ""),
            ("held", ""), ("peak_memory_bytes", "bytes"),
        ):  # fmt: skip
            found.measured(
                what.removesuffix("_ms").removesuffix("_bytes"),
                setting[what],
                subject=f"{name} {subject}",
                unit=unit,
                fidelity=fidelity,
            )
        if mode == "electrical":
            continue
        asked = setting["requests"] + setting["held"]
        found.check(
            "operations_with_circuits", asked, "at_least", 1, subject=subject, fidelity=fidelity
        )
        if mode == "on_demand":
            on_demand[latency_ms] = setting["iteration_ms"]
            if setting["reconfigurations"]:
                # On demand nothing hides a switch: each stalls its operation in full.
                share = setting["stall_ms"] / (latency_ms * setting["reconfigurations"])
                found.check(
                    "stall_over_switching",
                    share,
                    "at_least",
                    0.5,
                    subject=subject,
                    fidelity=fidelity,
                )
        elif latency_ms in on_demand:
            ratio = setting["iteration_ms"] / on_demand[latency_ms]
            found.check(
                "iteration_over_on_demand", ratio, "at_most", 1.0,
                subject=subject, goal=True, fidelity=fidelity,
            )  # fmt: skip
    return found


def _of_fewer_layers(work: Work, name: str, path: str, layers: int) -> Path:
    """The plan for a model of fewer layers: no stage recomputes more than it has."""
    from railx.planning.format.files import read_plan, write_plan
    from railx.planning.format.schedule import stage_layers

    plan = read_plan(path)
    target = work.out / "configs" / f"{name}_plan.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    if plan.kind != "pipeline":
        shutil.copy(path, target)
        return target

    def layers_of(one: Any, chunk: Any) -> tuple[int, ...]:
        held = [len(own) for own in stage_layers(layers, one.stages)]
        return tuple(min(pair) for pair in zip(chunk.checkpoint_layers, held, strict=False))

    batches = recomputing(plan.pipeline_batches(), layers_of)
    write_plan(target, replace(plan, batches=batches))
    return target


def short(result: Mapping[str, Any]) -> dict[str, Any]:
    """What a record keeps of a run; its folder has the rest."""
    kept = (
        "run", "plan", "model", "parameters", "ranks", "device_name", "backend", "attention",
        "precision", "iterations", "losses_agree", "loss_difference", "settings",
    )  # fmt: skip
    return {key: result[key] for key in kept}


def kill(work: Work) -> Findings:
    """Kill a rank in the middle of a run: how soon all end, and what is said."""
    found = work.findings()
    settings = work.settings("static", stand_in=True)
    settings["training"] |= {
        "iterations": 100_000,
        "on_demand_latencies_ms": [],
        "provisioned_latencies_ms": [],
        "timeout_s": 60.0,
    }
    shutil.rmtree(work.out / "runs" / "kill", ignore_errors=True)
    launcher = subprocess.Popen(
        [*work.command("kill", settings), "--replace"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
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
    left = [rank for rank in ranks if _is_there(rank)]
    said = [line for line in errors.splitlines() if "error" in line]
    found.check("seconds_until_all_end", ended_s, "at_most", 30.0, unit="s")
    found.check("exit_code", abs(launcher.returncode), "at_least", 1)
    found.check("names_the_rank", float(bool(said) and "rank 3" in said[-1]), "equal", 1)
    found.check("ranks_left", len(left), "equal", 0)
    found.measured("seconds_until_all_end", ended_s, unit="s")
    found.details = {"said": said[-1] if said else None, "exit_code": launcher.returncode}
    return found


def _is_there(process: int) -> bool:
    """Whether a process is there and more than the entry that nobody has read yet."""
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[
            0
        ] != "Z"
    return False


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
        if len(grandchildren) >= _RANKS:
            return grandchildren[:_RANKS]
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
