"""What the largest settings take: seconds and peak memory, each in a process of its
own.

    python benchmarks/full_scale.py [--repeats 3] [CASE...]

Prints the table of docs/benchmarks.md. Seconds count the work, without starting Python
and importing; with a full cache of compiled code (a first run fills it). Peak memory is
the whole process's.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared import describe, record

from railx.families import TopologySettings, build_topology
from railx.network.flows.fair import max_min_rates
from railx.network.settings import StaticNetworkSettings, UniformTraffic
from railx.network.throughput import simulate_static
from railx.settings import load
from railx.vocabulary.hamiltonian import check_decomposition, hamiltonian_cycles
from railx.vocabulary.topology import Topology
from workflow.config import read_choice


def build(name: str, **changes: Any) -> Topology:
    plain = read_choice("topology", name) | changes
    return build_topology(load(TopologySettings, plain, "topology"))


def full_topology() -> Callable[[], object]:
    return lambda: build("railx_hyperx_full")


def full_loads() -> Callable[[], object]:
    topology = build("railx_hyperx_full")
    network = StaticNetworkSettings("static", "min")
    return lambda: simulate_static(
        topology, UniformTraffic("uniform", 1.0), network, "full", seed=1
    )


def fair_rates() -> Callable[[], object]:
    """A random permutation among 10,000 chips: m = 4, n = 6, 25 x 25 nodes."""
    topology = build("railx_hyperx", m=4, n=6)
    src = np.arange(topology.chips)
    dst = np.roll(np.random.default_rng(1).permutation(topology.chips), 1)
    different = src != dst
    return lambda: max_min_rates(topology, "min", src[different], dst[different])


def decomposition() -> Callable[[], object]:
    return lambda: check_decomposition(hamiltonian_cycles(1025))


#: Each case: what it is, its limit, and what prepares it (not timed) and returns the
#: work.
CASES: dict[str, tuple[str, str, Callable[[], Callable[[], object]]]] = {
    "topology": ("Build RailX m=7, n=9, R=128: 200,704 chips", "5 s, 2 GiB", full_topology),
    "loads": ("Exact uniform channel loads of all 200,704 chips", "60 s, 8 GiB", full_loads),
    "fair_rates": (
        "Routes and max-min fair rates of a permutation among 10,000 chips",
        "",
        fair_rates,
    ),
    "decomposition": (
        "Hamiltonian decomposition for N = 1,025, and its check",
        "1 s",
        decomposition,
    ),
}


def measure(case: str) -> dict[str, float]:
    """Seconds of the work and peak memory of this process in GiB."""
    work = CASES[case][2]()
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "seconds": seconds,
        "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)} (none: all)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(f"CASE: got {', '.join(sorted(unknown))}; allowed: {', '.join(CASES)}")
    if options.measure:
        print(json.dumps(measure(options.cases[0])))
        return
    print(describe(), end="\n\n")
    print("| work | seconds (least to most) | peak memory | limit |\n|---|---|---|---|")
    for case in options.cases or CASES:
        title, limit, _ = CASES[case]
        command = [sys.executable, __file__, case, "--measure"]
        runs = [
            json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            for _ in range(options.repeats)
        ]
        seconds = [run["seconds"] for run in runs]
        peak = max(run["gib"] for run in runs)
        record(title, median(seconds), "s", clock="wall")
        record(f"{title}, peak memory", peak, "GiB", clock="memory")
        print(
            f"| {title} | {median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f}) |"
            f" {peak:.2f} GiB | {limit} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
