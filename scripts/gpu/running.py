"""Taking the steps: each in a process of its own, within a call; those with times one
after another, the others beside each other.

A step that fails or takes too long does not stop the next. A call ends in time, and the
same command goes on with what it has not come to: records are written whole or not at
all, and runs keep the blocks that they have finished.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .steps import STEPS, Step
from .work import AGAIN, Skipped, Work, environment

__all__ = ["chosen", "run", "take"]

NOT_ON_A_GPU = "nothing was measured on a GPU (fidelity measured_cpu)"
#: What one call may take, and what is left of it when no step begins any more.
_CALL_S = 470.0
_LEAST_S = 10.0
#: How much longer a dry run may take.
_DRY = 4
#: How a step ends that the next call does not take again.
_DONE = ("passed", "wrong", "skipped")
_RUNNING = "running"
#: Steps without times at once.
_BESIDE = 4


def chosen(wanted: Iterable[str]) -> list[Step]:
    """Steps by name or by the number of their part, in the order of the list."""
    names = [name for one in wanted for name in one.split(",") if name]
    known = {step.name for step in STEPS} | {str(step.part) for step in STEPS}
    for name in names:
        if name not in known:
            raise ValueError(f"--steps: got {name!r}; allowed: {', '.join(sorted(known))}")
    return [step for step in STEPS if not names or {step.name, str(step.part)} & set(names)]


def run(options: argparse.Namespace) -> int:
    """``run``: take the steps and print a table; 1 where one failed or is left."""
    import torch

    steps = chosen(options.steps)
    if not (options.folder / "manifest.json").exists():
        raise ValueError(f"{options.folder}: allowed: a folder that `folder` made")
    if not options.dry_run and not torch.cuda.is_available():
        raise ValueError("no CUDA device is there; allowed here: --dry-run")
    work = Work(options.folder.resolve(), options.out.resolve(), options.dry_run)
    _refuse_others(work)
    (work.out / "steps").mkdir(parents=True, exist_ok=True)
    _end_what_was_left(work)
    provenance = _provenance(work)
    parts = len({step.part for step in steps})
    # How fast a machine with other work is says nothing about the steps.
    ends = time.monotonic() + (options.call_s or _CALL_S * parts * (_DRY if work.dry else 1))
    steps = [step for step in steps if options.again or _status(work, step) not in _DONE]
    left = []

    def taken(step: Step) -> str:
        seconds = ends - time.monotonic()
        if seconds < _LEAST_S:
            return "cut off"
        print(f"{step.name}, at most {step.limit_s} s", flush=True)
        record = _taken(work, step, provenance, seconds, again=options.again)
        print(f"    {step.name} {record['status']} after {record['seconds']:.0f} s", flush=True)
        return str(record["status"])

    with _ended_on_signals(), ThreadPoolExecutor(_BESIDE) as threads:
        for together in _in_order(steps):
            try:
                statuses = list(threads.map(taken, together))
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                _end_what_was_left(work)
                raise
            pairs = zip(together, statuses, strict=True)
            left += [step.name for step, status in pairs if status == "cut off"]
            _report(work)
    rows = _report(work)["steps"]
    for row in rows:
        print(f"{row['step']:<12} {row['status']:<8} {row['seconds']:>6.0f} s  {_told(row)}")
    if left:
        print(f"left for the next call of the same command: {', '.join(left)}")
    if work.dry:
        print(NOT_ON_A_GPU)
    bad = [row for row in rows if row["status"] not in ("passed", "skipped")]
    return 1 if bad or left else 0


def _in_order(steps: Sequence[Step]) -> list[list[Step]]:
    """The steps, those without times together at the first one's place."""
    beside = [step for step in steps if not step.timed]
    order = []
    for step in steps:
        if step.timed:
            order.append([step])
        elif step is beside[0]:
            order.append(beside)
    return order


def take(options: argparse.Namespace) -> int:
    """``step``: one step, in this process; what it found goes to OUT/steps."""
    from railx.io import write_json

    step = next(step for step in STEPS if step.name == options.name)
    work = Work(options.folder, options.out, options.dry_run)
    try:
        found = step.take(work)
        missed = [one["name"] for one in found.checks if one["passed"] is False and not one["goal"]]
        why = "" if not missed else f"does not hold: {', '.join(dict.fromkeys(missed))}"
        written = {"status": "wrong" if missed else "passed", "why": why, **_plain(found)}
    except Skipped as reason:
        written = {"status": "skipped", "why": str(reason)}
    write_json(_found_path(work, step), written)
    return 0


def _plain(found: Any) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(vars(found), default=str))
    del plain["fidelity"]
    return plain


def _found_path(work: Work, step: Step) -> Path:
    return work.out / "steps" / f"{step.name}.found"


def _record_path(work: Work, step: Step) -> Path:
    return work.out / "steps" / f"{step.name}.json"


def _status(work: Work, step: Step) -> str:
    """How an earlier call ended a step; empty where none did."""
    path = _record_path(work, step)
    return str(json.loads(path.read_text())["status"]) if path.exists() else ""


