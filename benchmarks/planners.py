"""Planners of sequence-parallel groups on the 45 batches of benchmarks/batches.py.

    python benchmarks/planners.py               our planner and its bound, measured now,
                                                beside the stored table
    python benchmarks/planners.py store         fills the stored table
        [--anew] [--planners NAME...] [--draws 5]
    python benchmarks/planners.py scaling       FlexSP's planner on 64 to 1,024 devices
        [--devices N...]
    python benchmarks/planners.py sizes         our planner on 64 to 8,192 devices;
        [--devices N...]                        fills benchmarks/sizes.csv
    python benchmarks/planners.py figure        draws docs/images/planner_sizes.svg
    python benchmarks/planners.py fresh         our planner on batches of another seed,
        [--seed 2] [--effort 16] [--draws 5]    beside a search of so many rounds

The stored table, benchmarks/planners.csv, has what takes hours: FlexSP's planner with
10 processor seconds a programme, 60 processor seconds of our search, and static plans.
`store` skips what is there with the same settings and writes each row as soon as it is
made: a killed run goes on where it stopped. First draws come first. Seconds are those
of processors, solver processes included, imports and compiling aside.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from batches import CONTEXTS, CORPORA, DEVICES, DRAWS, Case, cases, cost_of, lengths_of
from shared import describe, read_table, record, write_table

from railx.planning.format.plan import SequenceParallelBatch
from railx.planning.planners import PlannerSettings
from railx.planning.sequence.flexsp import plan_flexsp_batch
from railx.planning.sequence.flexsp_milp import plan_milp_batch
from railx.planning.sequence.solver import SolverPool
from railx.planning.sequence.static import plan_static_batch, static_degree
from railx.settings import load
from railx.workload.batches import FilledBatchSettings, sample_batches
from workflow.config import read_choice

STORE = Path(__file__).resolve().with_name("planners.csv")
SIZES = STORE.with_name("sizes.csv")
SIZES_FIGURE = STORE.parents[1] / "docs/images/planner_sizes.svg"
COLUMNS = (
    "corpus",
    "context_tokens",
    "draw",
    "planner",
    "settings",
    "total_ms",
    "micro_batches",
    "cpu_s",
    "ended_by",
)
SEED = 1
#: Our plan is to be this close to that of the long search.
GOAL = 1.005


@dataclass(frozen=True)
class Entry:
    """A planner of the table: a choice of conf/planner, changes and its function."""

    choice: str
    changes: dict[str, Any]
    plan: Callable[[Any, Case], SequenceParallelBatch]

    def plain(self) -> dict[str, Any]:
        return read_choice("planner", self.choice) | self.changes

    def settings(self) -> Any:
        return load(PlannerSettings, self.plain(), "planner")

    def digest(self) -> str:
        """Eight letters that change with the settings."""
        return hashlib.sha256(json.dumps(self.plain(), sort_keys=True).encode()).hexdigest()[:8]


def _paper(settings: Any, case: Case) -> SequenceParallelBatch:
    with SolverPool(settings.processes) as pool:
        return plan_milp_batch(0, case.batch, settings, DEVICES, case.cost, pool, SEED)


def _search(settings: Any, case: Case) -> SequenceParallelBatch:
    return plan_flexsp_batch(0, case.batch, settings, DEVICES, case.cost, SEED)


def _static(settings: Any, case: Case) -> SequenceParallelBatch:
    degree = static_degree(settings, case.cost, case.max_length_tokens)
    return plan_static_batch(0, case.batch, degree, DEVICES, case.cost, settings.fill)


PAPER = Entry("flexsp_milp", {"work_limit": None, "time_limit_s": 10.0}, _paper)
#: What is stored. A round of our search takes about 0.1 s; the guard ends a longer one.
STORED = {
    "static": Entry("static", {}, _static),
    "paper": PAPER,
    "search_60s": Entry(
        "flexsp", {"effort": 400, "relative_gap": 0.0, "time_guard_s": 60.0}, _search
    ),
}
OURS = Entry("flexsp", {}, _search)

Key = tuple[str, int, int, str]


def timed(entry: Entry, case: Case) -> tuple[SequenceParallelBatch, float]:
    """A plan and the processor seconds that it took, here and in solvers."""
    settings, begin = entry.settings(), _busy_s()
    made = entry.plan(settings, case)
    return made, _busy_s() - begin


def _busy_s() -> float:
    solvers = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + solvers.ru_utime + solvers.ru_stime


def stored() -> dict[Key, dict[str, str]]:
    """The rows of the stored table that were made with today's settings."""
    digests = {name: entry.digest() for name, entry in STORED.items()}
    return {
        (row["corpus"], int(row["context_tokens"]), int(row["draw"]), row["planner"]): row
        for row in read_table(STORE)
        if row["settings"] == digests.get(row["planner"])
    }


