"""Speed of the replay: one FSDP training step of many GPUs, by the compiled engine.

    python benchmarks/replay.py [--repeats 3]

Prints a table. Leases end with each operation, or stay with their members until others
need the ports. Seconds are of this process's processor time. In November 2026, thousand
events and events/s (where leases stay), switch commands, and the iteration in seconds:

    2,048 GPUs, electrical       2,290   5,093               0   1.429
    2,048 GPUs, on_demand        2,309   2,951 (3,999)  15,776   1.819
    2,048 GPUs, provisioned      2,309   2,664 (3,369)  15,776   1.725
    128, graphs, electrical        192   6,616               0  10.340
    128, graphs, on_demand         192   4,842             248  10.472
    128, graphs, provisioned       192   5,181             248  10.463
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import numpy as np
from shared import compile_times, describe, first_call, record

from railx.fabric.circuits import Configuration, Layout
from railx.fabric.settings import Mode
from railx.planning.format.parts import Chunk, Pipeline, Slice
from railx.planning.format.schedule import operations
from railx.replay.graph_run import prepare_graph, replay_graph
from railx.replay.graphs import COMPUTE
from railx.replay.programs import DOES, KINDS, Programs
from railx.replay.run import prepare, replay_programs
from railx.steps.published_graphs import PublishedStep, published_graphs

#: GPUs of each job; what one is: 8 to a server (tensor parallel), 4 pipeline stages of
#: 12 layers, the rest data parallel; 8 micro-batches, weights gathered for each pass of
#: each layer, gradients reduced after the last one. Times are round numbers: what is
#: measured is the engine.
SIZES = (128, 512, 2048)
#: Modes, and whether leases stay with their members.
SETTINGS: tuple[tuple[Mode, bool], ...] = (
    ("electrical", False),
    ("on_demand", False),
    ("on_demand", True),
    ("provisioned", False),
    ("provisioned", True),
)
SERVER, STAGES, LAYERS, MICRO_BATCHES = 8, 4, 12, 8
LATENCY_NS = 10_000_000
FORWARD_NS, GATHER_NS, HOP_NS = 2_000_000, 1_500_000, 3_000_000
BEGIN, ISSUE, WAIT, END = range(4)
#: A step of a template: what it does, computation before it, channel (0: weights, 1 to
#: 4: from the stage before, to it, from the one behind, to it), kind, bytes, time.
Row = tuple[int, int, int, int, int, int]


def template(stage: int) -> list[Row]:
    """One iteration of any rank of a stage."""
    rows: list[Row] = [(BEGIN, 0, -1, -1, 0, 0)]
    gather, scatter = KINDS.index("all_gather"), KINDS.index("reduce_scatter")
    send, receive = KINDS.index("send"), KINDS.index("recv")

    def do(channel: int, kind: int, lasts_ns: int, gap_ns: int = 0, *, wait: bool = True) -> None:
        rows.append((ISSUE, gap_ns, channel, kind, 1 << 20, lasts_ns))
        if wait:
            rows.append((WAIT, 0, channel, kind, 0, 0))

    chunks = tuple(Chunk((Slice(n, 0, 1, 1),), 1.0, 2.0) for n in range(MICRO_BATCHES))
    pipeline = Pipeline(STAGES, 0, chunks)
    for op in operations(pipeline, stage):
        forward = op.kind == "forward"
        first, last = (0, STAGES - 1) if forward else (STAGES - 1, 0)
        if stage != first:
            do(1 if forward else 3, receive, HOP_NS)
        for _ in range(LAYERS):
            do(0, gather, GATHER_NS, FORWARD_NS if forward else 2 * FORWARD_NS)
            if not forward and op.chunk == MICRO_BATCHES - 1:
                do(0, scatter, 2 * GATHER_NS)
        if stage != last:
            do(4 if forward else 2, send, HOP_NS, FORWARD_NS, wait=False)
    rows.append((END, FORWARD_NS, -1, -1, 0, 0))
    return rows


def job(gpus: int, iterations: int = 1) -> Programs:
    """The programs of a job; rank = (stage * replicas + replica) * SERVER + GPU."""
    replicas = gpus // SERVER // STAGES
    channels: dict[str, int] = {}
    configurations: list[Configuration] = []
    number_of: dict[int, int] = {}

    def number(name: str, kind: Any, members: tuple[int, ...]) -> int:
        if name not in channels:
            channels[name] = len(channels)
            configuration = Configuration(kind, members)
            if configuration not in configurations[-1:]:
                configurations.append(configuration)
            number_of[channels[name]] = len(configurations) - 1
        return channels[name]

    def place(stage: int, replica: int, gpu: int) -> int:
        return (stage * replicas + replica) * SERVER + gpu

    rings = {
        (stage, gpu): number(
            f"weights {stage}.{gpu}",
            "ring",
            tuple(place(stage, replica, gpu) for replica in range(replicas)),
        )
        for stage in range(STAGES)
        for gpu in range(SERVER)
    }
    hops = {}
    for stage in range(STAGES - 1):
        for other in range(replicas * SERVER):
            low, high = stage * replicas * SERVER + other, (stage + 1) * replicas * SERVER + other
            for name in ("up", "down"):
                hops[name, low] = number(f"{low},{high}:{name}", "pair", (low, high))
    parts: dict[str, list[Any]] = {}
    for stage in range(STAGES):
        does, gap, lane, kind, size, lasts = np.array(template(stage)).T
        # The operations of a lane are numbered as they come; all ranks see them alike.
        sequence = np.full(len(does), -1)
        for own in range(5):
            issued = np.cumsum((lane == own) & (does == ISSUE))
            sequence[lane == own] = issued[lane == own] - 1
        many = {own: int(((lane == own) & (does == ISSUE)).sum()) for own in range(5)}
        for rank in range(stage * replicas * SERVER, (stage + 1) * replicas * SERVER):
            before = rank - replicas * SERVER
            own_channels = np.array(
                [
                    rings[stage, rank % SERVER],
                    hops.get(("up", before), -1),
                    hops.get(("down", before), -1),
                    hops.get(("down", rank), -1),
                    hops.get(("up", rank), -1),
                    -1,
                ]
            )
            for iteration in range(iterations):
                ahead = np.array([many[own] * iteration for own in range(5)] + [0])
                columns = {
                    "rank": np.full(len(does), rank),
                    "iteration": np.full(len(does), iteration),
                    "does": does,
                    "gap_ns": gap,
                    "channel": own_channels[lane],
                    "sequence": sequence + ahead[lane],
                    "kind": kind,
                    "bytes": size,
                    "lasts_ns": lasts,
                }
                for name, values in columns.items():
                    parts.setdefault(name, []).append(values)
    joined = {name: np.concatenate(values) for name, values in parts.items()}
    of_channel = np.array([number_of[n] for n in range(len(channels))] + [-1])
    joined["configuration"] = of_channel[joined["channel"]]
    return Programs.from_columns(joined, list(channels), configurations)


def measure(repeats: int) -> list[dict[str, Any]]:
    """Each job in each mode: events, and processor time of the median repeat."""
    rows = []
    for gpus in SIZES:
        start = time.process_time()
        programs = job(gpus)
        made = time.process_time()
        prepared = prepare(programs, Layout(SERVER))
        prepared_s = time.process_time() - made
        for mode, held in SETTINGS:
            latency_ns = 0 if mode == "electrical" else LATENCY_NS
            replay_programs(prepared, mode, latency_ns, keep_leases=held)
            seconds = []
            for _ in range(repeats):
                start = time.process_time()
                found = replay_programs(prepared, mode, latency_ns, keep_leases=held)
                seconds.append(time.process_time() - start)
            rows.append(
                {
                    "gpus": gpus,
                    "mode": f"{mode}, leases stay" if held else mode,
                    "steps": len(programs),
                    "events": found.events,
                    "commands": found.commands,
                    "seconds": median(seconds),
                    "prepared_s": prepared_s,
                    "iteration_ms": max(found.iteration_ns().values()) / 1e6,
                }
            )
    return rows


def measure_graph(repeats: int) -> list[dict[str, Any]]:
    """The same of graphs: those of a published step of 128 GPUs."""
    graph = published_graphs(PublishedStep(data=4, tensor=8, pipeline=4, layer="llama"))
    computed_ns = graph.columns["operations"] / 989e3
    lasts_ns = np.where(
        graph.columns["kind"] == COMPUTE, computed_ns, graph.columns["bytes"] / 450
    ).astype(np.int64)
    start = time.process_time()
    prepared = prepare_graph(graph, lasts_ns, Layout(SERVER))
    prepared_s = time.process_time() - start
    rows = []
    modes: tuple[Mode, ...] = ("electrical", "on_demand", "provisioned")
    for mode in modes:
        latency_ns = 0 if mode == "electrical" else LATENCY_NS
        replay_graph(prepared, mode, latency_ns)
        seconds = []
        for _ in range(repeats):
            start = time.process_time()
            found = replay_graph(prepared, mode, latency_ns)
            seconds.append(time.process_time() - start)
        rows.append(
            {
                "gpus": graph.ranks,
                "mode": f"graphs, {mode}",
                "steps": len(graph),
                "events": found.events,
                "commands": found.commands,
                "seconds": median(seconds),
                "prepared_s": prepared_s,
                "iteration_ms": found.step_ns / 1e6,
            }
        )
    return rows


def first_run() -> float:
    """Seconds until the engine is ready in this process."""
    prepared = prepare(job(SERVER * STAGES * 2), Layout(SERVER))
    return first_call(lambda: replay_programs(prepared, "on_demand", LATENCY_NS))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--first-call", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    assert DOES[:4] == ("begin", "issue", "wait", "end")
    if options.first_call:
        print(first_run())
        return
    rows = measure(options.repeats) + measure_graph(options.repeats)
    print(describe(), end="\n\n")
    print(
        "| GPUs | mode | events | thousand events/s | seconds | tables, s | switch commands |"
        " iteration, s |\n|---|---|---|---|---|---|---|---|"
    )
    for row in rows:
        name = f"{row['gpus']} GPUs, {row['mode']}"
        speed = row["events"] / row["seconds"]
        record(f"{name}, speed", speed, "events/s", better="more", clock="processor")
        record(f"{name}, iteration", row["iteration_ms"], "ms", clock="none")
        record(f"{name}, switch commands", row["commands"], "commands", clock="none")
        print(
            f"| {row['gpus']:,} | {row['mode']} | {row['events']:,} |"
            f" {row['events'] / row['seconds'] / 1e3:,.0f} | {row['seconds']:.2f} |"
            f" {row['prepared_s']:.2f} | {row['commands']:,} | {row['iteration_ms'] / 1e3:.3f} |"
        )
    cold, warm = compile_times(__file__)
    print(
        f"\nFirst call: {cold:.1f} s with an empty cache of compiled code, {warm:.2f} s with a full"
        " one."
    )


if __name__ == "__main__":
    main()