def _taken(
    work: Work, step: Step, provenance: Mapping[str, Any], seconds: float, *, again: bool
) -> dict[str, Any]:
    """Take a step in a process of its own; its record, which is written too."""
    from railx.io import write_json
    from railx.settings import load, to_dict
    from training.records import SCHEMA, StepRecord

    found_path = _found_path(work, step)
    found_path.unlink(missing_ok=True)
    log_path = work.out / "steps" / f"{step.name}.log"
    package = Path(__file__).resolve().parent
    command = [sys.executable, str(package), "step", step.name]
    command += [str(work.folder), "--out", str(work.out)]
    command += ["--dry-run"] if work.dry else []
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    begin = time.monotonic()
    own_s = step.limit_s * (_DRY if work.dry else 1)
    limit_s = min(own_s, seconds)
    variables = environment(**({AGAIN: "1"} if again else {}))
    if work.dry:
        # Threads of small stand-ins only wait for each other.
        variables["OMP_NUM_THREADS"] = "1"
    with log_path.open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=variables, start_new_session=True
        )
        running = work.out / _RUNNING / f"{step.name}.json"
        write_json(running, {"process": process.pid, "began": _began(process.pid)})
        code: int | None = None
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # The step and every rank that it started; nobody is left with the GPU.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            ended = not running.exists()
            running.unlink(missing_ok=True)
    if ended:
        raise SystemExit("the call was ended")
    if code == 0 and found_path.exists():
        found = json.loads(found_path.read_text())
        found_path.unlink()
    elif code is None:
        short = limit_s < own_s
        status, what = ("cut off", "the call was over") if short else ("too long", "more")
        found = {"status": status, "why": f"{what} after {limit_s:.0f} s"}
    else:
        last = log_path.read_text().strip().splitlines()
        found = {"status": "failed", "why": last[-1] if last else f"exit code {code}"}
    record = {
        "schema": SCHEMA,
        "step": step.name,
        "part": step.part,
        "status": found["status"],
        "why": found["why"],
        "seconds": time.monotonic() - begin,
        "fidelity": work.fidelity,
        "provenance": {**provenance, "command": shlex.join(command), "started": started},
        "checks": found.get("checks", []),
        "measurements": found.get("measurements", []),
        "details": found.get("details", {}),
    }
    checked: dict[str, Any] = to_dict(load(StepRecord, record, step.name))
    write_json(_record_path(work, step), checked)
    return checked


def _provenance(work: Work) -> dict[str, Any]:
    """What runs where, without the command; it leaves the device alone."""
    import torch

    manifest = json.loads((work.folder / "manifest.json").read_text())
    name, driver, nccl = platform.processor() or platform.machine(), None, None
    if not work.dry:
        name = "a CUDA device without nvidia-smi"
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        with contextlib.suppress(OSError):
            told = subprocess.run(query, capture_output=True, text=True, check=False).stdout
            if "," in told:
                name, driver = (part.strip() for part in told.splitlines()[0].split(",")[:2])
        with contextlib.suppress(Exception):
            nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return {
        "commit": manifest.get("commit"),
        "device": work.device,
        "device_name": name,
        "driver": driver,
        "cuda": torch.version.cuda,
        "nccl": nccl,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "seed": manifest.get("seed"),
    }


def _refuse_others(work: Work) -> None:
    """Records of the other device are no part of this run."""
    for path in sorted((work.out / "steps").glob("*.json")):
        fidelity = json.loads(path.read_text()).get("fidelity")
        if fidelity != work.fidelity:
            raise ValueError(f"--out: {path} is {fidelity}; allowed: another or an empty folder")


@contextlib.contextmanager
def _ended_on_signals() -> Iterator[None]:
    """A call that is ended from outside ends its step first."""

    def leave(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _began(process: int) -> str:
    """When a process began, in the kernel's own words; empty where it is not there."""
    with contextlib.suppress(OSError, IndexError):
        stat = (Path("/proc") / str(process) / "stat").read_text()
        return stat.rpartition(")")[2].split()[19]
    return ""


def _end_what_was_left(work: Work) -> None:
    """End the steps of a call that was killed, if their processes are still there."""
    for path in (work.out / _RUNNING).glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            running = json.loads(path.read_text())
            # Its call writes no record of a step whose note is gone.
            path.unlink()
            if running["began"] and _began(running["process"]) == running["began"]:
                os.killpg(running["process"], signal.SIGKILL)


def _report(work: Work) -> dict[str, Any]:
    """All steps that were taken so far, also by earlier calls."""
    from railx.io import write_json

    rows = [
        json.loads(path.read_text())
        for step in STEPS
        if (path := _record_path(work, step)).exists()
    ]
    for row in rows:
        row.pop("details")
    report = {
        "fidelity": work.fidelity,
        "measured_on_a_gpu": not work.dry,
        "note": NOT_ON_A_GPU if work.dry else "NCCL between GPUs was not run: there is one",
        "steps": rows,
    }
    write_json(work.out / "report.json", report)
    return report


def _told(row: Mapping[str, Any]) -> str:
    """The end of a line of the table: why there is nothing, or how many checks hold."""
    if row["why"]:
        return str(row["why"])
    told = [check for check in row["checks"] if check["passed"] is not None]
    goals = [check for check in told if check["goal"] and not check["passed"]]
    text = f"{sum(check['passed'] for check in told)} of {len(told)} checks hold"
    for goal in goals[:3]:
        of = f" of {goal['subject']}" if goal["subject"] else ""
        text += f"; goal missed: {goal['name']}{of} {goal['found']:.3g} ({goal['expected']:g})"
    return text
