"""Where groups win and where pipelines: context length x devices x network.

The joint planner on one batch of GitHub-like lengths for each case, GPT-7B. Groups are
FlexSP's problem by our search, pipelines InfiniPipe's by our planner; no paper compares
them so, and nothing here is measured.

* Networks: FlexSP's table of its 64 A100, nodes of 8; the same with the bandwidth
  inside a node between nodes too ("flat"); and the exact rates of groups of a RailX of
  1,296 chips (conf/topology/railx_hyperx_m4n2).
* Constants: the fixed time of a micro-batch read as traffic of ZeRO-3 that nothing
  hides and that follows the network, which a pipeline's stage has once a batch
  ("zero3") or for every chunk ("zero3 each chunk"); or as it is published ("constant").
* Groups recompute none, half or all of the layers, whichever is fastest. Pipelines
  recompute as memory asks.

``store`` writes benchmarks/joint.csv row by row and goes on where it ended, ``store
--anew`` from the start, as a changed planner asks for; without, the stored table is
printed. All rows take five processor minutes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from batches import SEED, lengths_of
from shared import read_table, record, write_table

from railx.families import TopologySettings, build_topology
from railx.network.group_bandwidth import group_bandwidth
from railx.network.settings import BandwidthSettings
from railx.performance.cluster import ClusterSettings, with_topology
from railx.performance.decoder import ModelSettings
from railx.performance.sequence_cost import (
    CostModelSettings,
    FittedCostSettings,
    bandwidth_unit,
    build_cost_model,
)
from railx.planning.joint import JOINT, JointSettings
from railx.planning.planner import PlanningTask
from railx.planning.sequence.flexsp import FLEXSP
from railx.settings import SettingsError, load
from railx.workload.batches import FilledBatchSettings, sample_batches
from workflow.config import read_choice

STORED = Path(__file__).resolve().parent / "joint.csv"
CORPUS = "github_like"
SEQUENCES = 128
CONTEXTS = (32_000, 96_000, 192_000, 384_000)
DEVICES = (16, 32, 64)
NETWORKS = ("nodes of 8", "flat", "RailX")
EACH_CHUNK = "zero3 each chunk"
CONSTANTS = {
    "zero3": "flexsp_7b_kept_zero3",
    "constant": "flexsp_7b_kept",
    EACH_CHUNK: "flexsp_7b_kept_zero3",
}
TOPOLOGY = "railx_hyperx_m4n2"
COLUMNS = (
    "constants", "network", "devices", "context_tokens", "chosen", "joint_ms", "groups_ms",
    "groups_recompute", "pipelines_ms", "best_pipeline", "cpu_s",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One cell of the table."""

    constants: str
    network: str
    devices: int
    context: int

    @property
    def key(self) -> tuple[str, ...]:
        return self.constants, self.network, str(self.devices), str(self.context)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", nargs="?", choices=["print", "store"], default="print")
    parser.add_argument("--anew", action="store_true")
    given = parser.parse_args()
    if given.action == "store":
        _store(given.anew)
    _print()


def cases() -> Iterator[Case]:
    for constants in CONSTANTS:
        for network in NETWORKS:
            for devices in DEVICES:
                for context in CONTEXTS:
                    yield Case(constants, network, devices, context)


def _store(anew: bool) -> None:
    rows: list[dict[str, Any]] = [] if anew else [*read_table(STORED)]
    done = {tuple(row[name] for name in COLUMNS[:4]) for row in rows}
    for case in cases():
        if case.key not in done:
            rows.append(dict(zip(COLUMNS, _row(case), strict=True)))
            write_table(STORED, COLUMNS, rows)


