"""What packet simulation takes as a network grows: memory and processor time by chips.

    python benchmarks/packet_sizes.py [--most-pairs 4624] [--repeats 3]

RailX of nodes of 4 x 4 chips, uniform traffic at 0.8 of the load at which the busiest
link is full, each size in a process of its own: with tables of groups of destinations,
and up to ``--most-pairs`` chips with tables over all pairs, which must give the same
run. Every size runs as many cycles as make the same cycles times chips. Seconds are of
processor time, the least of the repeats; with a full cache of compiled code (a first
run fills it). Prints a table. In November 2026, chips, peak memory in GiB, seconds
before the first cycle, ms per cycle, million flit-hops/s, and GiB and million
flit-hops/s with tables over all pairs:

       400  0.21  0.5   0.02  55.8  0.21  58.5
     1,296  0.22  0.7   0.26  28.0  0.23  23.8
     2,704  0.24  0.8   1.03  20.6  0.30  20.9
     4,624  0.28  0.9   2.60  17.3  0.43  12.6
     7,056  0.29  1.4   8.73   9.1
    10,000  0.31  2.1  17.63   7.1
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared import describe, record

from railx.families import TopologySettings, build_routing, build_topology
from railx.network.packets import engine
from railx.network.packets.layout import build_net, build_state
from railx.network.packets.simulate import run_until
from railx.network.settings import PacketNetworkSettings, UniformTraffic
from railx.network.throughput import uniform_lane_loads
from railx.settings import load
from workflow.config import read_choice

#: Ports on a side of a chip; nodes of 4 x 4 chips make (4 n + 1)^2 nodes of them.
PORTS = (1, 2, 3, 4, 5, 6)
#: Of the load at which the busiest link is full.
OFFERED = 0.8
#: Cycles times chips of a run.
CHIP_CYCLES = 1_000_000


def run(ports: int, repeats: int, *, grouped: bool) -> dict[str, Any]:
    """One size: its table, processor time and peak memory of this process."""
    start = time.process_time()
    plain = read_choice("topology", "railx_hyperx_m4n2") | {"n": ports}
    topology = build_topology(load(TopologySettings, plain, "topology"))
    cycles = CHIP_CYCLES // topology.chips
    window = {"warmup_cycles": 0, "measured_cycles": cycles}
    model = read_choice("network", "packet") | window
    network: PacketNetworkSettings = load(PacketNetworkSettings, model, "network")
    table = build_routing(topology, network.routing, grouped=grouped)
    width = topology.links.gbps / topology.settings.port_gbps
    offered = OFFERED * float((width / uniform_lane_loads(topology, network.routing)).min())
    net = build_net(topology, table, UniformTraffic("uniform", offered), network, 1)
    state = build_state(topology, table, net, network, 1)
    engine.advance(net, state, 0)
    before = time.process_time() - start
    took = []
    for _ in range(repeats):
        del state
        state = build_state(topology, table, net, network, 1)
        begin = time.process_time()
        state = run_until(net, state, cycles)
        took.append(time.process_time() - begin)
    simulated = min(took)
    hops = int(state.counters[engine.HOPS_DONE])
    return {
        "chips": topology.chips,
        "table_mib": net.entry.nbytes / 2**20,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "before_s": before,
        "ms_per_cycle": 1e3 * simulated / cycles,
        "flit_hops_per_second": hops * network.packet_flits / simulated,
        "counters": state.counters.tolist(),
    }


def measured(ports: int, repeats: int, *, grouped: bool) -> dict[str, Any]:
    """:func:`run` in a process of its own."""
    one = [str(ports), str(repeats), "groups" if grouped else "pairs"]
    done = subprocess.run(
        [sys.executable, __file__, "--one", *one], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--most-pairs", type=int, default=4624, help="chips (default: 4624)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        ports, repeats, kind = options.one
        print(json.dumps(run(int(ports), int(repeats), grouped=kind == "groups")))
        return
    print(describe(), end="\n\n")
    print(
        "| chips | table | MiB | peak memory, GiB | before the first cycle, s | ms per cycle |"
        " million flit-hops/s |\n|---|---|---|---|---|---|---|"
    )
    for ports in PORTS:
        chips = (4 * (4 * ports + 1)) ** 2
        kinds = (True, False) if chips <= options.most_pairs else (True,)
        found = [measured(ports, options.repeats, grouped=grouped) for grouped in kinds]
        if any(one["counters"] != found[0]["counters"] for one in found):
            raise SystemExit(f"error: {chips} chips: the two tables do not give the same run")
        for grouped, one in zip(kinds, found, strict=True):
            name = f"{chips:,} chips, {'groups' if grouped else 'all pairs'}"
            record(f"{name}, peak", one["peak_gib"], "GiB", clock="memory")
            record(f"{name}, a cycle", one["ms_per_cycle"], "ms", clock="processor")
            print(
                f"| {chips:,} | {'groups' if grouped else 'all pairs'} | {one['table_mib']:.1f} |"
                f" {one['peak_gib']:.2f} | {one['before_s']:.1f} | {one['ms_per_cycle']:.2f} |"
                f" {one['flit_hops_per_second'] / 1e6:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
