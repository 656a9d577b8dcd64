"""What a job asks of the nodes of a cluster.

The profile of a cluster says how its nodes look (``ranks_per_node`` and
``gpus_per_rank`` of a rule, under ``set-resources``); on one machine both are unset and
nothing is asked for. :mod:`training.nodes` starts the ranks of a job.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from math import ceil
from typing import Any

from railx.errors import UserError
from railx.places import SHIPPED
from training.nodes import check_cuda
from workflow.stage import Config, Needs, Stage

#: Where the profiles are.
PROFILES = SHIPPED / "workflow" / "profiles"
#: The package of a profile's plugin, by the extra that brings it and names the profile.
PLUGINS = {
    "slurm": "snakemake_executor_plugin_slurm",
    "kubernetes": "snakemake_executor_plugin_cluster_generic",
}

#: What a profile says of the nodes of a cluster.
PER_NODE = ("ranks_per_node", "gpus_per_rank")


def check_profile(name: str) -> str:
    """The folder of a profile; ValueError where it, or its plugin, is not there."""
    folder = PROFILES / name
    if not name or not (folder / "config.yaml").is_file():
        allowed = sorted(path.parent.name for path in PROFILES.glob("*/config.yaml"))
        raise UserError(f"PROFILE: got {name!r}; allowed: {', '.join(allowed)}")
    check_plugin(name)
    return str(folder)


def check_plugin(name: str) -> None:
    """Refuse a profile, by its name, whose plugin is not installed."""
    plugin = PLUGINS.get(name)
    if plugin is not None and find_spec(plugin) is None:
        got = (
            f"PROFILE: {name} wants the package {plugin.replace('_', '-')}, which is not installed"
        )
        raise UserError(f"{got}; it comes with the extra: pip install 'railx-lab[{name}]'")


def asked(needs: Needs, profile: Mapping[str, Any]) -> dict[str, int | str | None]:
    """The resources of a job that runs ranks; None where nothing is asked for.

    Ranks spread evenly over as few nodes as hold them. GPUs are asked for by node
    (``gres``), unless it computes on the CPU. UserError: what the profile says wrong.
    """
    here, gpus = (_whole_number(profile, key) for key in PER_NODE)
    if here is None:
        return dict.fromkeys(("nodes", "gres", "tasks", "cpus_per_task"))
    if here < 1:
        raise UserError(f"ranks_per_node: got {here}; allowed: 1 or more")
    if gpus is not None and gpus < 0:
        raise UserError(f"gpus_per_rank: got {gpus}; allowed: 0 or more")
    ranks = needs.ranks
    nodes = ceil(ranks / here)
    if ranks % nodes:
        allowed = f"{ranks} or more, or a divisor"
        raise UserError(f"ranks_per_node: got {here}; allowed for {ranks} ranks: {allowed}")
    ranks_per_node = ranks // nodes
    gpus_per_node = ranks_per_node * (gpus or 0) if needs.device != "cpu" else 0
    return {
        "nodes": nodes,
        "gres": f"gpu:{gpus_per_node}" if gpus_per_node else None,
        # One launcher a node. With GPUs the plugin would read it as tasks a GPU.
        "tasks": None if gpus_per_node else nodes,
        "cpus_per_task": ranks_per_node * needs.threads_per_rank,
    }


def check_nodes(settings: Any, stages: Mapping[str, Stage], experiment: Config) -> None:
    """Refuse ranks of an experiment that do not spread over the nodes of the profile.

    Snakemake asks for what a job wants only when the job is about to start.
    """
    for name, stage in stages.items():
        profile = profile_resources(settings, name)
        for item in stage.items(experiment) if profile else ():
            try:
                asked(stage.needs(experiment, item), profile)
            except UserError as error:
                raise UserError(f"{name} {item}: {error}") from None


def check_devices(
    jobs: Iterable[Any], settings: Any, stages: Mapping[str, Stage], experiment: Config
) -> None:
    """Refuse jobs on one machine whose device it does not have.

    ``jobs`` are Snakemake's, those that run: results of another machine need no device.
    """
    for job in jobs:
        name = job.rule.name
        if name in stages and not profile_resources(settings, name):
            item = next(iter(job.wildcards), "")
            try:
                check_cuda(stages[name].needs(experiment, item).device, "device")
            except UserError as error:
                raise UserError(f"{name} {item}: {error}") from None


def _whole_number(profile: Mapping[str, Any], key: str) -> int | None:
    value = profile.get(key)
    if value is None:
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        raise UserError(f"{key}: got {value!r}; allowed: a whole number") from None


def profile_resources(settings: Any, rule: str) -> dict[str, Any]:
    """What the profile of this run says of the nodes, for a rule."""
    rule_resources = (settings.overwrite_resources or {}).get(rule, {})
    return {key: _plain(rule_resources[key]) for key in PER_NODE if key in rule_resources}


def _plain(value: Any) -> Any:
    """A resource as Snakemake keeps it, evaluated where it is a number in words."""
    plain = getattr(value, "value", value)
    return plain if isinstance(plain, (int, str)) else getattr(value, "raw", None)


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m workflow.cluster NAME``: the folder of a profile that can be used."""
    try:
        print(check_profile(*(sys.argv[1:] if arguments is None else arguments)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
