"""Live iterations under emulated switching, and what the replay of the electrical one
says of them.

    python benchmarks/replay_live.py [--repeats 10] [--busy]

Four ranks go through the process group ``railx``, a controller and an emulated switch:
two stages of two replicas, pipeline messages and data-parallel rings in turn. A timed
sleep stands where a GPU computes, so that the ranks use less processor than there is
(how much is printed). Settings take turns: each repeat runs all of them once. The
electrical iteration of each repeat is recorded, and its replay gives the other rows.

Two times are measured on the run on demand at 0 ms, and on nothing else: what a switch
command takes more than its latency (the controller's account of stalls), and what a
message to the controller or back takes (what the run is longer than the electrical one,
less the commands). The replay charges both. That run is not judged; all others are.

``--busy``: ranks compute on the processor for as long instead. With more ranks than
cores they slow one another, and less so while others wait for light, which no recording
tells: that is shown and not judged.
Prints tables. In November 2026, at a load of 11 to 15 and real-time priority (``chrt -r
1``), iterations live and replayed in ms; stalls agreed within 1.0 ms:

    on_demand      10 ms   414.6   411.8  -0.7 %
    on_demand      50 ms   734.0   731.8  -0.3 %
    on_demand     200 ms  1934.4  1931.8  -0.1 %
    provisioned     0 ms   323.9   324.7  +0.3 %
    provisioned    10 ms   347.4   344.5  -0.8 %
    provisioned    50 ms   587.5   585.0  -0.4 %
    provisioned   200 ms  1789.5  1785.0  -0.3 %
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from shared import describe, record

from railx.fabric import CircuitSchedule, FabricSettings, launch_controller
from railx.fabric.circuits import Layout
from railx.fabric.settings import Mode
from railx.io import read_rows
from railx.replay.recording import recorded_programs
from railx.replay.run import Prepared, prepare, replay_programs

RANKS, STAGES = 4, 2
#: Iterations of a setting in a repeat; the last one counts. The first finds the
#: circuits of no iteration before.
ITERATIONS = 2
#: Seconds: the pass of a micro-batch, and between the collectives of a pass.
PASS_S, BETWEEN_S = 0.03, 0.005
MICRO_BATCHES, COLLECTIVES = 2, 3
LATENCIES_MS = (0.0, 10.0, 50.0, 200.0)
SETTINGS: tuple[tuple[Mode, float], ...] = (
    ("electrical", 0.0),
    *(("on_demand", latency_ms) for latency_ms in LATENCIES_MS),
    *(("provisioned", latency_ms) for latency_ms in LATENCIES_MS),
)
GOAL = 0.05
#: No message takes longer.
_LONGEST_NS = 50_000_000


def on_processor(seconds: float) -> None:
    """Compute for so long of this thread's processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))


def iteration(
    dist: Any, rank: int, whole: Any, ring: Any, tensor: Any, compute: Callable[[float], None]
) -> None:
    """All micro-batches forward through both stages, then backward; all-reduces among
    the replicas in each pass.
    """
    stage, peer = rank // STAGES, (rank + STAGES) % RANKS
    for backward in (False, True):
        first = stage == int(backward)
        for _ in range(MICRO_BATCHES):
            if not first:
                dist.recv(tensor, src=peer, group=whole)
            compute(PASS_S)
            for _ in range(COLLECTIVES):
                dist.all_reduce(tensor, group=ring)
                compute(BETWEEN_S)
            if first:
                dist.send(tensor, dst=peer, group=whole)
    compute(PASS_S)


