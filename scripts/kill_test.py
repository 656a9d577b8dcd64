"""Whether killed runs end where an undisturbed one does: `make kill-test`.

An experiment is run once undisturbed and then RUNS times with KILLS kills: the whole
process group gets SIGKILL at a moment that the seed draws, then the same command goes
on. Every table and JSON file that is not measured has to be that of the undisturbed
run, byte for byte. Measured is what trains or profiles, and what is made from it.

Each run is a copy of this checkout's pipeline in a folder of its own, which is removed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from railx.io import read_json  # noqa: E402
from railx.provenance.jobs import digest_of  # noqa: E402

_PACKAGES = ("railx", "railx_torch", "training", "workflow")
PARTS = ("Snakefile", "conf", "profiles", "resources", *_PACKAGES)
#: Stages whose numbers are times of this machine, or records of when a run was.
MEASURED = ("training", "live", "profile", "tracking", "crate", "report")
#: Files that say how fast this machine was.
OF_THE_MACHINE = ("speed.json",)
#: The variable by which what a run started is found again.
MARK = "RAILX_KILL_TEST"
#: Seconds that children have to end once their group was killed.
GONE_S = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where a table differs or a process outlives its run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="killed runs (default 5)")
    parser.add_argument("--kills", type=int, default=10, help="kills of each (default 10)")
    parser.add_argument("--seed", type=int, default=1, help="draws the moments (default 1)")
    parser.add_argument("--experiment", default="quick", help="the experiment (default quick)")
    parser.add_argument("--cores", default="2", help="cores of a run (default 2)")
    parser.add_argument(
        "--stages", nargs="*", default=[], help="only these stages and what they need"
    )
    parser.add_argument("--hydra", default="", help="overrides of the experiment")
    options = parser.parse_args(arguments)
    for name in ("runs", "kills"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: got {getattr(options, name)}; allowed: 1 or more")
    with tempfile.TemporaryDirectory(prefix="railx-kills-") as folder:
        return _all_runs(options, Path(folder))


def _all_runs(options: argparse.Namespace, folder: Path) -> int:
    # All runs have the same code, whatever becomes of the checkout meanwhile.
    pipeline = _copy(ROOT, folder / "pipeline")
    whole = _copy(pipeline, folder / "undisturbed")
    begun = time.monotonic()
    command = _command(options, whole)
    _finish(command, whole, "the undisturbed run")
    took_s = time.monotonic() - begun
    begun = time.monotonic()
    _finish([*command, "--dry-run"], whole, "a run with nothing to do")
    start_s = time.monotonic() - begun
    expected = _unmeasured(whole / "results" / options.experiment)
    print(
        f"undisturbed: {took_s:.0f} s, of which {start_s:.0f} s to start; {len(expected)} files"
        " are not measured",
        flush=True,
    )
    faults = 0
    for run in range(1, options.runs + 1):
        moments = Random(f"{options.seed}/{run}")
        killed = _copy(pipeline, folder / f"run_{run}")
        for kill in range(1, options.kills + 1):
            # On average half of a share of the work is done between two kills, so that
            # the last of them still finds a run under way.
            moment_s = moments.uniform(0.0, start_s + took_s / options.kills)
            faults += _killed(command, killed, moment_s, f"run {run}, kill {kill}")
        _finish(command, killed, f"run {run}, after its last kill")
        found = _unmeasured(killed / "results" / options.experiment)
        differing = sorted(
            path for path in expected.keys() | found.keys() if expected.get(path) != found.get(path)
        )
        left = [str(path) for path in (killed / "results").rglob("*.part")]
        for what in [*(f"{path}: differs" for path in differing), *left]:
            print(f"run {run}: {what}", flush=True)
        print(
            f"run {run}: {options.kills} kills, {len(expected) - len(differing)} of"
            f" {len(expected)} files equal, {len(left)} half-written",
            flush=True,
        )
        faults += len(differing) + len(left)
        shutil.rmtree(killed)
    print("all equal" if not faults else f"{faults} faults", flush=True)
    return 1 if faults else 0


def _copy(source: Path, folder: Path) -> Path:
    """The pipeline in a folder of its own."""
    folder.mkdir()
    for part in PARTS:
        if (source / part).is_dir():
            shutil.copytree(
                source / part, folder / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(source / part, folder / part)
    return folder


def _command(options: argparse.Namespace, folder: Path) -> list[str]:
    command = [sys.executable, "-m", "snakemake", *_targets(options, folder)]
    command += ["--cores", options.cores, "--quiet", "host"]
    command += ["--config", f"experiment={options.experiment}"]
    return [*command, f"hydra={options.hydra}"] if options.hydra else command


def _targets(options: argparse.Namespace, folder: Path) -> list[str]:
    """The first output of every item of the stages that were asked for."""
    if not options.stages:
        return []
    script = (
        "import sys; from workflow.experiment import checked_experiment, overrides_from;"
        " from workflow.stages import STAGES, files_of;"
        " wrong = [name for name in sys.argv[3:] if name not in STAGES];"
        " wrong and sys.exit(f'error: --stages: got {wrong[0]!r}; allowed: ' + ', '.join(STAGES));"
        " own = checked_experiment(overrides_from({'experiment': sys.argv[1], 'hydra':"
        " sys.argv[2]}));"
        " print(*(path for name in sys.argv[3:] for path in files_of(own, name + '.' +"
        " next(iter(STAGES[name].outputs))).values()), sep='\\n')"
    )
    asked = [sys.executable, "-c", script, options.experiment, options.hydra, *options.stages]
    done = subprocess.run(
        asked, cwd=folder, env=_environment(folder), capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr.strip().splitlines()[-1])
    return done.stdout.split()


def _environment(folder: Path) -> dict[str, str]:
    own = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", MARK: str(folder)}
    return own | {"PYTHONPATH": str(folder)}


def _start(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )


def _finish(command: Sequence[str], folder: Path, what: str) -> None:
    process = _start(command, folder)
    try:
        code = process.wait()
    except BaseException:
        _kill(process)
        raise
    if code:
        said = (folder / "said").read_text(errors="replace").splitlines()
        sys.exit("\n".join([*said[-40:], f"{what} ended with exit code {code}"]))


def _killed(command: Sequence[str], folder: Path, moment_s: float, what: str) -> int:
    """Start, kill after ``moment_s``; 1 where anything of it lives on."""
    process = _start(command, folder)
    try:
        process.wait(moment_s)
        ended = f"had ended by itself (exit code {process.returncode})"
    except subprocess.TimeoutExpired:
        ended = "killed"
    finally:
        _kill(process)
    until = time.monotonic() + GONE_S
    while (left := list(_living(folder))) and time.monotonic() < until:
        time.sleep(0.1)
    for number, words in left:
        print(f"{what}: process {number} lives on: {words}", flush=True)
        os.kill(number, signal.SIGKILL)
    done = sum(1 for _ in (folder / "results").rglob("provenance/**/*.json"))
    print(f"{what}: {ended} after {moment_s:.1f} s, {done} jobs done", flush=True)
    return len(left)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _living(folder: Path) -> Iterator[tuple[int, str]]:
    """The processes that a run in the folder started and that live on."""
    wanted = f"{MARK}={folder}".encode()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (place / "environ").read_bytes().split(b"\0"):
                words = (place / "cmdline").read_bytes().replace(b"\0", b" ")
                yield int(place.name), words.decode(errors="replace")[:120]
        except OSError:
            continue


def _unmeasured(results: Path) -> Mapping[str, str]:
    """Digests of the tables and JSON files that no measurement went into, by path."""
    records = [read_json(path) for path in (results / "provenance").rglob("*.json")]
    made_by = {path: record for record in records for path in record["outputs"]}
    known: dict[int, bool] = {}

    def measured(record: Mapping[str, object]) -> bool:
        if id(record) not in known:
            inputs = record["inputs"]
            assert isinstance(inputs, dict)
            known[id(record)] = record["stage"] in MEASURED or any(
                measured(made_by[path]) for path in inputs if path in made_by
            )
        return known[id(record)]

    base = results.parent.parent
    return {
        path: digest_of(base / path)
        for path, record in sorted(made_by.items())
        if Path(path).suffix in (".parquet", ".json")
        and Path(path).name not in OF_THE_MACHINE
        and not measured(record)
    }


if __name__ == "__main__":
    sys.exit(main())