def _row(case: Case) -> list[Any]:
    """A case planned with each number of layers that groups may recompute."""
    before = time.process_time()
    settings: Any = load(JointSettings, read_choice("planner", "joint"), "planner")
    fastest: tuple[float, int | None, PlanningTask] | None = None
    model: ModelSettings = load(ModelSettings, read_choice("model", "gpt_7b"), "model")
    for layers in (0, model.layers // 2, model.layers):
        try:
            task = _task(case, model, layers)
            alone = FLEXSP.plan(settings.sequence_parallel, task)[0].predicted_ms
        except ValueError:
            continue
        if fastest is None or alone < fastest[0]:
            fastest = alone, layers, task
    groups_ms, recomputed, task = fastest or (0.0, None, _task(case, model, model.layers))
    batch: Any
    try:
        [batch] = JOINT.plan(settings, task)
    except (SettingsError, ValueError):
        return [*case.key, "nothing fits", *[None] * 6]
    tried: Any = batch.solver["tried_ms"]
    shapes = {name: ms for name, ms in tried.items() if name != "groups"}
    best = min(shapes, key=lambda name: shapes[name], default=None)
    return [
        *case.key,
        batch.solver["chosen"],
        round(batch.predicted_ms, 1),
        round(groups_ms, 1) or None,
        recomputed,
        None if best is None else round(shapes[best], 1),
        best,
        round(time.process_time() - before, 1),
    ]


def _task(case: Case, model: ModelSettings, layers: int) -> PlanningTask:
    constants: Any = load(
        CostModelSettings, read_choice("cost_model", CONSTANTS[case.constants]), "cost_model"
    )
    constants = replace(constants, checkpoint_layers=layers)
    cluster, gather_gb_s = _network(case.network, case.devices, constants)
    if constants.sharding is not None and gather_gb_s is not None:
        constants = replace(constants, sharding=replace(constants.sharding, gb_s=gather_gb_s))
    if case.constants == EACH_CHUNK:
        sharding = replace(constants.sharding, pipelines_gather="chunk")
        constants = replace(constants, sharding=sharding)
    drawn = sample_batches(
        lengths_of(CORPUS), FilledBatchSettings(SEQUENCES, 1, case.context, "truncate"), SEED
    )
    cost = build_cost_model(constants, cluster, model, case.context)
    return PlanningTask(cost, case.context, cluster, model, constants, tuple(drawn), SEED)


def _network(
    name: str, devices: int, constants: FittedCostSettings
) -> tuple[ClusterSettings, float | None]:
    """The cluster on a network, and its gather over all devices where that is known."""
    own: ClusterSettings = load(ClusterSettings, read_choice("cluster", "a800_32"), "cluster")
    base = replace(own, name=name, devices=devices)
    if name == "RailX":
        rows = _railx_rows()
        unit = bandwidth_unit(constants)
        gathers = {
            str(size): max(
                row["gb_s"]
                for row in rows
                if (row["operation"], row["stride"], row["group_size"]) == ("all_gather", 1, size)
            )
            for size in (2, 4, 8, 16, 32, 64)
        }
        messages = [row["gb_s"] for row in rows if row["operation"] == "message"]
        cluster = with_topology(base, rows, unit)
        cluster = replace(cluster, gather_gb_s=gathers, point_to_point_gb_s=min(messages))
        return cluster, gathers[str(devices)]
    whole = {**own.all_to_all_gb_s, "64": 4.87}
    table = {degree: rate for degree, rate in whole.items() if int(degree) <= devices}
    if name == "flat":
        inside = table["8"]
        table = {degree: rate if int(degree) <= 8 else inside for degree, rate in table.items()}
        return replace(base, all_to_all_gb_s=table, point_to_point_gb_s=inside), inside
    return replace(base, all_to_all_gb_s=table), None


@cache
def _railx_rows() -> list[dict[str, Any]]:
    """Rates of groups of 64 ranks on a RailX, as stage bandwidth has them."""
    topology: Any = load(TopologySettings, read_choice("topology", TOPOLOGY), "topology")
    settings: BandwidthSettings = load(
        BandwidthSettings, read_choice("bandwidth", "default"), "bandwidth"
    )
    return group_bandwidth(build_topology(topology), settings, "balanced", TOPOLOGY)


def _print() -> None:
    """What wins in each case, and the time of the groups over that of pipelines."""
    rows = {tuple(row[name] for name in COLUMNS[:4]): row for row in read_table(STORED)}
    heads = " | ".join(f"{context // 1000}K" for context in CONTEXTS)
    print(f"| constants | network | devices | {heads} |")
    print("|" + "---|" * (3 + len(CONTEXTS)))
    for case in cases():
        if case.context == CONTEXTS[0]:
            cells = [case.constants, case.network, str(case.devices)]
        row = rows.get(case.key)
        cells.append(_cell(row))
        if row is not None and row["joint_ms"]:
            record(" ".join(map(str, case.key)), float(row["joint_ms"]), "ms", clock="none")
        if case.context == CONTEXTS[-1]:
            print(f"| {' | '.join(cells)} |")


def _cell(row: dict[str, str] | None) -> str:
    """The winner, and what it gains on the best of the other kind."""
    if row is None:
        return ""
    if not row["joint_ms"]:
        return row["chosen"]
    other = row["pipelines_ms"] if row["chosen"] == "groups" else row["groups_ms"]
    gain = f" {float(other) / float(row['joint_ms']):.2f}x" if other else " alone"
    return row["chosen"] + gain


if __name__ == "__main__":
    main()
