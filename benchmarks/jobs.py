"""Many cheap points in one experiment: the graph of jobs, and what a job costs.

    python benchmarks/jobs.py [--points 10 100 300 1000] [--run 10]
    python benchmarks/jobs.py store             fills benchmarks/jobs.csv
        [--points N...] [--run N...]
    python benchmarks/jobs.py figure            draws docs/images/jobs.svg

A point is a torus of its own size: a job that builds it and one that computes traffic
on it, some milliseconds of work each. `--points` says for which numbers of points the
graph is made (a dry run of the whole experiment, composed and checked before), `--run`
which of them are run to their end, two jobs a point. Seconds are those of processors,
of Snakemake and all processes that it started. What a run takes beyond its own dry run,
divided by its jobs, is what a job costs, its milliseconds of work included. `store`
keeps what is there of other numbers.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from shared import describe, read_table, record, write_table

ROOT = Path(__file__).resolve().parents[1]
STORE = ROOT / "benchmarks/jobs.csv"
FIGURE = ROOT / "docs/images/jobs.svg"
COLUMNS = ("points", "jobs", "graph_cpu_s", "run_cpu_s", "job_cpu_s")
#: The columns that count; the others are seconds. And all of them as they are printed.
_COUNTS = ("points", "jobs")
_SHOWN = ("points", "graph_cpu_s", "jobs", "run_cpu_s", "job_cpu_s")
#: Networks that parts of every experiment are about.
_OTHERS = ("railx_hyperx", "railx_hyperx_m4n2", "torus_2d")
_FIGURES = ("all_claims", "topology_metrics", "all_to_all_bandwidth", "ring_all_reduce")
_JOBS_A_POINT = 2


def experiment(points: int) -> str:
    """An experiment of that many points, as its file."""
    lines = ["seed: 1", "topologies:", *(f"  {name}: {name}" for name in _OTHERS)]
    for number in range(points):
        sides = f"x_scale: {2 + number // 4 % 16}, y_scale: {2 + number // 64}"
        lines.append(
            f"  point_{number:04d}: {{family: torus_2d, n: {1 + number % 4}, {sides},"
            " board_side: 1, port_gbps: 400.0, latency_ns: 10.0}"
        )
    empty = ("sweeps", "transitions", "corpora", "plans", "runs")
    lines += ["networks: [static_min]", "agreement: pair", "mapping: default", "tenancy: small"]
    lines += [f"{name}: []" for name in empty] + [f"figures: [{', '.join(_FIGURES)}]"]
    return "\n".join(lines) + "\n"


def folder_of_work(folder: Path, points: list[int]) -> None:
    """A folder as `railx init` makes it, an experiment for each number of points."""
    command = [sys.executable, "-m", "workflow.cli", "init", str(folder)]
    subprocess.run(command, env=_environment(), check=True, stdout=subprocess.DEVNULL)
    for number in points:
        (folder / f"conf/experiment/points_{number}.yaml").write_text(experiment(number))


def cpu_s(folder: Path, points: int, *arguments: str) -> float:
    """Processor seconds of a call of Snakemake and of all that it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--quiet", "all"]
    command += ["--config", f"experiment=points_{points}", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"error: {points} points: {done.stderr.strip()[-500:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _environment() -> dict[str, str]:
    """This process's variables, for an installation that keeps its compiled modules."""
    own = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**own, "PYTHONPATH": str(ROOT)}


def graph_row(folder: Path, points: int) -> dict[str, float]:
    """The graph of all jobs, made again: the first time composes the config."""
    cpu_s(folder, points, "--dry-run")
    return {"points": points, "graph_cpu_s": cpu_s(folder, points, "--dry-run")}


def run_row(folder: Path, points: int) -> dict[str, float]:
    """The jobs of all points, run."""
    wanted = [
        f"results/points_{points}/network/point_{number:04d}/summary.json"
        for number in range(points)
    ]
    only = cpu_s(folder, points, "--dry-run", "--", *wanted)
    spent, jobs = cpu_s(folder, points, "--", *wanted), _JOBS_A_POINT * points
    return {"jobs": jobs, "run_cpu_s": spent, "job_cpu_s": (spent - only) / jobs}


