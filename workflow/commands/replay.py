"""``railx replay``: how long a recorded or generated job takes on other networks."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from railx.errors import UserError, allowed_names
from railx.fabric.settings import Mode
from workflow.commands.export import written_to
from workflow.commands.shared import add_flag, command, print_json, topologies_like

if TYPE_CHECKING:
    from railx.replay.graph_runs import GraphRow, ReplayedNetwork

_TWO_LEVEL = "two_level"
_EPILOG = """\
examples:
  railx replay traces/job --groups groups.json --network fat_tree railx_hyperx opus_rails \\
    --mode electrical on_demand provisioned --latency-ms 10 100 --tflops 989 --memory-gb-s 4800
  railx replay traces/job --network two_level --server 8 --scale-up-gb-s 450 \\
    --scale-out-gb-s 50 --json
  railx replay traces/job --symmetric dp=8,tp=4 --network network.yml --server 4

Traces: PREFIX.RANK.et or .json (Chakra), PREFIX.RANK.json with PREFIX.RANK.kineto.json
(PyTorch), FILE.goal, FILE.parquet (railx import chakra --out, railx steps --out, a run).
Networks: two_level, a choice of conf/topology, a file of ASTRA-sim (.yml, .json), InfraGraph
(.yaml), GraphML or links, settings of a topology (.yaml).
docs/exchange.md says what is read of each format."""


def add(commands: Any) -> None:
    line = "how long a recorded job takes on other networks"
    parser = command(commands, "replay", line, f"{line.capitalize()}.", _EPILOG)
    parser.add_argument("trace", type=Path, help="PREFIX of the files of the ranks, or a file")
    parser.add_argument("--groups", type=Path, help="JSON of communicator groups")
    parser.add_argument(
        "--symmetric",
        metavar="AXES",
        help="degrees of a job whose rank 0 stands for all: dp=8,tp=4",
    )
    parser.add_argument("--network", nargs="+", required=True, help="networks, by name or file")
    parser.add_argument(
        "--mode", nargs="+", choices=get_args(Mode), default=["electrical"], help="of rails"
    )
    parser.add_argument(
        "--latency-ms", nargs="+", type=float, default=[0.0], help="reconfiguration latencies"
    )
    for option, what in (
        ("--scale-up-gb-s", "two_level: rate of a rank inside a server"),
        ("--scale-out-gb-s", "two_level: rate of a rank between servers"),
        ("--latency-ns", "two_level: latency of a hop of a ring (default: 0)"),
        ("--tflops", "peak of a rank, for computation without a measured time"),
        ("--memory-gb-s", "rate of its memory"),
    ):
        parser.add_argument(option, type=float, metavar="N", help=what)
    parser.add_argument(
        "--server", type=int, metavar="N", help="ranks of a server (default: the network's)"
    )
    parser.add_argument(
        "--counts",
        choices=("published", "hardware"),
        default="published",
        help="what a count of a trace means: itself, or two operations and two bytes",
    )
    parser.add_argument(
        "--placement",
        choices=("consecutive", "traffic"),
        help="servers of consecutive ranks, or of the busiest groups that fit (default: traffic"
        " for traces of symbolic_tensor_graph, which numbers ranks by parallelism)",
    )
    parser.add_argument(
        "--collectives",
        choices=("one", "one_of_each_group"),
        default="one",
        help="how many a rank carries out at a time (default: one)",
    )
    add_flag(parser, "--json", "print one JSON object, units in the key names")
    parser.add_argument(
        "--out",
        type=Path,
        help="trace for Perfetto (default: NAME.perfetto.json here; --json: none)",
    )
    parser.set_defaults(action=_replay)


def _replay(options: argparse.Namespace) -> None:
    from railx.exchange.graph_files import check_times, read_graphs
    from railx.exchange.rank_nodes import Axes
    from railx.replay.graph_pricing import COUNTS, DeviceRates
    from railx.replay.graph_runs import graph_rows

    _check(options)
    networks = [_network(name, options) for name in options.network]
    axes = None if options.symmetric is None else Axes.of_text(options.symmetric)
    imported = read_graphs(options.trace, options.groups, symmetric=axes)
    device = DeviceRates(options.tflops, options.memory_gb_s)
    check_times(imported, device)
    rows = list(
        graph_rows(
            imported.graphs,
            networks,
            options.mode,
            options.latency_ms,
            device=device,
            counts=COUNTS[options.counts],
            server=options.server,
            one_collective=options.collectives == "one",
            issued=imported.issued,
            by_traffic=options.placement == "traffic"
            or (options.placement is None and imported.by_parallelism),
        )
    )
    out = options.out
    if out is None and not options.json:
        out = Path(f"{options.trace.name}.perfetto.json")
    if out is not None:
        _write(out, rows)
    for line in imported.lost:
        print(f"lost: {line}", file=sys.stderr)
    figures = [row.as_dict() for row in rows]
    if options.json:
        alone = figures[0] if len(figures) == 1 else {}
        print_json({**alone, "replays": figures})
        return
    print("\n".join(_table(figures)))
    print(f"\nranks: {figures[0]['placement']} in servers")
    print(f"written: {out}")


def _check(options: argparse.Namespace) -> None:
    positive = ("scale_up_gb_s", "scale_out_gb_s", "tflops", "memory_gb_s", "server")
    for name in (*positive, "latency_ns"):
        value, option = getattr(options, name), f"--{name.replace('_', '-')}"
        if value is not None and not (
            0 < value < float("inf") or (value == 0 and name not in positive)
        ):
            bound = "above 0" if name in positive else "from 0 up"
            raise UserError(f"{option}: got {value:g}; allowed: a number {bound}")
    for value in options.latency_ms:
        if not 0 <= value < float("inf"):
            raise UserError(f"--latency-ms: got {value:g}; allowed: numbers from 0 up")


def _network(name: str, options: argparse.Namespace) -> ReplayedNetwork:
    from railx.replay.graph_runs import FamilyNetwork, TwoRates
    from workflow.mounts import choices

    if name == _TWO_LEVEL:
        keys = ("server", "scale_up_gb_s", "scale_out_gb_s")
        server, scale_up, scale_out = (getattr(options, key) for key in keys)
        if server is None or scale_up is None or scale_out is None:
            missing = next(key for key in keys if getattr(options, key) is None)
            got = f"--{missing.replace('_', '-')}: got none"
            raise UserError(f"{got}; allowed with two_level: a number above 0")
        return TwoRates(name, server, scale_up, scale_out, options.latency_ns or 0.0)
    if name in choices("topology"):
        settings, *others = (
            _with_servers(alike, options.server) for alike in topologies_like(name)
        )
        return FamilyNetwork(name, settings, tuple(others))
    path = Path(name)
    if not path.suffix:
        allowed = allowed_names(name, (_TWO_LEVEL, *choices("topology")))
        raise UserError(f"--network: got {name}; allowed: a file, or {allowed}")
    return FamilyNetwork(name, _with_servers(_from_file(path, options.server), options.server))


def _with_servers(settings: Any, server: int | None) -> Any:
    if server is None or not hasattr(settings, "chips_per_server"):
        return settings
    return replace(settings, chips_per_server=server)


def _from_file(path: Path, server: int | None) -> Any:
    """The settings in a file, or those that name the network in it."""
    import yaml

    from railx.families import TopologySettings, check_topology
    from railx.settings import SettingsError, load

    plain: Any = None
    if path.suffix in (".yaml", ".yml") and path.is_file():
        with suppress(yaml.YAMLError, UnicodeDecodeError, RecursionError):
            plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(plain, dict) or "family" not in plain:
        plain = {"family": "imported", "path": str(path), "chips_per_node": server or 1}
    try:
        settings: Any = load(TopologySettings, plain)
        check_topology(settings)
    except SettingsError as error:
        raise UserError(f"--network: got {path}: {error}") from None
    return settings


def _table(rows: list[dict[str, Any]]) -> list[str]:
    from railx.text import aligned, in_digits

    kinds = list(dict.fromkeys(kind for row in rows for kind in row["exposed_ms"]))
    heads = [key for key in rows[0] if key not in ("exposed_ms", "fidelity", "rank", "placement")]
    at = heads.index("waiting_ms")
    names = [*heads[:at], *(f"{kind}_ms" for kind in kinds), *heads[at:], "fidelity"]
    cells = [
        [
            in_digits(row[name] if name in row else row["exposed_ms"].get(name[:-3], 0.0))
            for name in names
        ]
        for row in rows
    ]
    return aligned([names, *cells])


def _write(out: Path, rows: list[GraphRow]) -> None:
    from railx.exchange.chrome import chrome_trace, replayed_graphs
    from railx.io import write_text

    with written_to(out):
        write_text(out, json.dumps(chrome_trace(replayed_graphs(rows))))
