"""``railx export``: networks and traces as files of other tools."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from railx.errors import UserError
from workflow.commands.shared import command

if TYPE_CHECKING:
    from railx.exchange.chrome import Setting
    from railx.exchange.wires import Exported
    from railx.vocabulary.topology import Topology

_TRACE_FORMATS = ("chakra", "goal", "chrome")
_NETWORK_FORMATS = (
    *("graphml", "graphml-simple", "edges", "astra-analytical", "astra-ns3"),
    *("infragraph", "anynet"),
)
_EPILOG = """\
examples:
  railx export topology topology=torus_2d --format graphml --out torus.graphml
  railx export topology topology=torus_2d --format astra-analytical
  railx steps step=smoke --out job.parquet
  railx export trace job.parquet --format chakra --out traces/job
  railx export trace job.parquet --format chrome --setting electrical \\
    --setting provisioned:10 --out job.json

docs/exchange.md says what each format carries and what is lost."""


def add(commands: Any) -> None:
    line = "write networks and traces for other tools"
    parser = command(commands, "export", line, f"{line.capitalize()}.", _EPILOG)
    kinds = parser.add_subparsers(title="what", metavar="WHAT", required=True)
    network = command(kinds, "topology", "a network", "Write a network.", _EPILOG)
    network.add_argument(
        "chosen",
        nargs="*",
        metavar="OVERRIDE",
        help="topology=..., topology.KEY=..., or one file of `railx topology --out` (.parquet)",
    )
    network.add_argument("--format", choices=_NETWORK_FORMATS, required=True)
    network.add_argument(
        "--cycle-ns", type=float, metavar="NS", help="anynet: a cycle (default: 1 ns)"
    )
    network.add_argument("--out", type=Path, help="the file to write (default: print it)")
    network.set_defaults(action=_network)
    trace = command(
        kinds, "trace", "a trace or a generated job", "Write what ranks did or do.", _EPILOG
    )
    trace.add_argument(
        "source", type=Path, help="trace.parquet of a run, or programs (railx steps --out)"
    )
    trace.add_argument("--format", choices=_TRACE_FORMATS, required=True)
    trace.add_argument(
        "--setting",
        action="append",
        metavar="MODE[:MS]",
        help="chrome, of programs: electrical, on_demand:MS, provisioned:MS, each a process",
    )
    trace.add_argument(
        "--gpus-per-server",
        type=int,
        metavar="N",
        help="chrome, of programs: ranks of a server (default: 1)",
    )
    trace.add_argument(
        "--out",
        type=Path,
        required=True,
        help="the file to write; chakra: PREFIX of PREFIX.RANK.et and PREFIX.groups.json",
    )
    trace.set_defaults(action=_trace)


@contextmanager
def written_to(out: Path | None) -> Iterator[None]:
    """Report a folder or an error of the system in one line about ``--out``."""
    if out is not None and out.is_dir():
        raise UserError(f"--out: got {out}, a folder; allowed: a file")
    try:
        yield
    except OSError as error:
        if out is None:
            raise
        allowed = f"a place that can be written ({error.strerror})"
        raise UserError(f"--out: got {out}; allowed: {allowed}") from None


def _network(options: argparse.Namespace) -> None:
    from railx.exchange.formats import NETWORK_FORMATS, anynet

    cycle_ns = options.cycle_ns
    if cycle_ns is not None:
        _check_format("--cycle-ns", options.format, "anynet")
        if not 0 < cycle_ns < inf:
            raise UserError(f"--cycle-ns: got {cycle_ns}; allowed: greater than 0")
    topology, name = _chosen(options.chosen)
    write = NETWORK_FORMATS[options.format]
    if cycle_ns is not None:
        write = partial(anynet, cycle_ns=cycle_ns)
    write_exported(write(topology, name), options.out)


def write_exported(exported: Exported, out: Path | None) -> None:
    """Print or write the exported file and those beside it, and the losses."""
    from railx.io import write_text

    if out is None:
        print(exported.text, end="")
    else:
        beside = [(out.with_suffix(ending), text) for ending, text in exported.beside]
        with written_to(out):
            for path, text in ((out, exported.text), *beside):
                write_text(path, text)
                print(f"written: {path}")
    say_lost(exported.lost)


def _chosen(words: Sequence[str]) -> tuple[Topology, str]:
    from railx.families import build_topology, read_topology
    from railx.io import read_metadata
    from workflow.config import compose_stage

    files = [word for word in words if word.endswith(".parquet") and "=" not in word]
    if files:
        if len(words) > 1:
            raise UserError(f"got {' '.join(words)}; allowed: one file, or overrides")
        path = Path(files[0])
        if not path.is_file():
            raise UserError(f"got {path}; allowed: a file of `railx topology --out`")
        topology = read_topology(path)
        return topology, str(read_metadata(path).get("name", topology.family))
    name = next((word.partition("=")[2] for word in words if word.startswith("topology=")), "")
    topology = build_topology(compose_stage(words, ("topology",))["topology"])
    return topology, name or topology.family


def _trace(options: argparse.Namespace) -> None:
    from railx.exchange.chakra import write_chakra
    from railx.exchange.goal import write_goal
    from railx.exchange.programs import programs_of

    for option, value in (
        ("--setting", options.setting),
        ("--gpus-per-server", options.gpus_per_server),
    ):
        if value is not None:
            _check_format(option, options.format, "chrome")
    if options.format == "chrome":
        _chrome(options)
        return
    programs = programs_of(options.source)
    with written_to(options.out):
        if options.format == "goal":
            files, lost = [options.out], write_goal(options.out, programs)
        else:
            files, lost = write_chakra(options.out, programs)
    print(f"written: {files[0]}" if len(files) == 1 else f"written: {files[0]} to {files[-1].name}")
    say_lost(lost)


def _chrome(options: argparse.Namespace) -> None:
    from railx.exchange.chrome import chrome_trace, recorded, replayed
    from railx.exchange.programs import read_source
    from railx.fabric.circuits import Layout
    from railx.io import write_json
    from railx.replay.programs import Programs

    if options.out.suffix != ".json":
        raise UserError(f"--out: got {options.out}; allowed: a file that ends in .json")
    source = read_source(options.source)
    if not isinstance(source, Programs):
        if options.setting or options.gpus_per_server is not None:
            option = "--setting" if options.setting else "--gpus-per-server"
            raise UserError(f"{option}: got a trace; allowed: with programs, which are replayed")
        processes = recorded(source)
    else:
        settings = [_setting(text) for text in options.setting or ["electrical"]]
        try:
            layout = Layout(1 if options.gpus_per_server is None else options.gpus_per_server)
        except UserError as error:
            text = str(error).replace("gpus_per_server", "--gpus-per-server")
            raise UserError(text) from None
        processes = replayed(source, layout, settings)
    with written_to(options.out):
        write_json(options.out, chrome_trace(processes))
    for process in processes:
        print(f"process: {process.name} ({len(process.spans)} spans, {process.fidelity})")
    print(f"written: {options.out}")


def _check_format(option: str, got: str, ending: str) -> None:
    if got != ending:
        raise UserError(f"{option}: got it with --format {got}; allowed: with --format {ending}")


def _setting(text: str) -> Setting:
    from railx.exchange.chrome import Setting

    mode, _, latency = text.partition(":")
    try:
        latency_ms = float(latency or 0)
    except ValueError:
        latency_ms = -1.0
    if mode in ("on_demand", "provisioned") and 0 <= latency_ms < 1e9:
        return Setting("on_demand" if mode == "on_demand" else "provisioned", latency_ms)
    if mode == "electrical" and not latency:
        return Setting("electrical")
    allowed = "electrical, on_demand:MS, provisioned:MS with a latency in milliseconds"
    raise UserError(f"--setting: got {text}; allowed: {allowed}")


def say_lost(lost: Sequence[str]) -> None:
    """Print each loss of a format as a line on the error stream."""
    for line in lost:
        print(f"lost: {line}", file=sys.stderr)