def measured(points: list[int], run: list[int], *, kept: bool) -> list[dict[str, float]]:
    """A row for each number of points, printed and ``kept`` as soon as it is made."""
    print(f"{describe()}\n")
    print("| points | graph, CPU s | jobs run | CPU s | of a job, CPU s |\n|---|---|---|---|---|")
    rows = []
    with tempfile.TemporaryDirectory(prefix="railx-jobs-") as name:
        folder = Path(name) / "work"
        folder_of_work(folder, sorted({*points, *run}))
        for number in sorted({*points, *run}):
            row = graph_row(folder, number)
            if number in run:
                row |= run_row(folder, number)
            rows.append(row)
            if kept:
                store([row])
            print(f"| {' | '.join(_cell(row, column) for column in _SHOWN)} |", flush=True)
    return rows


def _cell(row: dict[str, float], column: str) -> str:
    if column not in row:
        return "-"
    return f"{row[column]:,}" if column in _COUNTS else f"{row[column]:.2f}"


def read_stored() -> list[dict[str, float]]:
    """The stored rows; none where nothing is stored."""
    return [
        {key: int(text) if key in _COUNTS else float(text) for key, text in row.items() if text}
        for row in read_table(STORE)
    ]


def store(rows: list[dict[str, float]]) -> None:
    """Put rows in the place of those of the same number of points."""
    kept = {row["points"]: row for row in [*read_stored(), *rows]}
    cells = (
        {key: value if key in _COUNTS else f"{value:.3f}" for key, value in row.items()}
        for _, row in sorted(kept.items())
    )
    write_table(STORE, COLUMNS, cells)


def figure() -> None:
    """Time against jobs, from the stored rows."""
    from railx.figures.canvas import canvas
    from railx.figures.figure import CanvasSettings
    from railx.figures.theme import GREY, PALETTE

    rows = read_stored()
    ran = [row for row in rows if "jobs" in row]
    if not ran:
        raise SystemExit("error: benchmarks/jobs.csv: no run; allowed: rows of `jobs.py store`")
    subtitle = (
        "Points are tori, two jobs each. Seconds of processors, of Snakemake and all that it"
        " starts. Dashed: the goals, 20 s at 1,000 points and 1 s a job."
    )
    with tempfile.TemporaryDirectory() as folder:
        drawn, footnote = Path(folder) / FIGURE.name, "Seconds: measured on a CPU."
        settings = CanvasSettings("jobs", 10, 4.2, 150, 9.5)
        with canvas(settings, drawn, subtitle, footnote, "Time against jobs") as whole:
            left, right = whole.subplots(1, 2)
            left.plot(*_columns(rows, "points", "graph_cpu_s"), "o-", color=PALETTE[2])
            left.set(xlabel="Points", title="Making the graph of jobs", ylim=(0, 22))
            right.plot(*_columns(ran, "jobs", "job_cpu_s"), "o-", color=PALETTE[2])
            right.set(xlabel="Jobs run", title="One job", ylim=(0, 1.1))
            marks = ((left, 20, rows, "points"), (right, 1, ran, "jobs"))
            for axes, goal_s, shown, name in marks:
                axes.axhline(goal_s, color=GREY, linestyle="--")
                axes.set(xscale="log", ylabel="Processor seconds")
                (places,) = _columns(shown, name)
                axes.set_xticks(places, [f"{place:,}" for place in places])
                axes.minorticks_off()
        FIGURE.write_bytes(drawn.read_bytes())
    print(f"drawn: {FIGURE.relative_to(ROOT)}")


def _columns(rows: list[dict[str, float]], *names: str) -> tuple[list[float], ...]:
    return tuple([row[name] for row in rows] for name in names)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("show", "store", "figure"), default="show")
    parser.add_argument("--points", type=int, nargs="*", default=[10, 100, 300, 1000])
    parser.add_argument("--run", type=int, nargs="*", default=[10])
    options = parser.parse_args()
    if options.what == "figure":
        figure()
        return 0
    rows = measured(options.points, options.run, kept=options.what == "store")
    for row in rows:
        name = f"{row['points']:,} points"
        record(f"graph of {name}", row["graph_cpu_s"], "s", clock="processor")
        if "job_cpu_s" in row:
            record(f"a job of {name}", row["job_cpu_s"], "s", clock="processor")
    return 0


if __name__ == "__main__":
    sys.exit(main())
