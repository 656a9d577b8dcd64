"""Tables of sequence-parallel plans on a network: as made, and made anew for it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from railx.mapping.underlay import UnderlaySettings, underlays
from railx.planning.format.files import read_plan
from railx.planning.underlay import mix_rows, remade
from railx.progress import counted
from railx.settings import SettingsError
from railx.workload.corpus import read_corpus_lengths

_FIDELITY = {"fidelity": "analytic"}
_OF_RATES = ("basis", "outside_gb_s", "inside_gb_s", "usd_per_device")


def mix_table(
    settings: UnderlaySettings, network: str, plans: Mapping[str, Path], corpora: Mapping[str, Path]
) -> list[dict[str, Any]]:
    """The iterations of plans at every rate of a network, with the degrees they use.

    ``plans`` and ``corpora``: by plan, its file and that of its corpus. Raises
    SettingsError where a plan is for another number of devices than ``ranks``.
    """
    variants, lengths_of = underlays(settings, network), cache(read_corpus_lengths)
    named = {"network": network, "label": settings.networks[network].label}
    switch_ms = settings.networks[network].switch_ms
    mix: list[dict[str, Any]] = []
    for name, path in counted(plans.items(), "plans"):
        plan = read_plan(path)
        if plan.devices != settings.ranks:
            allowed = f"{plan.devices}, as of {name}"
            raise SettingsError("underlay.ranks", f"got {settings.ranks}; allowed: {allowed}")
        head = named | {"plan": name, "planner": plan.planner}
        if not variants:
            base = {"basis": "own", "outside_gb_s": None, "made_for": "cluster"}
            batches = plan.sequence_parallel_batches()
            mix += [head | base | row for row in mix_rows(batches, plan.devices)]
        priced: dict[tuple[float, ...], Any] = {}
        for under in variants:
            # Links inside may bind at several rates: same bandwidths, same plan.
            table = tuple(under.all_to_all_gb_s.values())
            both = priced[table] = priced.get(table) or remade(
                plan, lengths_of(corpora[name])[1], under.all_to_all_gb_s, switch_ms
            )
            for planned_for, batches in zip(("cluster", "network"), both, strict=True):
                at = {
                    "basis": under.basis,
                    "outside_gb_s": under.outside_gb_s,
                    "made_for": planned_for,
                }
                mix += [head | at | row for row in mix_rows(batches, plan.devices)]
    return [row | _FIDELITY for row in mix]


def bandwidth_table(settings: UnderlaySettings, network: str) -> list[dict[str, Any]]:
    """The bandwidth of a group of each size at every rate of a network."""
    return [
        {
            "network": network,
            "label": settings.networks[network].label,
            **{name: getattr(under, name) for name in _OF_RATES},
            "group_size": size,
            "gb_s": gb_s,
        }
        | _FIDELITY
        for under in underlays(settings, network)
        for size, gb_s in under.all_to_all_gb_s.items()
    ]


def mean_times(mix: list[dict[str, Any]]) -> dict[str, float]:
    """The mean iteration of each plan at each rate."""
    times: dict[str, dict[int, float]] = {}
    for row in mix:
        rate = "" if row["outside_gb_s"] is None else f".{row['outside_gb_s']:.4g}_gb_s"
        key = f"{row['basis']}{rate}.{row['plan']}.made_for_{row['made_for']}.iteration_ms"
        times.setdefault(key, {})[row["iteration"]] = row["iteration_ms"]
    return {key: sum(iterations.values()) / len(iterations) for key, iterations in times.items()}