def be_rank(
    rank: int, folder: Path, repeats: int, addresses: list[str | None], *, busy: bool
) -> None:
    """One rank: writes a row for each repeat and setting, and its electrical traces."""
    import pyarrow.parquet as pq
    import torch
    import torch.distributed as dist

    from railx_torch import backend
    from railx_torch.trace import Recorder

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    rows, schedule = [], CircuitSchedule({})
    compute = on_processor if busy else time.sleep
    for repeat in range(repeats):
        for (mode, latency_ms), address in zip(SETTINGS, addresses, strict=True):
            recorder = Recorder(rank)
            backend.configure(backend.BackendOptions("gloo", address, mode, 1), recorder)
            whole = dist.new_group(backend="railx")
            rings = [dist.new_group([0, 1], backend="railx")]
            rings.append(dist.new_group([2, 3], backend="railx"))
            if mode == "provisioned":
                backend.use_schedule(schedule)
            tensor = torch.ones(1024)
            for number in range(ITERATIONS):
                tensor.fill_(1.0)
                dist.barrier()
                backend.reset_statistics()
                busy_ns = time.process_time_ns()
                backend.begin_iteration(number)
                iteration(dist, rank, whole, rings[rank // STAGES], tensor, compute)
                lasted_ns = backend.end_iteration()
                busy_ns = time.process_time_ns() - busy_ns
            counts = backend.statistics()
            rows.append(
                {
                    "repeat": repeat,
                    "mode": mode,
                    "latency_ms": latency_ms,
                    "lasted_ns": lasted_ns,
                    "busy_ns": busy_ns,
                    "stall_ns": counts.stall_ns,
                    "requests": counts.requests,
                    "changes": counts.reconfigurations,
                }
            )
            if mode == "electrical":
                schedule = backend.recorded_schedule()
                pq.write_table(recorder.table(), folder / f"trace.{repeat}.{rank}.parquet")
            # Nobody leaves while others still talk to the controller.
            dist.barrier()
            for group in (*rings, whole):
                if group is not dist.GroupMember.NON_GROUP_MEMBER:
                    dist.destroy_process_group(group)
    (folder / f"{rank}.json").write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def run(folder: Path, repeats: int, *, busy: bool) -> list[list[dict[str, Any]]]:
    """The rows of each rank."""
    with contextlib.ExitStack() as stack:
        addresses = [
            stack.enter_context(
                launch_controller(FabricSettings(1, "127.0.0.1", 0, 60, mode, latency_ms), RANKS)
            ).address
            for mode, latency_ms in SETTINGS
        ]
        arguments = [str(folder), str(repeats), json.dumps(addresses)]
        arguments += ["--busy"] * busy
        ranks = [
            subprocess.Popen([sys.executable, __file__, "--rank", str(rank), *arguments])
            for rank in range(RANKS)
        ]
        try:
            # All of them: nobody is left behind.
            if sum(rank.wait() != 0 for rank in ranks):
                raise SystemExit("a rank failed")
        finally:
            for rank in ranks:
                rank.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def slowest(live: list[list[dict[str, Any]]], field: str, mode: Mode, at_ms: float) -> list[float]:
    """The largest value of the ranks in each repeat, in the order of repeats."""
    kept = [
        [row[field] for row in rank if (row["mode"], row["latency_ms"]) == (mode, at_ms)]
        for rank in live
    ]
    return [max(values) for values in zip(*kept, strict=True)]


class Replays:
    """The recorded electrical iterations, replayed."""

    def __init__(self, folder: Path, repeats: int) -> None:
        self._programs: list[Prepared] = [
            prepare(
                recorded_programs(
                    row
                    for rank in range(RANKS)
                    for row in read_rows(folder / f"trace.{repeat}.{rank}.parquet")
                ),
                Layout(1),
            )
            for repeat in range(repeats)
        ]

    def last(self, mode: Mode, latency_ns: int, message_ns: int) -> list[dict[str, int]]:
        """The slowest rank's numbers in the last iteration, for each recording."""
        found = []
        for prepared in self._programs:
            table = replay_programs(
                prepared, mode, latency_ns, keep_leases=True, message_ns=message_ns
            ).table
            last = table["iteration"] == ITERATIONS - 1
            columns = {**table, "duration_ns": table["end_ns"] - table["begin_ns"]}
            found.append({name: int(values[last].max()) for name, values in columns.items()})
        return found

    def median_ns(self, mode: Mode, latency_ns: int, message_ns: int) -> float:
        """The iteration of the slowest rank."""
        found = self.last(mode, latency_ns, message_ns)
        return median(item["duration_ns"] for item in found)


def message_time(replays: Replays, command_ns: int, wanted_ns: float) -> int:
    """The time of a message with which the replay on demand at 0 ms takes so long."""
    low_ns, high_ns = -1, _LONGEST_NS
    while high_ns - low_ns > 1:
        middle_ns = (low_ns + high_ns) // 2
        if replays.median_ns("on_demand", command_ns, middle_ns) < wanted_ns:
            low_ns = middle_ns
        else:
            high_ns = middle_ns
    return high_ns


def report(taken: dict[str, Any], replays: Replays) -> None:
    """Print what was taken, what it was taken on, and the table."""
    live: list[list[dict[str, Any]]] = taken["ranks"]
    crowded = taken["busy"] and len(os.sched_getaffinity(0)) < RANKS
    at_0 = median(slowest(live, "lasted_ns", "on_demand", 0.0))
    commands = [row for rank in live for row in rank if row["mode"] == "on_demand"]
    commands = [row for row in commands if row["latency_ms"] == 0 and row["changes"]]
    command_ns = round(median(row["stall_ns"] / row["changes"] for row in commands))
    free_ns = replays.median_ns("on_demand", command_ns, 0)
    message_ns = message_time(replays, command_ns, at_0)
    electrical = [value / 1e6 for value in slowest(live, "lasted_ns", "electrical", 0.0)]
    low, _, high = quantiles(electrical, n=4)
    wall_ns = sum(sum(slowest(live, "lasted_ns", *setting)) for setting in SETTINGS)
    own = [
        abs(item["duration_ns"] / 1e6 / lasted - 1)
        for item, lasted in zip(replays.last("electrical", 0, 0), electrical, strict=True)
    ]
    used = sum(row["busy_ns"] for rank in live for row in rank) / wall_ns
    print(taken["machine"], end="\n\n")
    print(
        f"The ranks used {used:.2f} processors while they ran. The electrical iteration took"
        f" {median(electrical):.1f} ms, quartiles {low:.1f} and {high:.1f}; its"
        f" replay differs by at most {max(own):.2%} in any repeat.\n"
        f"Measured on demand at 0 ms: a switch command {command_ns / 1e6:.2f} ms more than its"
        f" latency; {(at_0 - free_ns) / 1e6:+.1f} ms of an iteration for messages,"
        f" {f'{message_ns / 1e6:.2f} ms each' if at_0 > free_ns else 'so none is told'}.",
        end="\n\n",
    )
    print(
        "| mode | latency, ms | live, ms (quartiles) | replay, ms | error | replay without the two"
        " times, ms | error | stall live, ms | stall replay, ms | changes, live and replay |\n"
        "|---|---|---|---|---|---|---|---|---|---|"
    )
    worst = 0.0
    for mode, latency_ms in SETTINGS:
        lasted = [value / 1e6 for value in slowest(live, "lasted_ns", mode, latency_ms)]
        optical = mode != "electrical"
        bare_ns = round(latency_ms * 1e6)
        found = replays.last(mode, bare_ns + command_ns * optical, message_ns * optical)
        ours = median(item["duration_ns"] for item in found) / 1e6
        bare = replays.median_ns(mode, bare_ns, 0) / 1e6
        low, middle, high = quantiles(lasted, n=4)
        judged = not crowded and (mode, latency_ms) != ("on_demand", 0.0)
        if judged:
            record(f"{mode}, {latency_ms:g} ms, error", abs(ours / middle - 1), "", clock="wall")
        record(f"{mode}, {latency_ms:g} ms, live", middle, "ms", clock="wall")
        if judged:
            worst = max(worst, abs(ours / middle - 1))
        stall = median(slowest(live, "stall_ns", mode, latency_ms)) / 1e6
        stall_ours = median(item["stall_ns"] for item in found) / 1e6
        changes = median(slowest(live, "changes", mode, latency_ms))
        changes_ours = median(item["reconfigurations"] for item in found)
        error = f"{100 * (ours / middle - 1):+.1f} %" + ("" if judged else ", not judged")
        print(
            f"| {mode} | {latency_ms:g} | {middle:.1f} ({low:.1f} to {high:.1f}) | {ours:.1f} |"
            f" {error} | {bare:.1f} | {100 * (bare / middle - 1):+.1f} % | {stall:.1f} |"
            f" {stall_ours:.1f} | {changes:g}, {changes_ours:g} |"
        )
    if crowded:
        return
    met = "met" if worst <= GOAL else "not met"
    print(f"\nGoal of {GOAL:.0%}: {met}, at most {worst:.1%}.")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--busy", action="store_true", help="ranks compute on the processor")
    parser.add_argument("--again", action="store_true", help="the tables of what was kept")
    parser.add_argument("--keep", type=Path, help="a folder for rows and traces")
    parser.add_argument("--rank", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank, folder, repeats, addresses = options.rank
        known = json.loads(addresses)
        be_rank(int(rank), Path(folder), int(repeats), known, busy=options.busy)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        if not options.again:
            before = os.getloadavg()[0]
            rows = run(folder, options.repeats, busy=options.busy)
            load = f"load average before {before:.1f}, after {os.getloadavg()[0]:.1f}"
            taken = {"machine": f"{describe()}; {load}", "busy": options.busy, "ranks": rows}
            (folder / "live.json").write_text(json.dumps(taken))
        taken = json.loads((folder / "live.json").read_text())
        report(taken, Replays(folder, options.repeats))


if __name__ == "__main__":
    main()
