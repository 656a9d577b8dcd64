"""Stage seeds: some of the seeds of a sweep as a job of their own.

Stage packets merges the shards of a sweep; it simulates itself where a sweep is
in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator

from workflow.outputs import Json, Table, columns
from workflow.stage import Config, Item, Job, Stage, Summary
from workflow.stages.packets import WINDOW, needs, simulated


def run(job: Job) -> Summary:
    """Sweep the loads under the seeds of the shard; return the number of runs."""
    from railx.network.packets import shard_of
    from railx.network.packets.seed_sweeps import sweep_seeds
    from railx.network.settings import SweepSettings
    from railx.network.traffic import repeat_seeds
    from railx.settings import load

    seed, (name, shard) = job.settings["seed"], _sweep_of(job.item)
    sweep: SweepSettings = load(SweepSettings, job.settings["sweep"], f"sweeps.{name}")
    seeds = shard_of(repeat_seeds(seed, sweep.repeats), shard, sweep.shards)
    sweeps = sweep_seeds(job.file("topology"), sweep, seed, seeds)
    job.write_table("rows", (row for sweep in sweeps for row in sweep.rows))
    job.write_json("summaries", [sweep.summary for sweep in sweeps])
    runs = [speed for sweep in sweeps for speed in sweep.speed]
    threads = sweep.network.threads
    job.write_json("speed", {"fidelity": "measured_cpu", "threads": threads, "runs": runs})
    return {"shard": job.item, "seeds": len(seeds), "runs": len(runs)}


def _shards(experiment: Config) -> Iterator[str]:
    for name, sweep in experiment["sweeps"].items():
        if sweep["shards"] > 1:
            yield from (f"{name}-{shard + 1}" for shard in range(sweep["shards"]))


def _sweep_of(shard: str) -> tuple[str, int]:
    """The sweep of a shard, and its place among them from 0."""
    name, _, number = shard.rpartition("-")
    return name, int(number) - 1


STAGE = Stage(
    name="seeds",
    help="some of the seeds of a packet sweep",
    message="Packets of {item}",
    item=Item("shard", _shards),
    settings=lambda experiment, shard: {
        "sweep": experiment["sweeps"][_sweep_of(shard)[0]],
        "seed": experiment["seed"],
    },
    needs=lambda experiment, shard: needs(experiment["sweeps"][_sweep_of(shard)[0]]),
    inputs=lambda experiment, shard: simulated(experiment["sweeps"][_sweep_of(shard)[0]]),
    outputs={
        "rows": Table(WINDOW | columns("flag saturated"), claims=False),
        "summaries": Json(claims=False),  # of each seed
        # what this machine took; the stage that puts shards together does not read it
        "speed": Json(claims=False),
    },
    run=run,
)