def write(rows: dict[Key, dict[str, str]]) -> None:
    """Store the table, in order."""

    def place(key: Key) -> tuple[int, int, int, str]:
        return CORPORA.index(key[0]), *key[1:]

    write_table(STORE, COLUMNS, (rows[key] for key in sorted(rows, key=place)))


def fill(names: list[str], draws: int, anew: bool) -> None:
    """Make the rows that are missing, first draws first."""
    if anew:
        kept = {key: row for key, row in stored().items() if key[3] not in names}
        write(kept)
    every = sorted(cases(draws=DRAWS), key=lambda case: case.draw)
    wanted = [(case, name) for case in every if case.draw < draws for name in names]
    for case, name in wanted:
        key = (case.corpus, case.max_length_tokens, case.draw, name)
        if key in stored():
            continue
        entry = STORED[name]
        made, seconds = timed(entry, case)
        row = {
            "corpus": case.corpus,
            "context_tokens": str(case.max_length_tokens),
            "draw": str(case.draw),
            "planner": name,
            "settings": entry.digest(),
            "total_ms": f"{made.predicted_ms:.3f}",
            "micro_batches": str(len(made.micro_batches)),
            "cpu_s": f"{seconds:.2f}",
            "ended_by": _ended(made.solver),
        }
        # Read again: another run may fill the rows of another planner.
        write(stored() | {key: row})
        print(f"{case.name} {name}: {row['total_ms']} ms in {row['cpu_s']} s", flush=True)


def _ended(solver: Any) -> str:
    if "degree" in solver and "ended_by" not in solver:
        return f"degree {solver['degree']}"
    ended = solver["ended_by"]
    if isinstance(ended, str):
        return ended
    return ", ".join(f"{count} {what}" for what, count in sorted(ended.items()))


@dataclass(frozen=True)
class Line:
    """One batch of the printed table; None where the stored table lacks it."""

    case: Case
    ours_ms: float
    ours_s: float
    bound_ms: float
    bound_s: float
    others: dict[str, float | None]

    @property
    def gap(self) -> float:
        return self.ours_ms / self.bound_ms - 1


def measured() -> Iterator[Line]:
    """Our planner and the bound on every batch, now."""
    from railx.planning.sequence.bound import batch_lower_bound_ms

    table = stored()
    first = next(cases(draws=1, sequences=64))
    degrees = first.cost.degrees
    batch_lower_bound_ms(first.batch.lengths, DEVICES, degrees, first.cost)
    timed(OURS, first)
    for case in cases():
        made, seconds = timed(OURS, case)
        begin = time.process_time()
        bound = batch_lower_bound_ms(
            case.batch.lengths, DEVICES, degrees, case.cost, made.predicted_ms
        )
        spent = time.process_time() - begin
        others = {}
        for name in STORED:
            row = table.get((case.corpus, case.max_length_tokens, case.draw, name))
            others[name] = None if row is None else float(row["total_ms"])
        yield Line(case, made.predicted_ms, seconds, bound, spent, others)


