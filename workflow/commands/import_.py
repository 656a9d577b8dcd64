"""``railx import``: networks, traces and plans of other tools."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from railx.errors import UserError
from workflow.commands.export import written_to
from workflow.commands.shared import command, plan_of, print_facts, print_written

if TYPE_CHECKING:
    from railx.replay.recording import Price

_EPILOG = """\
examples:
  railx import topology resources/topologies/petersen.graphml --out petersen.yaml
  railx topology topology=imported topology.path=resources/topologies/petersen.graphml
  railx import chakra traces/job --out job.parquet
  railx bandwidth topology=torus_2d bandwidth.ranks=16 --out groups.parquet
  railx import chakra traces/job --bandwidth groups.parquet --out job.parquet
  railx import plan plan.json

Lists of lengths are corpora: railx corpus corpus=file corpus.path=lengths.json.
docs/exchange.md says what is read of each format and what is lost."""


def add(commands: Any) -> None:
    line = "read networks, traces and plans of other tools"
    parser = command(commands, "import", line, f"{line.capitalize()}.", _EPILOG)
    kinds = parser.add_subparsers(title="what", metavar="WHAT", required=True)
    network = command(
        kinds,
        "topology",
        "GraphML, a list of links, or a network of ASTRA-sim or InfraGraph",
        "Check a network in a file and write the settings that name it.",
        _EPILOG,
    )
    network.add_argument(
        "path", type=Path, help="the file (.graphml, .csv, .txt, .yml, .yaml, .json)"
    )
    for option, default, what in (
        ("--chips-per-node", 1, "chips of a node, consecutive in the file"),
        ("--port-gbps", 400.0, "rate of a port, and of links without one, in 10^9 bit/s"),
        ("--latency-ns", 10.0, "time of flight of links without one"),
    ):
        network.add_argument(
            option,
            type=type(default),
            default=default,
            metavar="N",
            help=f"{what} (default: {default:g})",
        )
    network.add_argument(
        "--out", type=Path, help="the settings to write, e.g. conf/topology/mine.yaml"
    )
    network.set_defaults(action=_network)
    trace = command(
        kinds,
        "chakra",
        "Chakra execution traces",
        "Read the traces of all ranks as a graph that can be replayed.",
        _EPILOG,
    )
    trace.add_argument(
        "prefix", type=Path, help="of the files PREFIX.0.et (or .json), PREFIX.1.et, ..."
    )
    trace.add_argument(
        "--groups",
        type=Path,
        help="JSON of communicator groups (default: PREFIX.groups.json or PREFIX.json)",
    )
    trace.add_argument(
        "--tflops", type=float, help="rate of computation that says num_ops and no duration"
    )
    trace.add_argument(
        "--bandwidth",
        type=Path,
        help="table of railx bandwidth --out: operations take what it says",
    )
    trace.add_argument("--out", type=Path, help="the graph to write (.parquet)")
    trace.set_defaults(action=_chakra)
    plan = command(
        kinds,
        "plan",
        "a plan as JSON",
        "Check a plan: its form, its batches, its times and, where it has one, its digest.",
        _EPILOG,
    )
    plan.add_argument("path", type=Path, help="the plan (.json)")
    plan.set_defaults(action=_plan)


def _network(options: argparse.Namespace) -> None:
    import hashlib

    import yaml

    from railx.families import TopologySettings, build_topology
    from railx.io import in_repository, write_text
    from railx.network.metrics import topology_metrics
    from railx.settings import SettingsError, load, to_dict

    plain = {
        "family": "imported",
        "path": str(options.path),
        "digest": None,
        "chips_per_node": options.chips_per_node,
        "port_gbps": options.port_gbps,
        "latency_ns": options.latency_ns,
    }
    try:
        settings: Any = load(TopologySettings, plain)
        topology = build_topology(settings)
    except SettingsError as error:
        key = error.key.removeprefix("topology.")
        name = key if key == "path" else f"--{key.replace('_', '-')}"
        raise UserError(f"{name}: {error.message}") from None
    digest = hashlib.sha256(in_repository(options.path).read_bytes()).hexdigest()
    if options.out is not None:
        if options.out.suffix != ".yaml":
            raise UserError(f"--out: got {options.out}; allowed: a file that ends in .yaml")
        with written_to(options.out):
            text = yaml.safe_dump(to_dict(settings) | {"digest": digest}, sort_keys=False)
            write_text(options.out, f"# {options.path.name}\n{text}")
    metrics = topology_metrics(topology)
    print_facts({**metrics, "digest": digest})
    print_written(options.out)


def _chakra(options: argparse.Namespace) -> None:
    import numpy as np

    from railx.exchange.graph_files import check_times, read_graphs
    from railx.replay.graph_pricing import COUNTS, DeviceRates, node_ns
    from railx.replay.graph_run import in_order_of_start, prepare_graph, replay_graph
    from railx.replay.graph_runs import TableGroups
    from railx.replay.graphs import COMPUTE, write_graph_table

    if options.tflops is not None and not options.tflops > 0:
        raise UserError(f"--tflops: got {options.tflops}; allowed: greater than 0")
    if options.out is not None and options.out.suffix != ".parquet":
        raise UserError(f"--out: got {options.out}; allowed: a file that ends in .parquet")
    network = None if options.bandwidth is None else TableGroups(_price(options.bandwidth))
    imported = read_graphs(options.prefix, options.groups)
    graphs, lost = imported.graphs, list(imported.lost)
    device = DeviceRates(options.tflops)
    check_times(imported, device)
    taken_ns = node_ns(graphs, device, network, COUNTS["published"])
    operations = graphs.columns["kind"] != COMPUTE
    untimed = int((operations & (graphs.columns["duration_ns"] < 0)).sum())
    if network is None and untimed:
        lost.append(f"{untimed} operations have no duration: they take no time")
    if not imported.issued:
        graphs, taken_ns = in_order_of_start(graphs, taken_ns, one_collective=False)
    replayed = replay_graph(prepare_graph(graphs, taken_ns))
    if options.out is not None:
        timed = replace(graphs, columns={**graphs.columns, "duration_ns": taken_ns})
        notes = {"source": options.prefix.name, "by_parallelism": imported.by_parallelism}
        with written_to(options.out):
            write_graph_table(options.out, timed, notes=notes)
    summary = {
        "ranks": graphs.ranks,
        "nodes": len(graphs),
        "operations": int(operations.sum()),
        "groups": len(np.unique(graphs.columns["group"][graphs.columns["group"] >= 0])),
        "step_ms": replayed.step_ns / 1e6,
        "fidelity": "replay",
    }
    print_facts(summary, 20)
    for line in lost:
        print(f"lost: {line}", file=sys.stderr)
    print_written(options.out)


def _plan(options: argparse.Namespace) -> None:
    from railx.planning.format.plan import sequence_lengths

    plan = plan_of(options.path, "", "a plan")
    lengths = [length for batch in plan.batches for _, length in sequence_lengths(batch)]
    summary = {
        "kind": plan.kind,
        "planner": plan.planner,
        "devices": plan.devices,
        "batches": len(plan.batches),
        "sequences": len(lengths),
        "tokens": sum(lengths),
        "predicted_ms": sum(batch.predicted_ms for batch in plan.batches),
        "predictions": plan.predictions,
    }
    print_facts(summary, 12)


def _price(path: Path) -> Price:
    """Times of operations by the analytic rows of a table of bandwidths."""
    from railx.io import read_rows, written_by
    from railx.replay.graph_pricing import price_of

    columns = {"operation", "group_size", "stride", "latency_us", "gb_s", "fidelity"}
    try:
        rows = read_rows(path)
    except (OSError, ValueError):
        rows = []
    if not rows or not columns <= set(rows[0]):
        raise UserError(f"--bandwidth: got {path}; allowed: a table of railx bandwidth --out")
    with written_by(path, "railx bandwidth --out"):
        return price_of([row for row in rows if row["fidelity"] == "analytic"])
