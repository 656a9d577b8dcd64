"""Small tables by the column contract, enough to draw every figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from railx.figures import FIGURES, CanvasSettings, FigureSettings
from railx.io import write_table
from railx.settings import load
from workflow.config import read_choice

CONF = Path(__file__).resolve().parents[2] / "conf" / "figure"
#: The Hamiltonian decomposition of the complete directed graph on five nodes.
CYCLES = ((0, 1, 3, 2, 4), (1, 2, 0, 3, 4), (2, 3, 1, 0, 4), (3, 0, 2, 1, 4))


def write_topology(path: Path, cycles: tuple[tuple[int, ...], ...] = CYCLES) -> None:
    link = {
        "element": "link",
        "src": 0,
        "dst": 1,
        "kind": "mesh",
        "gbps": 400.0,
        "latency_ns": 10.0,
        "rail": -1,
        "lanes": 1,
    }
    empty = dict.fromkeys(link)
    circuit = dict.fromkeys(("ocs", "port_a", "port_b", "dimension", "line", "node_a", "node_b"))
    rows: list[dict[str, Any]] = [{**link, **circuit}]
    for dimension in "xy":
        for rail, cycle in enumerate(cycles):
            for a, b in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
                ends = {"ocs": rail, "port_a": 2 * a, "port_b": 2 * b + 1, "node_a": a, "node_b": b}
                rows.append(
                    {
                        **empty,
                        "element": "circuit",
                        "rail": rail,
                        "dimension": dimension,
                        "line": 0,
                        **ends,
                    }
                )
    keys = list(rows[0])
    write_table(
        path,
        [{key: row.get(key) for key in keys} for row in rows],
        metadata={"name": "railx_hyperx", "family": "railx_hyperx"},
    )


def write_metrics(path: Path) -> Path:
    rows = [
        {
            "topology": name,
            "family": family,
            "chips": chips,
            "diameter_node_hops": diameter,
            "mean_node_hops": mean,
        }
        | {
            "bisection_gb_s_per_chip": bisection,
            "injection_gb_s_per_chip": 1800.0,
            "fidelity": "analytic",
        }
        for name, family, chips, diameter, mean, bisection in (
            ("railx_hyperx_full", "railx_hyperx", 200_704, 2, 1.97, 65.3),
            ("railx_split_full", "railx_split", 200_704, 4, 3.5, 32.7),
            ("railx_twisted_torus_full", "railx_twisted_torus", 100_352, 32, 21.3, 8.0),
            ("fat_tree", "fat_tree", 128, 6, 5.7, 1800.0),
        )
    ]
    write_table(path, rows)
    return path


def write_networks(folder: Path) -> list[Path]:
    values = {
        "railx_hyperx": (1296, 400.0, 56.2, 49.9),
        "railx_torus": (1296, 400.0, 22.2, 22.2),
        "torus_2d": (1296, 400.0, 22.2, 20.1),
        "fat_tree": (1250, 400.0, 400.0, 398.0),
    }
    for name, (chips, injection, ideal, bound) in values.items():
        row = {
            "topology": name,
            "family": name,
            "chips": chips,
            "nodes": chips // 16,
            "traffic": "uniform",
            "routing": "minimal",
            "ideal_flits_per_chip_cycle": ideal / 50,
            "bound_flits_per_chip_cycle": bound / 50,
            "injection_gb_s_per_chip": injection,
            "ideal_gb_s_per_chip": ideal,
            "bound_gb_s_per_chip": bound,
            "bound_over_ideal": bound / ideal,
            "mean_external_hops": 1.78,
            "mean_internal_hops": 5.2,
            "internal_width_needed": 1.56,
            "busiest_link_kind": "rail",
            "fidelity": "analytic",
        }
        routings = ("min", "balanced") if name == "railx_hyperx" else ("min",)
        write_table(
            folder / f"{name}/bounds.parquet",
            [{**row, "routing": routing} for routing in routings],
        )
    return [folder / f"{name}/bounds.parquet" for name in values]


def write_channels(folder: Path, rng: np.random.Generator) -> list[Path]:
    paths = []
    for name in ("railx_hyperx", "fat_tree"):
        rows = [
            {
                "topology": name,
                "routing": "min",
                "src": i,
                "dst": i + 1,
                "kind": kind,
                "rail": -1,
                "load": float(mean * (1 + 0.3 * rng.standard_normal())),
                "fidelity": "analytic",
            }
            for kind, mean in (("mesh", 0.9), ("rail", 0.6))
            for i in range(300)
        ]
        write_table(folder / f"{name}/channels.parquet", rows)
        paths.append(folder / f"{name}/channels.parquet")
    return paths


def write_collectives(folder: Path) -> list[Path]:
    paths = []
    for name, bandwidth, rings in (("railx_hyperx", 180.0, 8), ("fat_tree", 198.0, 1)):
        rows = [
            {
                "topology": name,
                "family": name,
                "collective": "ring_all_reduce",
                "scope": "chips",
                "participants": 9,
                "rings": rings,
                "payload_bytes": 4**k * 1024,
                "time_ms": 4**k * 1024 / bandwidth / 1e6 + 0.01,
                "algorithm_gb_s": 4**k * 1024 / (4**k * 1024 / bandwidth + 1e4),
                "fidelity": "analytic",
            }
            for k in range(1, 11)
        ]
        write_table(folder / f"{name}/collectives.parquet", rows)
        paths.append(folder / f"{name}/collectives.parquet")
    return paths


def write_all_collectives(folder: Path) -> list[Path]:
    """Every collective in both fidelities; the messages are slower where the latency
    counts.
    """
    paths = []
    for name in ("railx_hyperx", "railx_torus", "fat_tree"):
        rows = [
            {
                "topology": name,
                "collective": collective,
                "scope": "chips",
                "participants": 100,
                "payload_bytes": 4**k * 1024,
                "algorithm_gb_s": 4**k * 1024 / (4**k * 1024 / bandwidth + latency),
                "fidelity": fidelity,
            }
            for collective, bandwidth in (
                ("ring_all_reduce", 200.0),
                ("all_gather", 400.0),
                ("all_to_all", 70.0),
            )
            for fidelity, latency in (("analytic", 1e4), ("flow", 1.7e4))
            for k in range(1, 11)
        ]
        write_table(folder / f"{name}/collectives.parquet", rows)
        paths.append(folder / f"{name}/collectives.parquet")
    return paths


def write_agreement(path: Path) -> Path:
    rows = [
        {
            "topology": topology,
            "traffic": traffic,
            "routing": routing,
            "load_over_bound": over,
            "flow_flits_per_chip_cycle": bound * min(over, 1 + over / 10),
            "packet_flits_per_chip_cycle": bound
            * min(over, 1 + over / 10)
            * (ratio if over > 1 else 1),
            "ratio": ratio if over > 1 else 1.0,
            "flow_fidelity": "flow",
            "packet_fidelity": "packet",
        }
        for topology, bound in (("railx_hyperx", 1.456), ("torus_2d", 1.32))
        for traffic, ratio in (("uniform", 0.8), ("permutation", 1.05))
        for routing in ("min", "balanced")
        for over in (0.5, 1.5, 3.0)
    ]
    write_table(path, rows)
    return path


def write_packets(folder: Path) -> list[Path]:
    """Sweeps as the stage leaves them: queues grow towards saturation, and a saturated
    mean may lack its interval.
    """
    paths = []
    sweeps = {
        "railx_min": ("railx_hyperx", "min", 1.4, 1.456, 2.475),
        "railx_balanced": ("railx_hyperx", "balanced", 2.1, 2.475, 2.475),
        "railx_torus": ("railx_torus", "min", 1.2, 1.6, 1.6),
        "fat_tree": ("fat_tree", "min", 6.1, 8.0, 8.0),
        "dragonfly": ("dragonfly", "min", 1.9, 3.1, 3.2),
    }
    for name, (family, routing, limit, bound, ideal) in sweeps.items():
        rows = []
        for share in (0.1, 0.3, 0.5, 0.8, 0.95, 1.2, 1.5):
            offered = share * limit
            accepted = min(offered, limit)
            row = {
                "sweep": name,
                "topology": family,
                "family": family,
                "chips": 100,
                "traffic": "uniform",
                "routing": routing,
            }
            row |= {
                "offered_flits_per_chip_cycle": offered,
                "accepted_flits_per_chip_cycle": accepted,
            }
            latency = (
                24 + 6 * offered / (1.05 * limit - offered)
                if offered < limit
                else 2000 * (share - 1) + 300
            )
            row |= {
                "latency_mean_cycles": latency,
                "latency_ci95_cycles": 0.02 * latency if share < 1.5 else float("nan"),
            }
            row |= {
                "saturated": accepted < 0.95 * offered,
                "saturation_flits_per_chip_cycle": limit,
                "fidelity": "packet",
            }
            rows.append(
                row | {"bound_flits_per_chip_cycle": bound, "ideal_flits_per_chip_cycle": ideal}
            )
        paths.append(folder / f"{name}/points.parquet")
        write_table(paths[-1], rows)
    return paths


def write_economics(folder: Path) -> None:
    prices = {
        "railx_hyperx_full": {"transceiver": 3086.0, "ocs_port": 3390.0, "fibre": 120.0},
        "fat_tree_full": {
            "transceiver": 129_600.0,
            "electrical_switch_port": 72_000.0,
            "fibre": 900.0,
        },
        "opus_rails_h200": {"transceiver": 1100.0, "ocs_port": 819.0},
        "rail_optimised_h200": {"transceiver": 4400.0, "electrical_switch_port": 3788.0},
    }
    bill, summary = [], []
    for name, parts in prices.items():
        full = name.endswith("full")
        chips, injection = (200_704, 1800.0) if full else (512, 50.0)
        for component, usd in parts.items():
            bill.append(
                {
                    "topology": name,
                    "chips": chips,
                    "component": component,
                    "count": 1000,
                    "unit_usd": 600.0,
                    "total_usd": usd * chips,
                    "unit_watts": 1.0,
                    "total_watts": 1.0,
                    "source": "catalogue",
                    "fidelity": "analytic",
                }
            )
        cost = sum(parts.values())
        all_to_all = {"railx_hyperx_full": 130.6, "opus_rails_h200": None}.get(name, injection)
        summary.append(
            {
                "topology": name,
                "chips": chips,
                "injection_gb_s_per_chip": injection,
                "all_to_all_gb_s_per_chip": all_to_all,
                "cost_usd": cost * chips,
                "cost_per_chip_usd": cost,
                "usd_per_injection_gb_s": cost / injection,
                "usd_per_all_to_all_gb_s": cost / all_to_all if all_to_all else None,
                "power_watts": cost * chips / 100,
                "fidelity": "analytic",
            }
        )
    write_table(folder / "bill.parquet", bill)
    write_table(folder / "summary.parquet", summary)
    write_table(folder / "sensitivity.parquet", sensitivity_rows())


def sensitivity_rows() -> list[dict[str, Any]]:
    cases = [("price_set", "opus_400g", 1.0, 1.2), ("price_set", "hammingmesh_2022", 0.5, 0.4)]
    cases += [
        ("ratio", f"{ocs} {switch}", ocs, switch) for ocs in (0.25, 1, 4) for switch in (0.5, 2)
    ]
    rows = []
    for view, name, ocs, switch in cases:
        for bandwidth, share in (("ideal", 1.0), ("published_routing", 0.766)):
            ratio = (36 / 7) * (1 + ocs) / (36 * (5 * switch + 6))
            rows.append(
                {
                    "view": view,
                    "prices": name,
                    "topology": "railx_hyperx_full",
                    "reference": "fat_tree_full",
                    "all_to_all": bandwidth,
                    "transceiver_usd": 800.0,
                    "ocs_port_usd": 800.0 * ocs,
                    "electrical_switch_port_usd": 800.0 * switch,
                    "injection_cost_ratio": ratio,
                    "all_to_all_cost_ratio": ratio * 1800 / 130.6 / share,
                    "fidelity": "analytic",
                }
            )
    return rows


def write_sequence_parallel_plan(
    path: Path, name: str, layout: list[list[tuple[int, float, list[int]]]], devices: int
) -> None:
    """``layout``: micro-batches of (degree, predicted ms, lengths)."""
    rows = []
    for index, groups in enumerate(layout):
        first = 0
        for number, (degree, predicted, lengths) in enumerate(groups):
            rows.append(
                {
                    "plan": name,
                    "kind": "sequence_parallel",
                    "devices": devices,
                    "iteration": 0,
                    "micro_batch": index,
                    "group": number,
                    "first_rank": first,
                    "degree": degree,
                    "sequences": len(lengths),
                    "tokens": sum(lengths),
                    "predicted_ms": predicted,
                }
            )
            first += degree
    write_table(path, rows)


def write_pipeline(folder: Path) -> None:
    """Four chunks through two stages in 1F1B order; the second pipeline counts its time
    from its own start.
    """
    schedule, table = [], []
    kinds = ["split", "hybrid", "batched", "batched"]
    blocks = {
        0: [
            ("forward", 0, 0, 4),
            ("forward", 1, 4, 8),
            ("forward", 2, 8, 12),
            ("backward", 1, 16, 24),
            ("forward", 3, 24, 28),
            ("backward", 0, 28, 36),
            ("backward", 2, 36, 44),
            ("backward", 3, 44, 52),
        ],
        1: [
            ("forward", 0, 4, 8),
            ("forward", 1, 8, 12),
            ("backward", 1, 12, 16),
            ("forward", 2, 16, 20),
            ("backward", 0, 20, 28),
            ("backward", 2, 28, 36),
            ("forward", 3, 36, 40),
            ("backward", 3, 40, 44),
        ],
    }
    for pipeline in range(2):
        for stage, rows in blocks.items():
            for kind, chunk, start, end in rows:
                where = {
                    "plan": "pipeline",
                    "iteration": 0,
                    "pipeline": pipeline,
                    "replica": 0,
                    "stage": stage,
                    "chunk": chunk,
                    "kind": kind,
                }
                schedule.append(
                    {
                        **where,
                        "start_ms": float(start),
                        "end_ms": float(end),
                        "fidelity": "analytic",
                    }
                )
        for chunk, kind in enumerate(kinds):
            table.append(
                {
                    "plan": "pipeline",
                    "kind": "pipeline",
                    "iteration": 0,
                    "micro_batch": pipeline,
                    "group": chunk,
                    "chunk_kind": kind,
                }
            )
    write_table(folder / "schedule.parquet", schedule)
    write_table(folder / "groups.parquet", table)


def write_cost_scale(path: Path) -> None:
    costs = {
        "railx_hyperx_full": (4.0, 55.0, 53.0),
        "opus_rails_equal": (38.0, None, 388.0),
        "fat_tree_full": (164.0, 164.0, 9259.0),
    }
    rows = [
        {
            "topology": name,
            "target_chips": chips,
            "price_set": price_set,
            "chips": chips,
            "injection_gb_s_per_chip": 1800.0,
            "usd_per_injection_gb_s": injection,
            "usd_per_all_to_all_gb_s": all_to_all,
            "watts_per_chip": watts if price_set == "opus_400g" else None,
            "fidelity": "analytic",
        }
        for name, (injection, all_to_all, watts) in costs.items()
        for chips in (1024, 16384, 200_704)
        for price_set in ("opus_400g", "hammingmesh_2022")
        if chips < 200_000 or all_to_all is not None
    ]
    write_table(path, rows)


def write_claim_map(path: Path) -> None:
    """The base case, one price list and the boundaries of the shipped figure."""
    levels: dict[str, list[float | None]] = {
        "base": [None],
        "m": [1, 2, 3],
        "tiers": [1, 2],
        "all_to_all_share": [0.766],
        "leaf_cable_over_transceiver": [0.9],
        "taper": [0.5],
    }
    grid: list[tuple[str, str | None, float, float, float | None, str]] = [
        ("grid", None, x, y, None, "ratios") for x in (0.0, 3.0) for y in (0.0, 3.0)
    ]
    rows = [
        {
            "view": view,
            "factor": factor,
            "level": level,
            "claim": claim,
            "prices": prices,
            "transceiver_usd": usd,
            "ocs_port_usd": None if usd is None else x * usd,
            "ocs_port_over_transceiver": x,
            "switch_port_over_transceiver": y,
            "limit": limit,
            "tolerance": 0.1 if claim == "absolute" else 0.0,
            "holds": y > x,
            "boundary_slope": -1.0 if claim == "absolute" else 0.8,
            "boundary_intercept": 1259.0 if claim == "absolute" else -0.4 + 0.1 * (level or 0),
            "source": source,
            "fidelity": "analytic",
        }
        for factor, chosen in levels.items()
        for level in chosen
        for claim, limit in (("injection", 0.1), ("all_to_all", 0.5), ("absolute", 1.3e9))
        for view, prices, x, y, usd, source in [
            ("price_set", "opus_400g", 0.6, 0.7, 879.0, "list"),
            *grid,
        ]
        if view == "price_set" or (factor == "base" and claim != "absolute")
    ]
    write_table(path, rows)


def write_iterations(folder: Path, rng: np.random.Generator) -> list[Path]:
    paths = []
    for parallelism, base, switches in (("sequence_parallel", 220.0, 12), ("pipeline", 180.0, 6)):
        rows = []
        for mode in ("electrical", "on_demand", "provisioned"):
            for latency in (0.0,) if mode == "electrical" else (0.0, 1.0, 5.0, 20.0, 50.0):
                for iteration in range(1, 6):
                    for rank in range(4):
                        stall = (
                            0.0
                            if mode == "electrical"
                            else switches
                            * (latency if mode == "on_demand" else max(0.0, latency - 8))
                        )
                        time = (
                            base + stall + float(rng.uniform(0, 25)) + (60 if iteration == 0 else 0)
                        )
                        rows.append(
                            {
                                "run": parallelism,
                                "plan": "flexsp"
                                if parallelism == "sequence_parallel"
                                else "pipeline",
                                "parallelism": parallelism,
                                "device": "cpu",
                                "mode": mode,
                                "reconfiguration_latency_ms": latency,
                                "iteration": iteration,
                                "rank": rank,
                                "iteration_ms": time,
                                "stall_ms": stall,
                                "wait_ms": 1.0,
                                "requests": 30,
                                "reconfigurations": switches,
                                "loss": 5.0,
                                "gradient_norm": 1.0,
                                "tokens": 4096,
                                "fidelity": "measured_cpu" if mode == "electrical" else "emulated",
                            }
                        )
        path = folder / parallelism / "iterations.parquet"
        write_table(path, rows)
        paths.append(path)
    return paths


def write_corpora(folder: Path, rng: np.random.Generator) -> list[Path]:
    paths = []
    for name, kind, sigma in (
        ("stdlib", "real_text", 1.3),
        ("wikipedia", "published_quantiles", 1.5),
        ("github_like", "synthetic", 2.0),
    ):
        lengths = np.maximum(1, rng.lognormal(7, sigma, 4000)).astype(np.int64)
        write_table(
            folder / f"{name}/sequences.parquet",
            {"sequence": np.arange(len(lengths)), "length_tokens": lengths},
            metadata={"name": name, "kind": kind},
        )
        paths.append(folder / f"{name}/sequences.parquet")
    return paths


def write_tenancy(folder: Path, rng: np.random.Generator) -> None:
    faults, use = [], []
    for failed in (0, 2, 4, 8):
        for placement, samples in (("distinct_lines", 1), ("random", 10)):
            for sample in range(samples):
                for system, weight in (("railx", 1.6), ("hammingmesh", 1.6), ("torus", 4.0)):
                    share = max(0.1, 1 - weight * failed / 32) * (
                        1 - 0.02 * float(rng.uniform()) * (failed > 0)
                    )
                    head = {
                        "system": system,
                        "placement": placement,
                        "failed_nodes": failed,
                        "sample": sample,
                        "nodes": 256,
                    }
                    shares = {
                        "usable_share": share,
                        "healthy_share": 1 - failed / 256,
                        "formula_share": (1 - failed / 32) ** 2,
                    }
                    faults.append(
                        {**head, "usable_nodes": int(share * 256), **shares, "fidelity": "analytic"}
                    )
    for system, busy in (("railx", 0.74), ("hammingmesh", 0.74), ("torus", 0.6)):
        for queue in ("reject", "backfill"):
            for scenario in ("healthy", "failed_8"):
                for sample in range(2):
                    head = {
                        "system": system,
                        "policy": "best_fit",
                        "queue": queue,
                        "scenario": scenario,
                        "sample": sample,
                    }
                    load = {"failed_nodes": 8 * (scenario != "healthy"), "offered_load": 0.9}
                    rejected, wait = (0.05, 0.0) if queue == "reject" else (0.0, 12.0 + sample)
                    row = {
                        "utilisation": busy + 0.02 * sample,
                        "rejected_share": rejected,
                        "wait_mean_hours": wait,
                    }
                    use.append({**head, **load, **row, "fidelity": "analytic"})
    write_table(folder / "faults.parquet", faults)
    write_table(folder / "utilisation.parquet", use)


def write_steps(folder: Path) -> list[Path]:
    """Step times: one topology with both bases, one without a price, one without room
    for one of the jobs.
    """
    seconds = {
        "compute": 0.9,
        "bubble": 0.5,
        "tensor": 0.2,
        "sequence": 0.0,
        "expert": 0.1,
        "data": 0.06,
        "pipeline": 0.05,
    }
    paths = []
    for name, slower in (
        ("railx_hyperx_m4n2", 1.0),
        ("fat_tree_1250", 6.0),
        ("torus_3d_1331", None),
    ):
        rows = []
        for job in ("dense", "experts"):
            for basis in ("equal_bandwidth", "equal_cost") if slower else ("equal_bandwidth",):
                fits = slower is not None or job == "dense"
                factor = 1.2 if basis == "equal_bandwidth" or slower is None else slower
                parts: dict[str | None, float | None] = (
                    {part: 1e3 * s * factor for part, s in seconds.items()}
                    if fits
                    else {None: None}
                )
                step = sum(ms for ms in parts.values() if ms is not None) if fits else None
                head = {"topology": name, "job": job, "chips": 1024, "basis": basis}
                tail = {
                    "step_ms": step,
                    "reason": None if fits else "layout: got 16 x 8 x 8",
                    "fidelity": "flow",
                }
                rows += [{**head, "part": part, "ms": ms, **tail} for part, ms in parts.items()]
        paths.append(folder / f"{name}/steps.parquet")
        write_table(paths[-1], rows)
    return paths


def write_all(folder: Path) -> dict[str, dict[str, list[Path]]]:
    """Tables for every figure: figure name to its inputs."""
    rng = np.random.default_rng(7)
    write_topology(folder / "topology/railx_hyperx/graph.parquet")
    write_economics(folder / "economics")
    write_cost_scale(folder / "economics/scale.parquet")
    write_claim_map(folder / "economics/claim_map.parquet")
    write_tenancy(folder / "tenancy", rng)
    static = [[(4, 300.0, [9000])], [(4, 260.0, [2000, 3000, 2500, 100])], [(4, 200.0, [500] * 9)]]
    flexsp = [
        [(4, 300.0, [9000])],
        [(2, 180.0, [2000, 3000]), (1, 190.0, [2500, 100]), (1, 150.0, [500] * 9)],
    ]
    plan = folder / "plan"
    write_sequence_parallel_plan(plan / "static/groups.parquet", "static", static, 4)
    write_sequence_parallel_plan(plan / "flexsp/groups.parquet", "flexsp", flexsp, 4)
    write_pipeline(plan / "pipeline")
    economics = {
        key: [folder / f"economics/{key}.parquet"]
        for key in ("bill", "summary", "sensitivity", "scale", "claim_map")
    }
    return {
        "rail_rings": {"graph": [folder / "topology/railx_hyperx/graph.parquet"]},
        "topology_metrics": {"topologies": [write_metrics(folder / "metrics/topologies.parquet")]},
        "all_to_all_bandwidth": {"bounds": write_networks(folder / "network")},
        "cost": {key: economics[key] for key in ("bill", "summary", "sensitivity")},
        "price_sensitivity": {"sensitivity": economics["sensitivity"]},
        "cost_scale": {"scale": economics["scale"]},
        "claim_map": {"claim_map": economics["claim_map"]},
        "sequence_parallel_plan": {
            "groups": [plan / "static/groups.parquet", plan / "flexsp/groups.parquet"]
        },
        "pipeline_schedule": {
            "schedule": [plan / "pipeline/schedule.parquet"],
            "groups": [plan / "pipeline/groups.parquet"],
        },
        "reconfiguration": {"iterations": write_iterations(folder / "training", rng)},
        "corpus_lengths": {"sequences": write_corpora(folder / "corpus", rng)},
        "channel_loads": {"channels": write_channels(folder / "network", rng)},
        "ring_all_reduce": {"collectives": write_collectives(folder / "network")},
        "collective_time": {"collectives": write_all_collectives(folder / "all")},
        "agreement": {"comparison": [write_agreement(folder / "agreement/comparison.parquet")]},
        "latency_load": {"points": write_packets(folder / "packets")},
        "largest_job": {"faults": [folder / "tenancy/faults.parquet"]},
        "step_time": {"steps": write_steps(folder / "mapping")},
        "utilisation": {"utilisation": [folder / "tenancy/utilisation.parquet"]},
    }


def load_settings(name: str, **changes: Any) -> CanvasSettings:
    """The shipped settings of a figure, with changes; ``only`` is left open: an
    experiment's names are not those made here.
    """
    plain = read_choice(CONF / f"{name}.yaml")
    if "only" in plain and plain["figure"] != "cost":
        plain["only"] = []
    settings: CanvasSettings = load(FigureSettings, {**plain, **changes})
    return settings


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[Path]]]:
    made = write_all(tmp_path_factory.mktemp("tables"))
    assert set(made) == set(FIGURES)
    return made


@pytest.fixture(scope="session")
def settings_of() -> Any:
    return load_settings