def show() -> None:
    """Print the table that docs/benchmarks.md sums up."""
    print(describe(), end="\n\n")
    print(
        "| batch | ours, ms | s | bound, ms | s | gap | paper's planner | 60 s search | static |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    lines = []
    for line in measured():
        lines.append(line)
        print(
            f"| {line.case.name} | {line.ours_ms:.0f} | {line.ours_s:.2f} | {line.bound_ms:.0f} |"
            f" {line.bound_s:.2f} | {line.gap:.1%} |"
            + "".join(f" {_beside(line, name)} |" for name in ("paper", "search_60s", "static")),
            flush=True,
        )
    print("\nIn brackets: that plan's time over ours. A dash: not in the stored table.\n")
    for context in CONTEXTS:
        own = [line for line in lines if line.case.max_length_tokens == context]
        print(
            f"{context // 1000}K: mean gap {mean(line.gap for line in own):.1%}, ours at most"
            f" {max(line.ours_s for line in own):.2f} s, mean"
            f" {mean(line.ours_s for line in own):.2f} s"
        )
        took = mean(line.ours_s for line in own)
        record(f"{context // 1000}K, gap", mean(line.gap for line in own), "", clock="none")
        record(f"{context // 1000}K, plan", took, "s", clock="processor")
    print(f"all: mean gap {mean(line.gap for line in lines):.1%}")
    for name, limit, words in (
        ("paper", 1.0, "no slower than the paper's planner"),
        ("search_60s", GOAL, "within 0.5 % of the 60 s search"),
        ("static", 1.0, "no slower than static"),
    ):
        ratios = [
            line.ours_ms / other for line in lines if (other := line.others[name]) is not None
        ]
        if ratios:
            held = sum(ratio <= limit * (1 + 1e-9) for ratio in ratios)
            mean_ratio = math.exp(mean(map(math.log, ratios)))
            record(f"ours over {name}", mean_ratio, "", clock="none")
            print(
                f"{words}: {held} of {len(ratios)} batches (ours over it: geometric mean"
                f" {mean_ratio:.3f}, worst {max(ratios):.3f})"
            )


def _beside(line: Line, name: str) -> str:
    other = line.others[name]
    return "-" if other is None else f"{other:.0f} ({other / line.ours_ms:.3f})"


def scale(sizes: list[int]) -> None:
    """Print what FlexSP's planner takes on more devices, with as many more sequences.

    Programmes get 10 processor seconds each. The paper has every node of 8 devices
    solve a batch of its own, so that an iteration waits for that share.
    """
    print(describe(), end="\n\n")
    print(
        "| devices | sequences | micro-batches | programmes | solving, s | share of a node, s |"
        " predicted iteration, s |\n|---|---|---|---|---|---|---|"
    )
    settings, limit = PAPER.settings(), 192_000
    for devices in sizes:
        wanted = FilledBatchSettings(8 * devices, 1, limit, "drop")
        (batch,) = sample_batches(lengths_of("commoncrawl_like"), wanted, SEED)
        begin = _busy_s()
        with SolverPool(settings.processes) as pool:
            made = plan_milp_batch(0, batch, settings, devices, cost_of(limit, devices), pool, SEED)
        spent = _busy_s() - begin
        programmes = sum(sum(trial["programmes"].values()) for trial in made.solver["trials"])
        print(
            f"| {devices} | {8 * devices} | {len(made.micro_batches)} | {programmes} |"
            f" {spent:.0f} | {spent / (devices / 8):.1f} | {made.predicted_ms / 1000:.1f} |",
            flush=True,
        )


def size(sizes: list[int]) -> None:
    """Measure what our planner takes on more devices, with as many more sequences.

    CommonCrawl-like lengths up to 192K. Bandwidths end at degree 64, and so do the
    heads of the model: larger groups are not used. Rows of the table that stand for
    other sizes stay.
    """
    from railx.planning.sequence.bound import batch_lower_bound_ms

    print(describe(), end="\n\n")
    print("| sequences | devices | micro-batches | ours, s | gap | bound alone, s |")
    print("|---|---|---|---|---|---|")
    limit, rows = 192_000, {int(row["devices"]): row for row in _sizes()}
    timed(OURS, next(cases(draws=1)))
    for devices in sizes:
        wanted = FilledBatchSettings(8 * devices, 1, limit, "drop")
        (batch,) = sample_batches(lengths_of("commoncrawl_like"), wanted, SEED)
        cost, begin = cost_of(limit, devices), time.process_time()
        made = plan_flexsp_batch(0, batch, OURS.settings(), devices, cost, SEED)
        spent, begin = time.process_time() - begin, time.process_time()
        bound = batch_lower_bound_ms(batch.lengths, devices, cost.degrees, cost, made.predicted_ms)
        bound_s = time.process_time() - begin
        rows[devices] = {
            "devices": str(devices),
            "sequences": str(8 * devices),
            "settings": OURS.digest(),
            "micro_batches": str(len(made.micro_batches)),
            "total_ms": f"{made.predicted_ms:.3f}",
            "bound_ms": f"{bound:.3f}",
            "plan_cpu_s": f"{spent:.2f}",
            "bound_cpu_s": f"{bound_s:.2f}",
        }
        write_table(SIZES, list(rows[devices]), (rows[number] for number in sorted(rows)))
        print(
            f"| {8 * devices:,} | {devices:,} | {len(made.micro_batches)} | {spent:.2f} |"
            f" {made.predicted_ms / bound - 1:.1%} | {bound_s:.2f} |",
            flush=True,
        )


def _sizes() -> list[dict[str, str]]:
    """The rows of the stored sizes that were made with today's settings."""
    digest = OURS.digest()
    return [row for row in read_table(SIZES) if row["settings"] == digest]


def fresh(seed: int, effort: int, draws: int) -> None:
    """Print how far our planner stays behind a longer search on batches never seen."""
    longer = Entry("flexsp", {"effort": effort}, _search)
    timed(OURS, next(cases(draws=1, sequences=64)))
    print(f"| batch of seed {seed} | ours, ms | gap | s | {effort} rounds, ms | s | behind |")
    print("|---|---|---|---|---|---|---|")
    behind, gaps = [], []
    for case in cases(draws=draws, seed=seed):
        (ours, ours_s), (best, best_s) = timed(OURS, case), timed(longer, case)
        behind.append(ours.predicted_ms / best.predicted_ms - 1)
        gaps.append(ours.predicted_ms / ours.solver["lower_bound_ms"] - 1)
        print(
            f"| {case.name} | {ours.predicted_ms:.0f} | {gaps[-1]:.2%} | {ours_s:.2f} |"
            f" {best.predicted_ms:.0f} | {best_s:.2f} | {behind[-1]:.2%} |",
            flush=True,
        )
    print(f"\ngap to the bound: mean {mean(gaps):.2%}, worst {max(gaps):.2%}")
    held = sum(1 + one <= GOAL for one in behind)
    tenth = sorted(behind)[int(0.9 * len(behind))]
    print(
        f"behind: mean {mean(behind):.2%}, median {median(behind):.2%}, nine of ten at most"
        f" {tenth:.2%}, worst {max(behind):.2%}; within 0.5 %: {held} of {len(behind)}"
    )


def draw_sizes() -> None:
    """Planner seconds against sequences and devices, and the gap to the bound."""
    from matplotlib.ticker import FuncFormatter, PercentFormatter

    from railx.figures.canvas import canvas
    from railx.figures.figure import CanvasSettings
    from railx.figures.panels import share_legend
    from railx.figures.theme import GREY, PALETTE
    from railx.figures.words import quantity

    rows = _sizes()
    if not rows:
        raise SystemExit(
            "error: benchmarks/sizes.csv: got no row of today's settings; allowed: one of each size"
            " (python benchmarks/planners.py sizes)"
        )
    sequences = [int(row["sequences"]) for row in rows]
    spent = [float(row["plan_cpu_s"]) for row in rows]
    bounds = [float(row["bound_cpu_s"]) for row in rows]
    gaps = [float(row["total_ms"]) / float(row["bound_ms"]) - 1 for row in rows]
    settings = CanvasSettings("planner_sizes", 10, 4.6, 150, 9.5)
    subtitle = (
        "CommonCrawl-like lengths up to 192K tokens, 8 sequences a device, GPT-7B with FlexSP's"
        " constants. Bandwidths are known up to degree 64, and the model has heads for no larger"
        " groups: more devices are more groups. Processor seconds of one core; no paper states"
        " these sizes."
    )
    footnote = "Seconds: measured on a CPU. Gap: plan over a proven bound, both analytic."
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder) / SIZES_FIGURE.name
        with canvas(settings, drawn, subtitle, footnote, "Planner time against size") as figure:
            left, right = figure.subplots(1, 2)
            for axes in (left, right):
                axes.set_xscale("log", base=2)
                axes.set_xticks(
                    sequences, [f"{quantity(n / 1024)}K\n{n // 8:,}" for n in sequences]
                )
                axes.minorticks_off()
                axes.set_xlabel("Sequences (1K = 1,024), and devices below")
            left.set_yscale("log")
            left.plot(sequences, spent, "o-", color=PALETTE[2])
            left.plot(sequences, bounds, "s--", color=GREY)
            left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity(value)))
            left.set_ylabel("Processor seconds")
            left.set_title("Time to plan one batch")
            right.plot(sequences, gaps, "o-", color=PALETTE[2])
            right.set_ylim(0, 1.3 * max(gaps))
            right.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
            right.set_ylabel("Plan over its lower bound, less 1")
            right.set_title("Gap to the bound")
            lines = dict(zip(("Plan", "Bound alone"), left.get_lines(), strict=True))
            share_legend(figure, lines, 2)
        SIZES_FIGURE.write_bytes(drawn.read_bytes())
    print(f"drawn: {SIZES_FIGURE.relative_to(SIZES_FIGURE.parents[2])}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what",
        nargs="?",
        choices=("show", "store", "scaling", "sizes", "figure", "fresh"),
        default="show",
    )
    parser.add_argument("--anew", action="store_true", help="drop the planners' stored rows first")
    parser.add_argument("--planners", nargs="+", choices=tuple(STORED), default=list(STORED))
    parser.add_argument("--draws", type=int, default=DRAWS, help="draws of each corpus and context")
    parser.add_argument("--devices", type=int, nargs="+", help="instead of the default sizes")
    parser.add_argument("--seed", type=int, default=2, help="of batches never seen")
    parser.add_argument("--effort", type=int, default=16, help="rounds of the longer search")
    options = parser.parse_args()
    if options.what == "fresh":
        fresh(options.seed, options.effort, options.draws)
    elif options.what == "scaling":
        scale(options.devices or [64, 128, 256, 512, 1024])
    elif options.what == "sizes":
        size(options.devices or [64, 128, 256, 512, 1024, 2048, 4096, 8192])
    elif options.what == "figure":
        draw_sizes()
    elif options.what == "store":
        fill(options.planners, options.draws, options.anew)
    else:
        show()


if __name__ == "__main__":
    main()
