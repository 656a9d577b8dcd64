"""``railx STAGE``: any stage by hand, with the same configs as the pipeline."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from railx import __version__
from railx.mapping import MappingSettings
from railx.network import PacketNetworkSettings
from workflow.config import choices, compose_stage

__all__ = ["STAGES", "main"]

Summary = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """A stage of the command line: the config groups that it reads and what it does
    with them.
    """

    help: str
    groups: tuple[str, ...]
    example: str
    out: str
    primary: str
    run: Callable[[Mapping[str, Any], Path | None], Summary]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 0, or 2 with one line on standard error."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.action(options))
    except BrokenPipeError:
        # Whoever read our output has seen enough (`railx ... | head`); nothing is left
        # to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="railx",
        description=(
            "Run one stage of the reproduction by hand, with the same configs as the pipeline."
        ),
        epilog=f"example:\n  {STAGES['topology'].example}\n\nthe whole pipeline:\n  make reproduce",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"railx-lab {__version__}")
    commands = parser.add_subparsers(title="stages", metavar="STAGE", required=True)
    for name, stage in STAGES.items():
        command = commands.add_parser(
            name,
            help=stage.help,
            description=stage.help,
            epilog=_epilog(stage),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument(
            "overrides",
            nargs="*",
            metavar="OVERRIDE",
            help="Hydra override, e.g. group=choice or group.key=value",
        )
        command.add_argument("--out", type=Path, help=stage.out)
        command.add_argument(
            "--json", action="store_true", help="print one JSON object, units in the key names"
        )
        command.set_defaults(action=_run_stage, stage=stage)
    compare = commands.add_parser(
        "compare",
        help="compare two tracked invocations of the pipeline, with no network",
        description=(
            "Compare the numbers of two tracked invocations of the pipeline, from the MLflow store"
            " under results/."
        ),
        epilog="example:\n  railx compare previous latest --experiment quick",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    compare.add_argument(
        "first", nargs="?", default="previous", help="an invocation, or previous (default)"
    )
    compare.add_argument(
        "second", nargs="?", default="latest", help="an invocation, or latest (default)"
    )
    compare.add_argument(
        "--experiment", help="the experiment (default: the one that was tracked last)"
    )
    compare.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        help="the results folder (default: results)",
    )
    compare.add_argument("--changed", action="store_true", help="only the numbers that differ")
    compare.add_argument("--json", action="store_true", help="print a JSON list of rows")
    compare.set_defaults(action=_compare)
    return parser


def _epilog(stage: Stage) -> str:
    lines = ["example:", f"  {stage.example}", "", "config groups:"]
    for group in stage.groups:
        files = ", ".join(choices(group))
        lines.append(f"  {group}={files}" if files else f"  {group}=VALUE")
    return "\n".join(lines)


def _run_stage(options: argparse.Namespace) -> int:
    stage: Stage = options.stage
    settings = compose_stage(options.overrides, stage.groups, stage.primary)
    # What a library prints belongs beside the result, not into it.
    with redirect_stdout(sys.stderr):
        summary = stage.run(settings, options.out)
    if options.json:
        print(json.dumps(summary, indent=2, allow_nan=False))
        return 0
    width = max(len(key) for key in summary)
    for key, value in summary.items():
        print(f"{key:<{width}}  {_words(value)}")
    if options.out is not None:
        print(f"\nwritten: {options.out}")
    return 0


def _words(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)


def _compare(options: argparse.Namespace) -> int:
    from railx.tracking import compare_runs, list_invocations

    # Two experiments have little in common: previous and latest are those of the one
    # that ran last.
    experiment = options.experiment or list_invocations(options.results)[-1]["experiment"]
    rows = compare_runs(options.results, options.first, options.second, experiment)
    if options.changed:
        rows = [row for row in rows if row["a"] != row["b"]]
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.4f}"
        name = f"{row['stage']}/{row['name']}"
        print(
            f"{name:<36} {row['metric']:<48} {_words(row['a']):>16} {_words(row['b']):>16}"
            f" {ratio:>9}"
        )
    return 0


def _topology(settings: Mapping[str, Any], out: Path | None) -> Summary:
    from workflow.stages import topology

    return topology.run(settings["topology"], topology_path=out)


def _circuits(settings: Mapping[str, Any], out: Path | None) -> Summary:
    from workflow.stages import circuits

    if out is not None and out.suffix not in (".json", ".csv"):
        raise ValueError(f"--out: got {out}; allowed: a file that ends in .json or .csv")
    as_csv = out is not None and out.suffix == ".csv"
    return circuits.run(
        topology=settings["topology"], **{"csv_path" if as_csv else "circuits_path": out}
    )


def _simulate(settings: Mapping[str, Any], out: Path | None) -> Summary:
    if isinstance(settings["network"], PacketNetworkSettings):
        from workflow.stages import packets

        return packets.run(
            settings["traffic"],
            settings["network"],
            seed=settings["seed"],
            name=settings["topology"].family,
            topology=settings["topology"],
            packets_path=out,
        )
    from workflow.stages import simulate

    networks = {"network": settings["network"]}
    return simulate.run(
        settings["traffic"],
        networks,
        settings["collective"],
        seed=settings["seed"],
        name=settings["topology"].family,
        topology=settings["topology"],
        network_path=out,
    )


def _mapping(settings: Mapping[str, Any], out: Path | None) -> Summary:
    from workflow.stages import mapping

    own: MappingSettings = settings["mapping"]
    return mapping.run(own, name=own.reference, topology=settings["topology"], steps_path=out)


def _tenancy(settings: Mapping[str, Any], out: Path | None) -> Summary:
    from workflow.stages import tenancy

    return tenancy.run(settings["tenancy"], settings["seed"], utilisation_path=out)


def _cost(settings: Mapping[str, Any], out: Path | None) -> Summary:
    from workflow.stages import cost

    return cost.run(settings["economics"], bill_path=out)


def _corpus(settings: Mapping[str, Any], out: Path | None) -> Summary:
    from workflow.stages import corpus

    return corpus.run(settings["corpus"], seed=settings["seed"], corpus_path=out)


def _plan(settings: Mapping[str, Any], out: Path | None) -> Summary:
    from workflow.stages import corpus, plan

    with tempfile.TemporaryDirectory(prefix="railx-") as folder:
        sequences = Path(folder) / "corpus.parquet"
        corpus.run(settings["corpus"], seed=settings["seed"], corpus_path=sequences)
        return plan.run(
            _plan_settings(settings),
            name=settings["planner"].planner,
            corpus_path=sequences,
            plan_path=out,
        )


def _train(settings: Mapping[str, Any], out: Path | None) -> Summary:
    from workflow.stages import corpus, plan, train

    with tempfile.TemporaryDirectory(prefix="railx-") as scratch:
        folder = out if out is not None else Path(scratch)
        corpus.run(settings["corpus"], seed=settings["seed"], corpus_path=folder / "corpus.parquet")
        plan.run(
            _plan_settings(settings),
            name=settings["planner"].planner,
            corpus_path=folder / "corpus.parquet",
            plan_path=folder / "plan.json",
        )
        run = {
            "seed": settings["seed"],
            "fabric": settings["fabric"],
            "training": settings["training"],
        }
        return train.run(
            run,
            settings["model"],
            name="run",
            plan_path=folder / "plan.json",
            corpus_path=folder / "corpus.parquet",
            folder=folder,
        )


def _plan_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: settings[key] for key in ("seed", "batch", "cluster", "model", "cost_model", "planner")
    }


_PLAN_GROUPS = ("seed", "corpus", "batch", "cluster", "model", "cost_model", "planner")

#: The stages by name.
STAGES: dict[str, Stage] = {
    "topology": Stage(
        "build a topology: chips, links, optical circuits, metrics",
        ("topology",),
        "railx topology topology=railx_hyperx topology.m=2 topology.n=2 --json",
        "the topology file to write (.parquet)",
        "stage",
        _topology,
    ),
    "circuits": Stage(
        "cross-connects of the optical switches of a topology, switch by switch",
        ("topology",),
        "railx circuits topology=railx_hyperx --out circuits.csv",
        "the list to write (.json or .csv)",
        "stage",
        _circuits,
    ),
    "simulate": Stage(
        "traffic on a topology: exact channel loads and collective times (network=static_*), or"
        " packet by packet (network=packet)",
        ("seed", "topology", "traffic", "network", "collective"),
        "railx simulate topology=railx_hyperx network=packet network.routing=min traffic=uniform"
        " traffic.load=0.5 --json",
        "the table of results to write (.parquet)",
        "stage",
        _simulate,
    ),
    "mapping": Stage(
        "time of a training step of each job on a topology (laid out as the mapping's reference)",
        ("topology", "mapping"),
        "railx mapping topology=railx_hyperx_m4n2 --json",
        "the table of step times to write (.parquet)",
        "stage",
        _mapping,
    ),
    "tenancy": Stage(
        "jobs and failures on a reconfigurable grid: largest job, use by a stream of jobs, degraded"
        " lines",
        ("seed", "tenancy"),
        "railx tenancy tenancy=small --json",
        "the table of utilisation to write (.parquet)",
        "stage",
        _tenancy,
    ),
    "cost": Stage(
        "bill of materials, cost and power of networks",
        ("economics",),
        "railx cost economics=full_scale --json",
        "the bill of materials to write (.parquet)",
        "stage",
        _cost,
    ),
    "corpus": Stage(
        "gather or draw the sequences of a corpus",
        ("seed", "corpus"),
        "railx corpus corpus=folder corpus.path=texts --out corpus.parquet",
        "the corpus file to write (.parquet)",
        "stage",
        _corpus,
    ),
    "plan": Stage(
        "distribute the sequences of a corpus over devices",
        _PLAN_GROUPS,
        "railx plan planner=flexsp corpus=file corpus.path=lengths.json cluster.devices=64 --out"
        " plan.json",
        "the plan to write (.json)",
        "stage_plan",
        _plan,
    ),
    "train": Stage(
        "train a plan under emulated optical switching",
        (*_PLAN_GROUPS, "fabric", "training"),
        "railx train planner=flexsp training.iterations=3 --out run",
        "the folder to write: corpus, plan, iterations, traces, result",
        "stage",
        _train,
    ),
}


if __name__ == "__main__":
    sys.exit(main())
