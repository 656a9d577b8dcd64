"""Speed of the packet simulator: flit-hops per second on one thread, what two threads
gain, and how long the first call takes to compile.

    python benchmarks/packet_simulator.py [--repeats 5]

Prints a table; docs/benchmarks.md sums it up. What is stored of the speed is its ratio
to a fixed piece of work beside each run, in processor time: machines and their load
change both alike.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from numba import njit
from shared import compile_times, describe, first_call, record

from railx.families import TopologySettings, build_routing, build_topology
from railx.network.packets.simulate import simulate_packets
from railx.network.settings import PacketNetworkSettings, UniformTraffic
from railx.settings import load
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import Topology
from workflow.config import read_choice

#: What is simulated: topology, changes to it, routing, offered load in flits/(chip
#: cycle).
CASES: dict[str, tuple[str, dict[str, Any], str, float]] = {
    "RailX m=2 n=2, 100 chips, 0.2 flits/chip/cycle": ("railx_hyperx", {}, "min", 0.2),
    "RailX m=2 n=2, 100 chips, 1.3 (near saturation)": ("railx_hyperx", {}, "min", 1.3),
    "8 x 8 mesh, 0.2": ("mesh_2d", {"x_scale": 8, "y_scale": 8, "n": 1}, "min", 0.2),
    "RailX m=4 n=2, 1,296 chips, 0.2": ("railx_hyperx_m4n2", {}, "min", 0.2),
    "RailX m=4 n=2, 1,296 chips, 0.5": ("railx_hyperx_m4n2", {}, "min", 0.5),
    "RailX m=4 n=2, 1,296 chips, 0.9 (near saturation)": ("railx_hyperx_m4n2", {}, "min", 0.9),
}
#: What the names of the larger cases have.
LARGE = "1,296"


def prepare(
    case: str, **window: int
) -> tuple[Topology, RoutingTable, UniformTraffic, PacketNetworkSettings]:
    name, changes, routing, offered = CASES[case]
    plain = read_choice("topology", name) | changes
    topology = build_topology(load(TopologySettings, plain, "topology"))
    model = read_choice("network", "packet") | {"routing": routing} | window
    network: PacketNetworkSettings = load(PacketNetworkSettings, model, "network")
    table = build_routing(topology, routing, grouped=True)
    return topology, table, UniformTraffic("uniform", offered), network


@njit(cache=True)  # type: ignore[untyped-decorator]
def walk(follow: Any, steps: int) -> Any:
    """Fixed work: a walk of ``steps`` through memory, each with a branch by chance."""
    at, seen = 0, 0
    for _ in range(steps):
        at = follow[at]
        if at & 4:
            seen += at
    return seen


def walks_a_second(follow: Any, steps: int = 2_000_000) -> float:
    """Steps of the fixed work a second of processor time."""
    begin = time.process_time()
    walk(follow, steps)
    return steps / (time.process_time() - begin)


def speed(case: str, repeats: int) -> dict[str, Any]:
    """Flit-hops per second of a case: median, least and most of ``repeats`` runs after
    one that warms up.
    """
    setting = prepare(case, warmup_cycles=1000, measured_cycles=4_000 if LARGE in case else 40_000)
    order = np.random.default_rng(1).permutation(1 << 17)
    follow = np.empty_like(order)
    follow[order] = np.roll(order, -1)
    walk(follow, 1)
    runs, ratios = [], []
    for _ in range(repeats + 1):
        fixed, begin = walks_a_second(follow), time.process_time()
        runs.append(simulate_packets(*setting, 1))
        busy = time.process_time() - begin
        ratios.append(runs[-1].flit_hops / busy / fixed)
    runs = runs[1:]
    rates = [run.flit_hops_per_second for run in runs]
    return {
        "case": case,
        "flit_hops_per_second": median(rates),
        "over_fixed_work": max(ratios[1:]),
        "least": min(rates),
        "most": max(rates),
        "cycles_per_second": median(run.cycles_per_second for run in runs),
    }


def gain_of_threads(case: str, repeats: int) -> float:
    """Seconds on one thread over seconds on two, median of alternated runs."""
    topology, table, traffic, network = prepare(case, warmup_cycles=500, measured_cycles=10_000)
    both = [dataclasses.replace(network, threads=threads) for threads in (1, 2)]
    runs = [
        [simulate_packets(topology, table, traffic, way, 1).cycles_per_second for way in both]
        for _ in range(repeats)
    ]
    return median(two / one for one, two in runs)


def first_run() -> float:
    """Seconds until the simulator is ready in this process."""
    setting = prepare("8 x 8 mesh, 0.2", warmup_cycles=10, measured_cycles=10, batches=2)
    return first_call(lambda: simulate_packets(*setting, 1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the numbers to this file too")
    parser.add_argument("--first-call", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first_call:
        print(first_run())
        return
    rows = [speed(case, options.repeats) for case in CASES]
    cold, warm = compile_times(__file__)
    print(describe(), end="\n\n")
    print(
        "| simulated, one thread | million flit-hops/s (least to most) | thousand cycles/s"
        " |\n|---|---|---|"
    )
    for row in rows:
        millions = [row[key] / 1e6 for key in ("flit_hops_per_second", "least", "most")]
        spread = "{:.1f} ({:.1f} to {:.1f})".format(*millions)
        record(
            f"{row['case']}, flit-hops over steps of fixed work",
            row["over_fixed_work"],
            "",
            better="more",
            clock="processor",
        )
        print(f"| {row['case']} | {spread} | {row['cycles_per_second'] / 1e3:.1f} |")
    print(
        f"\nFirst call: {cold:.1f} s with an empty cache of compiled code, {warm:.2f} s with a full"
        " one."
    )
    print("\nTwo threads over one, on idle cores:\n\n| simulated | ratio |\n|---|---|")
    for case in CASES:
        if LARGE in case:
            print(f"| {case} | {gain_of_threads(case, options.repeats):.2f} |")
    if options.json:
        options.json.write_text(
            json.dumps(
                {"machine": describe(), "rows": rows, "cold_s": cold, "warm_s": warm}, indent=2
            )
        )


if __name__ == "__main__":
    main()
