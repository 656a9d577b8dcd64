"""Do the verdicts on measured and emulated training hold on a busy machine?

The runs behind them are trained twice by the pipeline's own stage: on the machine as it
is, which should be idle, and beside processes that never rest, one for every two cores.
The results lie in results/EXPERIMENT_idle and results/EXPERIMENT_busy; what stood there
before goes. Each claim is then judged on both, and one table is printed.

Ends with 1 where a claim is decided in both and the verdicts differ (undecided
contradicts nothing), or where fewer than half of the claims are decided in either.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DECIDED = ("reproduced", "consistent", "direction only", "depends", "not reproduced")
#: Computes until its parent is gone: the end of its standard input ends it.
_RESTLESS = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True:
    pass
"""
_POLL_S = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--experiment", default="paper", help="whose training (default: paper)")
    parser.add_argument(
        "--busy",
        type=int,
        default=max(1, (os.cpu_count() or 1) // 2),
        help="processes that never rest (default: %(default)s, one for every two cores)",
    )
    parser.add_argument("--cores", default="all", help="cores for Snakemake (default: all)")
    parser.add_argument(
        "overrides", nargs="*", help="changes of the experiment, e.g. training.iterations=6"
    )
    options = parser.parse_args(arguments)
    os.chdir(ROOT)
    try:
        return _steady(options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _steady(options: argparse.Namespace) -> int:
    began = time.monotonic()
    passes = {state: _Pass(options, state) for state in ("idle", "busy")}
    claims = passes["idle"].claims
    print(f"{len(claims)} claims on measured and emulated training", flush=True)
    for one in passes.values():
        one.clear()
        _make(one, one.prepared(), f"{one.state}: plans")
    load = os.getloadavg()[0]
    print(f"load average before the idle pass: {load:.1f}", flush=True)
    _make(passes["idle"], passes["idle"].trained(), "idle")
    with restless(options.busy):
        _make(
            passes["busy"],
            passes["busy"].trained(),
            f"busy (processes that never rest: {options.busy})",
        )
    rows = {state: one.judged() for state, one in passes.items()}
    print("\n".join(table(rows["idle"], rows["busy"])))
    problems = complaints(rows["idle"], rows["busy"])
    minutes = (time.monotonic() - began) / 60
    print(f"{'; '.join(problems) or 'no claim contradicts itself'} ({minutes:.0f} min)")
    return 1 if problems else 0


class _Pass:
    """One of the two experiments: the same but for its name and so its folder."""

    def __init__(self, options: argparse.Namespace, state: str) -> None:
        from workflow.experiment import checked_experiment
        from workflow.stages import results_folder

        self.state, self.cores = state, options.cores
        self.chosen = options.experiment
        self.overrides = [*options.overrides, f"name={options.experiment}_{state}"]
        self.experiment = checked_experiment(
            [f"experiment={self.chosen}", "tracking=off", *self.overrides]
        )
        self.folder = results_folder(self.experiment)
        self.claims, tables = _measured(self.folder)
        self.files = [
            file
            for file in _claim_files(self.experiment)
            if ".".join(file.relative_to(self.folder).with_suffix("").parts) in tables
        ]
        if not self.files:
            raise ValueError(
                f"experiment: got {self.chosen}, which trains nothing that a claim is about"
            )

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def prepared(self) -> list[Path]:
        """What the training reads: made before the clock runs."""
        from workflow.stages import STAGES, inputs_of

        runs = dict.fromkeys(file.parent.name for file in self.files)
        read = [inputs_of(STAGES["training"], self.experiment, run) for run in runs]
        paths = [path for files in read for path in files.values() if isinstance(path, Path)]
        return list(dict.fromkeys(paths))

    def trained(self) -> list[Path]:
        return self.files

    def judged(self) -> list[dict[str, Any]]:
        from railx.evidence import judge

        return judge(
            self.claims, self.folder, [str(file.relative_to(self.folder)) for file in self.files]
        )


def _measured(folder: Path) -> tuple[list[Any], set[str]]:
    """The claims that ask tables of training, and the names of those tables."""
    from railx.evidence import load_claims, open_database

    claims, tables = [], set()
    every = load_claims("resources/claims", "resources/published", "resources/papers.yaml")
    with open_database(folder, []) as database:
        for claim in every:
            named = database.named(claim.settings.query) if claim.settings.query else ()
            if named and all(name.startswith("training.") for name in named):
                claims.append(claim)
                tables |= set(named)
    return claims, tables


def _claim_files(experiment: dict[str, Any]) -> list[Path]:
    from workflow.stages import claim_files

    return claim_files(experiment)


@contextmanager
def restless(processes: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that compute for the length of the block, and never beyond it."""
    running = [
        subprocess.Popen([sys.executable, "-c", _RESTLESS], stdin=subprocess.PIPE)
        for _ in range(processes)
    ]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate()


def _make(one: _Pass, files: Sequence[Path], what: str) -> None:
    """Have Snakemake make files; what the jobs say is shown as they say it."""
    print(f"--- {what}: {len(files)} files", flush=True)
    command = [sys.executable, "-m", "snakemake", *map(str, files)]
    command += ["--cores", str(one.cores), "--quiet", "all"]
    command += ["--config", f"experiment={one.chosen}", "tracking=off"]
    command += [f"hydra={' '.join(one.overrides)}"]
    ended = threading.Event()
    follower = threading.Thread(target=_follow, args=(one.folder / "logs/training", ended))
    follower.start()
    try:
        ending = subprocess.run(command, check=False).returncode
    finally:
        ended.set()
        follower.join()
    if ending:
        raise ValueError(f"{what}: Snakemake ended with {ending}; its own message is above")


def _follow(folder: Path, ended: threading.Event) -> None:
    """Print the lines that logs get until ``ended``."""
    read: dict[Path, int] = {}
    over = False
    while not over:
        over = ended.wait(_POLL_S)
        for log in sorted(folder.glob("*.log")):
            text = log.read_text(encoding="utf-8", errors="replace")
            whole = text.rfind("\n") + 1
            for line in text[read.get(log, 0) : whole].splitlines():
                print(f"{log.stem}: {line}", flush=True)
            read[log] = whole


def table(idle: Sequence[dict[str, Any]], busy: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each claim: verdicts and intervals of both, and what was set aside."""
    head = ["claim", "idle", "busy", "ours idle", "ours busy", "set aside idle", "busy"]
    cells = [
        [
            one["claim"],
            one["verdict"],
            other["verdict"],
            _interval(one),
            _interval(other),
            str(one["set_aside"]),
            str(other["set_aside"]),
        ]
        for one, other in zip(idle, busy, strict=True)
    ]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *cells)
    ]


def _interval(row: dict[str, Any]) -> str:
    if row["ours"] is None:
        return "-"
    if row["low"] is None:
        return f"{row['ours']:.4g}"
    return f"{row['ours']:.4g} ({row['low']:.4g} to {row['high']:.4g})"


def complaints(idle: Sequence[dict[str, Any]], busy: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong with two passes; nothing where they agree and decide enough."""
    found = [
        f"{one['claim']}: {one['verdict']} idle, {other['verdict']} busy"
        for one, other in zip(idle, busy, strict=True)
        if one["verdict"] != other["verdict"]
        and one["verdict"] in DECIDED
        and other["verdict"] in DECIDED
    ]
    for state, rows in (("idle", idle), ("busy", busy)):
        decided = sum(row["verdict"] in DECIDED for row in rows)
        if 2 * decided < len(rows):
            found.append(f"{state}: only {decided} of {len(rows)} claims are decided")
    return found


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
