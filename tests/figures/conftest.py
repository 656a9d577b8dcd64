"""Small tables under the columns of the stages, enough to draw every figure."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from railx.economics import EconomicsSettings, rail_economics, rail_map
from railx.figures import (
    FIGURES,
    CanvasSettings,
    FigureSettings,
    canvas,
    draw_figure,
    figure_of,
    registry,
)
from railx.io import read_json, write_json
from railx.performance.layer_profile import compared, fit_profile
from railx.settings import load
from tests.builders import PUBLISHED, choice, profile_rows, write_result
from tests.design.points import SAMPLE
from tests.figures.gallery import Gallery, clashes
from tests.figures.tables import (
    write_baselines,
    write_claims,
    write_generated,
    write_iterations_of_plans,
    write_live,
    write_passes,
    write_pipelines,
    write_planned,
    write_plans,
    write_underlays,
)

Row = dict[str, Any]
Rows = list[Row]

#: The figure whose PDF the tests look at.
PRINTED = "ring_all_reduce"
#: The Hamiltonian decomposition of the complete directed graph on five nodes.
CYCLES = ((0, 1, 3, 2, 4), (1, 2, 0, 3, 4), (2, 3, 1, 0, 4), (3, 0, 2, 1, 4))


def write_graph(results: Path) -> Path:
    rows: Rows = [{"element": "link", "src": 0, "dst": 1, "kind": "mesh", "rail": -1}]
    rows += [
        {
            "element": "circuit",
            "rail": rail,
            "ocs": rail,
            "port_a": 2 * a,
            "port_b": 2 * b + 1,
            "dimension": dimension,
            "line": 0,
            "node_a": a,
            "node_b": b,
        }
        for dimension in "xy"
        for rail, cycle in enumerate(CYCLES)
        for a, b in zip(cycle, (*cycle[1:], cycle[0]), strict=True)
    ]
    names = {"name": "railx_hyperx", "family": "railx_hyperx"}
    return write_result(results, "topology.graph", rows, "railx_hyperx", names)


def write_metrics(results: Path) -> Path:
    rows = [
        {
            "topology": name,
            "family": family,
            "chips": chips,
            "diameter_node_hops": diameter,
            "mean_node_hops": mean,
            "bisection_gb_s_per_chip": bisection,
        }
        for name, family, chips, diameter, mean, bisection in (
            ("railx_hyperx_full", "railx_hyperx", 200_704, 2, 1.97, 65.3),
            ("railx_split_full", "railx_split", 200_704, 4, 3.5, 32.7),
            ("railx_twisted_torus_full", "railx_twisted_torus", 100_352, 32, 21.3, 8.0),
            ("fat_tree", "fat_tree", 128, 6, 5.7, 1800.0),
        )
    ]
    common: Row = {"injection_gb_s_per_chip": 1800.0, "fidelity": "analytic"}
    return write_result(results, "metrics.topologies", rows, **common)


def write_bounds(results: Path) -> list[Path]:
    values = {
        "railx_hyperx": (1296, 56.2, 49.9),
        "railx_torus": (1296, 22.2, 22.2),
        "torus_2d": (1296, 22.2, 20.1),
        "fat_tree": (1250, 400.0, 398.0),
    }
    return [
        write_result(
            results,
            "network.bounds",
            [{"routing": "min"}, {"routing": "balanced"}][: 1 + (name == "railx_hyperx")],
            name,
            topology=name,
            family=name,
            chips=chips,
            traffic="uniform",
            injection_gb_s_per_chip=400.0,
            ideal_gb_s_per_chip=ideal,
            bound_gb_s_per_chip=bound,
            bound_over_ideal=bound / ideal,
            fidelity="analytic",
        )
        for name, (chips, ideal, bound) in values.items()
    ]


def write_channels(results: Path, rng: np.random.Generator) -> list[Path]:
    paths = []
    for name in ("railx_hyperx", "fat_tree"):
        rows = [
            {"src": i, "dst": i + 1, "kind": kind, "load": mean * (1 + 0.3 * rng.standard_normal())}
            for kind, mean in (("mesh", 0.9), ("rail", 0.6))
            for i in range(300)
        ]
        common: Row = {"topology": name, "routing": "min", "rail": -1, "fidelity": "analytic"}
        paths.append(write_result(results, "network.channels", rows, name, **common))
    return paths


def write_rings(results: Path) -> list[Path]:
    return [
        write_result(
            results,
            "network.collectives",
            [
                {
                    "payload_bytes": 4**k * 1024,
                    "time_ms": 4**k * 1024 / bandwidth / 1e6 + 0.01,
                    "algorithm_gb_s": 4**k * 1024 / (4**k * 1024 / bandwidth + 1e4),
                }
                for k in range(1, 11)
            ],
            name,
            topology=name,
            family=name,
            collective="ring_all_reduce",
            scope="chips",
            participants=9,
            rings=rings,
            fidelity="analytic",
        )
        for name, bandwidth, rings in (("railx_hyperx", 180.0, 8), ("fat_tree", 198.0, 1))
    ]


def write_speeds(results: Path) -> Path:
    """Injection of the networks of ``write_rings``: unlike speeds."""
    speeds = {"railx_hyperx": 400.0, "fat_tree": 1800.0}
    rows = [{"topology": name, "injection_gb_s_per_chip": speed} for name, speed in speeds.items()]
    return write_result(results, "metrics.topologies", rows)


def write_collectives(results: Path) -> list[Path]:
    """Every collective in both fidelities; the messages are slower where the latency
    counts.
    """
    rows = [
        {
            "collective": collective,
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
    common: Row = {"scope": "chips", "participants": 100}
    return [
        write_result(results, "network.collectives", rows, name, topology=name, **common)
        for name in ("railx_hyperx", "railx_torus", "fat_tree")
    ]


def write_agreement(results: Path) -> Path:
    rows = [
        {
            "topology": topology,
            "traffic": traffic,
            "routing": routing,
            "load_over_bound": over,
            "flow_flits_per_chip_cycle": flow,
            "packet_flits_per_chip_cycle": flow * (ratio if over > 1 else 1),
            "ratio": ratio if over > 1 else 1.0,
        }
        for topology, bound in (("railx_hyperx", 1.456), ("torus_2d", 1.32))
        for traffic, ratio in (("uniform", 0.8), ("permutation", 1.05))
        for routing in ("min", "balanced")
        for over in (0.5, 1.5, 3.0)
        for flow in [bound * min(over, 1 + over / 10)]
    ]
    fidelities: Row = {"flow_fidelity": "flow", "packet_fidelity": "packet"}
    return write_result(results, "agreement.comparison", rows, **fidelities)


def write_packets(results: Path, seeds: int = 3) -> list[Path]:
    """Sweeps as the stage leaves them: queues grow towards saturation, and a saturated
    mean may lack its interval.
    """
    sweeps = {
        "railx_min": ("railx_hyperx", "min", 1.4, 1.456, 2.475),
        "railx_balanced": ("railx_hyperx", "balanced", 2.1, 2.475, 2.475),
        "railx_torus": ("railx_torus", "min", 1.2, 1.6, 1.6),
        "fat_tree": ("fat_tree", "min", 6.1, 8.0, 8.0),
        "dragonfly": ("dragonfly", "min", 1.9, 3.1, 3.2),
    }
    return [
        write_result(
            results,
            "packets.points",
            [
                {**_point(share, limit, 1 + 0.03 * seed), "seed": seed}
                for seed in range(seeds)
                for share in (0.1, 0.3, 0.5, 0.8, 0.95, 1.2, 1.5)
            ],
            name,
            sweep=name,
            topology=family,
            family=family,
            chips=100,
            traffic="uniform",
            routing=routing,
            saturation_flits_per_chip_cycle=limit,
            bound_flits_per_chip_cycle=bound,
            ideal_flits_per_chip_cycle=ideal,
            fidelity="packet",
        )
        for name, (family, routing, limit, bound, ideal) in sweeps.items()
    ]


def _point(share: float, limit: float, slower: float) -> dict[str, Any]:
    offered = share * limit
    accepted = min(offered, limit)
    queued = 24 + 6 * offered / (1.05 * limit - offered)
    latency = slower * (queued if offered < limit else 2000 * (share - 1) + 300)
    return {
        "offered_flits_per_chip_cycle": offered,
        "accepted_flits_per_chip_cycle": accepted,
        "latency_mean_cycles": latency,
        "latency_ci95_cycles": 0.02 * latency if share < 1.5 else float("nan"),
        "saturated": accepted < 0.95 * offered,
    }


def write_bill(results: Path) -> dict[str, Path]:
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
    bill: Rows = []
    summary: Rows = []
    for name, parts in prices.items():
        chips, injection = (200_704, 1800.0) if name.endswith("full") else (512, 50.0)
        network = {"topology": name, "chips": chips}
        bill += [
            {**network, "component": component, "total_usd": usd * chips}
            for component, usd in parts.items()
        ]
        cost = sum(parts.values())
        all_to_all = {"railx_hyperx_full": 130.6, "opus_rails_h200": None}.get(name, injection)
        summary.append(
            {
                **network,
                "injection_gb_s_per_chip": injection,
                "all_to_all_gb_s_per_chip": all_to_all,
                "cost_usd": cost * chips,
                "cost_per_chip_usd": cost,
                "usd_per_injection_gb_s": cost / injection,
                "usd_per_all_to_all_gb_s": cost / all_to_all if all_to_all else None,
                "power_watts": cost * chips / 100,
            }
        )
    return {
        "bill": write_result(results, "economics.bill", bill, fidelity="analytic"),
        "summary": write_result(results, "economics.summary", summary, fidelity="analytic"),
    }


def write_sensitivity(results: Path) -> Path:
    cases = [("price_set", "opus_400g", 1.0, 1.2), ("price_set", "hammingmesh_2022", 0.5, 0.4)]
    cases += [
        ("ratio", f"{ocs} {switch}", ocs, switch) for ocs in (0.25, 1, 4) for switch in (0.5, 2)
    ]
    rows = [
        {
            "view": view,
            "prices": name,
            "all_to_all": bandwidth,
            "ocs_port_usd": 800.0 * ocs,
            "electrical_switch_port_usd": 800.0 * switch,
            "injection_cost_ratio": ratio,
            "all_to_all_cost_ratio": ratio * 1800 / 130.6 / share,
        }
        for view, name, ocs, switch in cases
        for bandwidth, share in (("ideal", 1.0), ("published_routing", 0.766))
        for ratio in [(36 / 7) * (1 + ocs) / (36 * (5 * switch + 6))]
    ]
    return write_result(
        results,
        "economics.sensitivity",
        rows,
        topology="railx_hyperx_full",
        reference="fat_tree_full",
        transceiver_usd=800.0,
        fidelity="analytic",
    )


def write_scale(results: Path) -> Path:
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
            "usd_per_injection_gb_s": injection,
            "usd_per_all_to_all_gb_s": all_to_all,
            "watts_per_chip": watts if price_set == "opus_400g" else None,
        }
        for name, (injection, all_to_all, watts) in costs.items()
        for chips in (1024, 16384, 200_704)
        for price_set in ("opus_400g", "hammingmesh_2022")
        if chips < 200_000 or all_to_all is not None
    ]
    common: Row = {"injection_gb_s_per_chip": 1800.0, "fidelity": "analytic"}
    return write_result(results, "economics.scale", rows, **common)


def write_claim_map(results: Path) -> Path:
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
    return write_result(results, "economics.claim_map", rows, fidelity="analytic")


def write_rail_bills(results: Path) -> dict[str, list[Path]]:
    """The shipped bills of rails and the map of their claims."""
    economics: EconomicsSettings = load(EconomicsSettings, choice("economics", "full_scale"))
    return {
        "rail_bills": [write_result(results, "economics.rails", rail_economics(economics))],
        "rail_claims": [write_result(results, "economics.rail_map", rail_map(economics))],
    }


def write_validation(results: Path) -> dict[str, list[Path]]:
    """Two sets of measured steps, one with memory, and their errors."""
    measured = {
        ("vtrain_single", "seconds"): (10.0, 11.0, 12.5),
        ("mosaic", "seconds"): (0.5, 0.6, 0.9),
        ("mosaic", "gib"): (20.0, 31.0),
    }
    rows: Rows = [
        {
            "set": name,
            "row": number,
            "device": "A100",
            "precision": "bf16",
            "quantity": quantity,
            "measured": value,
            "ours": value * (0.9 + 0.1 * number),
        }
        for (name, quantity), values in measured.items()
        for number, value in enumerate(values)
    ]
    errors: Rows = [
        {
            "set": name,
            "quantity": quantity,
            "group": group,
            "rows": len(values),
            "left_out": 1,
            "mean_error": 0.07,
            "mean_error_roofline": None if quantity == "gib" else 0.4,
        }
        for (name, quantity), values in measured.items()
        for group in ("all", "a100")
    ]
    return {
        "rows": [write_result(results, "validation.rows", rows, fidelity="analytic")],
        "errors": [write_result(results, "validation.errors", errors, fidelity="analytic")],
    }


def write_scaling(results: Path) -> dict[str, list[Path]]:
    """Sweeps of two models and sharded replicas on two networks."""
    points = [("devices", count, 8, 1.0) for count in (1024, 2048, 4096)]
    points += [("domain", 4096, domain, 1.0) for domain in (4, 8, 64)]
    for resource in ("operations", "memory bandwidth", "memory capacity", "network bandwidth"):
        points += [(resource, 4096, 8, factor) for factor in (0.5, 1.0, 4.0)]
    sweeps: Rows = [
        {
            "sweep": sweep,
            "model": model,
            "division": division,
            "devices": devices,
            "domain_devices": domain,
            "factor": factor,
            "sequences_per_s": speed * devices**0.8 * domain**0.05 * factor**0.6,
        }
        for model, speed in (("gpt3_1T", 0.3), ("vit_era5", 0.1))
        for division in ("1d", "2d-seqp")
        for sweep, devices, domain, factor in points
    ]
    sharded: Rows = [
        {
            "network": network,
            "device": "h100_80gb",
            "devices": devices,
            "tensor": tensor,
            "pipeline": 1,
            "tokens_per_s_device": 9000.0 - devices * (1 if tensor == 1 else 0.5),
            "exposed_share": devices / 10000,
            "fastest": tensor == 2,
        }
        for network in ("rail_optimised", "railx_torus")
        for devices in (8, 128, 2048)
        for tensor in (1, 2)
    ]
    return {
        "sweeps": [write_result(results, "scaling.sweeps", sweeps, fidelity="analytic")],
        "sharded": [write_result(results, "scaling.sharded", sharded, fidelity="analytic")],
    }


def write_arena(results: Path) -> Path:
    """Networks with ever higher prices, of which some are faster."""
    points = {
        "railx_m4n8": ("railx_hyperx", 3000.0, 1200.0),
        "opus_rails": ("opus_rails", 9000.0, 1000.0),
        "torus_3d": ("torus_3d", 8000.0, 1300.0),
        "fat_tree": ("fat_tree", 40000.0, 900.0),
    }
    rows = [
        {"network": network, "family": family, "asked_chips": chips, "chips": chips + 16}
        | {"subject": subject, "measure": measure, "value": value, "unit": "", "note": ""}
        for network, (family, usd, chip_us) in points.items()
        for chips in (1296, 4096)
        for subject, measure, value in (
            ("", "usd_chip", usd / 2),
            ("", "usd_chip_with_node", usd),
            ("dense_70b", "tokens_per_s", 1e6 * chips / chip_us),
            ("decode", "tokens_per_s", 3e6 * chips / chip_us if usd < 9000 else None),
        )
    ]
    return write_result(results, "arena.comparison", rows, fidelity="analytic")


def write_switched(results: Path) -> Path:
    """Steps that grow with latency as often as circuits change."""
    changes = {
        "railx": {"set_once": 0, "every_phase": 2, "where_it_pays": 0},
        "photonic_rails": {"set_once": 0, "every_phase": 60, "where_it_pays": 1},
    }
    packets = ("electrical_rails_alone", "electrical_rails", "electrical_rails_artifact")
    changes |= {name: {"packets": 0} for name in packets}
    rows = [
        {
            "network": name,
            "job": job,
            "gpus": 1024,
            "basis": basis,
            "mode": mode,
            "rule": rule,
            "latency_ms": latency,
            "changes": count,
            "step_ms": 1000.0
            - 40 * place
            + count * latency * (0.9 if rule == "on_demand" else 0.6),
            "stall_ms": count * latency * (0.9 if rule == "on_demand" else 0.6),
            "cost_per_gpu_usd": 2800.0 * (1 if basis == "equal_cost" else place + 1),
            "watts_per_gpu": 20.0 + 400.0 * place,
        }
        for place, (name, modes) in enumerate(changes.items())
        for mode, count in modes.items()
        for job in ("dense", "dense_long", "experts")
        for basis in ("equal_bandwidth", "equal_cost")
        for rule in ("on_demand", "provisioned")
        for latency in (0.0, 0.1, 1.0, 15.0, 100.0, 1000.0)
    ]
    return write_result(results, "switched.steps", rows, fidelity="analytic")


def write_rail_steps(results: Path) -> Path:
    """Generated steps that grow with latency as often as circuits change."""
    changes = {
        "electrical_rails": {"packets": 0},
        "railx": {"set_once": 0},
        "railx_8_rails": {"set_once": 0, "where_it_pays": 2},
        "photonic_rails": {"every_phase": 6},
        "photonic_rails_4_ports": {"set_once": 0},
        "electrical_rails_alone": {"packets": 0},
        "electrical_rails_artifact": {"packets": 0},
    }
    rows = [
        {
            "network": name,
            "step": step,
            "job": "one",
            "gpus": 64,
            "basis": basis,
            "mode": mode,
            "rule": rule,
            "latency_ms": latency,
            "reconfigurations": float(count),
            "step_ms": 6000.0 + 50 * place + count * latency * (1 if rule == "on_demand" else 0.8),
            "stall_ms": count * latency * (1 if rule == "on_demand" else 0.8),
            "cost_per_gpu_usd": 1900.0 * (1 if basis == "equal_cost" else place + 1),
            "watts_per_gpu": 10.0 + 40.0 * place,
        }
        for place, (name, modes) in enumerate(changes.items())
        for mode, count in modes.items()
        for step in ("llama16", "llama64", "deepseek_236b")
        for basis in ("equal_bandwidth", "equal_cost")
        for rule in ("on_demand", "provisioned")
        for latency in (0.0, 0.007, 1.2, 25.0, 1000.0)
    ]
    return write_result(results, "switched.generated", rows, fidelity="replay")


def write_groups(
    results: Path, plan: str, layout: list[list[tuple[int, float, list[int]]]]
) -> Path:
    """A plan for four devices; ``layout``: micro-batches of (degree, predicted ms,
    lengths).
    """
    rows = [
        {
            "micro_batch": index,
            "group": number,
            "first_rank": sum(before for before, _, _ in groups[:number]),
            "degree": degree,
            "sequences": len(lengths),
            "tokens": sum(lengths),
            "predicted_ms": predicted,
        }
        for index, groups in enumerate(layout)
        for number, (degree, predicted, lengths) in enumerate(groups)
    ]
    common: Row = {"plan": plan, "kind": "sequence_parallel", "devices": 4, "iteration": 0}
    return write_result(results, "plan.groups", rows, plan, **common)


def write_pipeline(results: Path) -> dict[str, Path]:
    """Four chunks through two stages in 1F1B order, in two pipelines one after the
    other.
    """
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
    schedule = [
        {
            "pipeline": pipeline,
            "stage": stage,
            "chunk": chunk,
            "kind": kind,
            "start_ms": start + 52 * pipeline,
            "end_ms": end + 52 * pipeline,
        }
        for pipeline in range(2)
        for stage, rows in blocks.items()
        for kind, chunk, start, end in rows
    ]
    groups = [
        {"kind": "pipeline", "micro_batch": pipeline, "group": chunk, "chunk_kind": kind}
        for pipeline in range(2)
        for chunk, kind in enumerate(["split", "hybrid", "batched", "batched"])
    ]
    common: Row = {"plan": "pipeline", "iteration": 0, "fidelity": "analytic"}
    return {
        "schedule": write_result(
            results, "plan.schedule", schedule, "pipeline", replica=0, schedule="1f1b", **common
        ),
        "groups": write_result(results, "plan.groups", groups, "pipeline", **common),
    }


def write_memory(results: Path) -> Path:
    """Two stages that hold two chunks and one at most."""
    gib = 2**30
    rows = [
        {
            "stage": stage,
            "time_ms": time,
            "live_chunks": chunks,
            "live_tokens": 100 * chunks,
            "activation_bytes": 3.0 * gib * chunks,
            "capacity_bytes": (8.0 - stage) * gib,
        }
        for stage, changes in (
            (0, [(0, 1), (4, 2), (16, 1), (24, 0)]),
            (1, [(4, 1), (16, 0), (16, 1), (20, 0)]),
        )
        for time, chunks in changes
    ]
    common: Row = {"plan": "pipeline", "iteration": 0, "pipeline": 0, "replica": 0}
    return write_result(
        results, "plan.memory", rows, "pipeline", schedule="1f1b", fidelity="analytic", **common
    )


def write_iterations(results: Path, rng: np.random.Generator) -> list[Path]:
    paths = []
    for parallelism, base, switches in (("sequence_parallel", 220.0, 12), ("pipeline", 180.0, 6)):
        rows = [
            {
                "mode": mode,
                "reconfiguration_latency_ms": latency,
                "iteration": iteration,
                "repeat": repeat,
                "rank": rank,
                "iteration_ms": base + switches * stall + rng.uniform(0, 25),
                "stall_ms": switches * stall,
                "disturbed": repeat == 2 and latency == 20,
                "fidelity": "measured_cpu" if mode == "electrical" else "emulated",
            }
            for mode, hidden in (("electrical", 0.0), ("on_demand", 0.0), ("provisioned", 8.0))
            for latency in ((0.0,) if mode == "electrical" else (0.0, 1.0, 5.0, 20.0, 50.0))
            for stall in [max(0.0, latency - hidden)]
            for repeat in range(3)
            for iteration in range(1, 4)
            for rank in range(4)
        ]
        paths.append(
            write_result(
                results,
                "training.iterations",
                rows,
                parallelism,
                run=parallelism,
                plan="flexsp" if parallelism == "sequence_parallel" else "pipeline",
                parallelism=parallelism,
                device="cpu",
                reconfigurations=switches,
            )
        )
    return paths


def write_cluster_time(results: Path) -> list[Path]:
    """Two runs on two topologies; the pipeline hides part of its communication."""
    return [
        write_result(
            results,
            "replay.settings",
            [
                {"topology": topology, "mode": mode, "cluster_ms": ms, "hidden_share": hidden}
                for topology, ms in (
                    ("recorded", 215.0),
                    ("railx_hyperx", 61.0),
                    ("fat_tree", 60.0),
                )
                for mode in ("electrical", "on_demand")
            ],
            parallelism,
            run=parallelism,
            plan=plan,
            parallelism=parallelism,
            device="cpu",
            compute="measured",
            wall_ms=215.0,
            fidelity="replay",
        )
        for parallelism, plan, hidden in (
            ("sequence_parallel", "flexsp", None),
            ("pipeline", "pipeline", 0.4),
        )
    ]


def write_losses(results: Path, rng: np.random.Generator) -> list[Path]:
    """Three runs whose curves differ by rounding; switching runs are no part of it."""
    noise = rng.uniform(0, 0.4, 50)
    paths = []
    for place, run in enumerate(("static_stdlib", "flexsp_stdlib", "pipeline_stdlib")):
        rows = [
            {"mode": mode, "iteration": step, "repeat": repeat, "rank": rank, "loss": loss}
            for mode, offset in (("electrical", 0.0), ("on_demand", 3.0))
            for repeat in range(3)
            for step in range(1, 51)
            for rank in range(2)
            for loss in [4 + 4 * 0.95**step + noise[step - 1] + offset + 1e-7 * place * step]
        ]
        path = write_result(
            results, "training.iterations", rows, run, run=run, fidelity="measured_cpu"
        )
        paths.append(path)
    return paths


def write_corpora(results: Path, rng: np.random.Generator) -> list[Path]:
    paths = []
    for name, kind, sigma in (
        ("stdlib", "real_text", 1.3),
        ("wikipedia", "published_quantiles", 1.5),
        ("github_like", "synthetic", 2.0),
    ):
        lengths = np.maximum(1, rng.lognormal(7, sigma, 4000)).astype(np.int64)
        rows = [{"sequence": i, "length_tokens": length} for i, length in enumerate(lengths)]
        names = {"name": name, "kind": kind}
        paths.append(write_result(results, "corpus.sequences", rows, name, names))
    return paths


def write_tenancy(results: Path, rng: np.random.Generator) -> dict[str, Path]:
    faults = [
        {
            "system": system,
            "placement": placement,
            "failed_nodes": failed,
            "sample": sample,
            "usable_share": max(0.1, 1 - weight * failed / 32)
            * (1 - 0.02 * rng.uniform() * (failed > 0)),
            "healthy_share": 1 - failed / 256,
            "formula_share": (1 - failed / 32) ** 2,
        }
        for failed in (0, 2, 4, 8)
        for placement, samples in (("distinct_lines", 1), ("random", 10))
        for sample in range(samples)
        for system, weight in (("railx", 1.6), ("hammingmesh", 1.6), ("torus", 4.0))
    ]
    use = [
        {
            "system": system,
            "queue": queue,
            "scenario": scenario,
            "failed_nodes": failed,
            "sample": sample,
            "utilisation": busy + 0.02 * sample,
            "rejected_share": 0.05 if queue == "reject" else 0.0,
            "wait_mean_hours": 0.0 if queue == "reject" else 12.0 + sample,
        }
        for system, busy in (("railx", 0.74), ("hammingmesh", 0.74), ("torus", 0.6))
        for queue in ("reject", "backfill")
        for scenario, failed in (("healthy", 0), ("failed_8", 8))
        for sample in range(2)
    ]
    common: Row = {"policy": "best_fit", "offered_load": 0.9, "fidelity": "analytic"}
    return {
        "faults": write_result(results, "tenancy.faults", faults, nodes=256, fidelity="analytic"),
        "utilisation": write_result(results, "tenancy.utilisation", use, **common),
    }


def write_trace(results: Path) -> Path:
    """Two networks over two intervals, jobs of two sizes, places drawn twice."""
    rows = [
        {
            "network": network,
            "draw": draw,
            "from_days": from_days,
            "days": days,
            "failed_servers": failed,
            "healthy_share": 1 - failed / 100,
            "largest_share": 1 - lost * failed / 100,
            "job_chips": job_chips,
            "usable_share": 1 - failed * job_chips / 3200,
        }
        for network, lost in (("railx", 5), ("khop_ring_3", 1))
        for draw in range(2)
        for from_days, days, failed in ((0.0, 300.0, 0), (300.0, 49.0, 8))
        for job_chips in (16, 64)
    ]
    return write_result(results, "tenancy.trace", rows, chips=3200, fidelity="analytic")


def write_node_prices(results: Path) -> Path:
    """A ranking that flips, one that does not, and one that no rate of ports makes."""
    rows = [
        {
            "topology": topology,
            "job": job,
            "difference_usd_per_chip": 1000.0,
            "difference_low_usd_per_chip": -200.0,
            "difference_high_usd_per_chip": 3000.0,
            "break_even_usd_per_chip": even,
            "faster_free": even is not None and even > 0,
            "faster_priced": even is not None and even > 1000,
            "flips": even == 500.0,
        }
        for topology, even in (("fat_tree_1250", 500.0), ("rail_only_1280", 9e3), ("torus", None))
        for job in ("dense", "experts")
    ]
    common: Row = {"reference": "railx_hyperx_m4n2", "node_gb_s": 1200.0, "fidelity": "analytic"}
    common |= {f"node_{end}usd_per_chip": 1.0 for end in ("", "low_", "high_")}
    return write_result(results, "mapping.node_prices", rows, "some", **common)


def write_steps(results: Path) -> list[Path]:
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
    slower_of = {"railx_hyperx_m4n2": 1.0, "fat_tree_1250": 6.0, "torus_3d_1331": None}
    paths = []
    for name, slower in slower_of.items():
        rows: Rows = []
        for job in ("dense", "experts"):
            for basis in ("equal_bandwidth", "equal_cost") if slower else ("equal_bandwidth",):
                head = {"job": job, "basis": basis}
                if slower is None and job == "experts":
                    rows.append({**head, "reason": "layout: got 16 x 8 x 8"})
                    continue
                factor = 1.2 if basis == "equal_bandwidth" or slower is None else slower
                parts = {part: 1e3 * s * factor for part, s in seconds.items()}
                step = {"step_ms": sum(parts.values())}
                rows += [{**head, "part": part, "ms": ms, **step} for part, ms in parts.items()]
        common: Row = {"topology": name, "chips": 1024, "fidelity": "flow"}
        paths.append(write_result(results, "mapping.steps", rows, name, **common))
    return paths


def write_profile(results: Path) -> Path:
    rng = np.random.default_rng(3)
    exact = profile_rows()

    def off(value: float) -> float:
        return value * float(rng.uniform(0.95, 1.05))

    measured = [
        row
        | {key: off(row[key]) for key in ("forward_ms", "backward_ms")}
        | {"kept_bytes": round(off(row["kept_bytes"])), "left_bytes": round(row["left_bytes"])}
        for row in exact
    ]
    rows = compared(measured, fit_profile(measured, 1), 1)
    return write_result(results, "profile.points", rows, "tiny", profile="tiny")


def write_design(results: Path) -> Path:
    rows = [
        {**point.row(), "rank": rank, "on_front": point.name != "beaten"}
        for rank, point in enumerate(SAMPLE, 1)
    ]
    return write_result(
        results, "design.points", rows, model="llama3_70b", objective="step_time", gpus_asked=100
    )


def write_all(results: Path) -> dict[str, dict[str, list[Path]]]:
    """Tables for every figure: figure name to its inputs."""
    rng = np.random.default_rng(7)
    bill = write_bill(results)
    tenancy = write_tenancy(results, rng)
    sensitivity = write_sensitivity(results)
    pipeline = write_pipeline(results)
    static = [[(4, 300.0, [9000])], [(4, 260.0, [2000, 3000, 2500, 100])], [(4, 200.0, [500] * 9)]]
    flexsp = [
        [(4, 300.0, [9000])],
        [(2, 180.0, [2000, 3000]), (1, 190.0, [2500, 100]), (1, 150.0, [500] * 9)],
    ]
    plans = [write_groups(results, "static", static), write_groups(results, "flexsp", flexsp)]
    iterations = write_iterations(results, rng)
    scale = write_scale(results)
    cases = write_plans(results)
    rails = write_rail_bills(results)
    generated = write_generated(results / "generated")
    return {
        "all_claims": {"claims": [write_claims(results)]},
        "network_prices": {"scale": [scale]},
        "live_switching": {"settings": write_live(results / "live")},
        "switching_overhead": {"iterations": iterations, "times": generated["times"]},
        "step_switches": {"times": generated["times"], "graphs": generated["graphs"]},
        "step_sweeps": {"times": generated["times"]},
        "step_model": write_validation(results),
        "arena": {"comparison": [write_arena(results)]},
        "design_front": {"points": [write_design(results)]},
        "plans_at_scale": {"sweeps": write_scaling(results)["sweeps"]},
        "sharded_replicas": {"sharded": write_scaling(results)["sharded"]},
        "step_windows": {key: generated[key] for key in ("windows", "timeline")},
        "switching_windows": {},
        "rail_bills": {"rails": rails["rail_bills"]},
        "rail_claims": {"map": rails["rail_claims"]},
        "switch_technologies": {},
        "switched_circuits": {"steps": [write_switched(results)]},
        "rail_steps": {"generated": [write_rail_steps(results)]},
        "rail_savings": {"rails": rails["rail_bills"]},
        "adaptive_speedups": {"groups": cases},
        "planners": {"groups": write_baselines(results / "baselines")},
        "all_to_all_degree": {"groups": cases},
        "pipeline_speedups": write_pipelines(results),
        "iteration_parts": write_iterations_of_plans(results / "parts"),
        "rail_rings": {"graph": [write_graph(results)]},
        "topology_metrics": {"topologies": [write_metrics(results)]},
        "all_to_all_bandwidth": {"bounds": write_bounds(results)},
        "cost_model_error": {"points": [write_profile(results)]},
        "cost": {key: [path] for key, path in bill.items()} | {"sensitivity": [sensitivity]},
        "price_sensitivity": {"sensitivity": [sensitivity]},
        "cost_scale": {"scale": [scale]},
        "claim_map": {"claim_map": [write_claim_map(results)]},
        "sequence_parallel_plan": {"groups": plans},
        "underlay": {"mix": write_underlays(results)},
        "pipeline_schedule": {key: [path] for key, path in pipeline.items()},
        "stage_memory": {"memory": [write_memory(results)]},
        "reconfiguration": {"iterations": iterations},
        "cluster_time": {"settings": write_cluster_time(results)},
        "planning_hidden": {"iterations": write_planned(results / "planned", rng)},
        "held_memory": {"passes": write_passes(results)},
        "loss_curves": {"iterations": write_losses(results / "losses", rng)},
        "corpus_lengths": {"sequences": write_corpora(results, rng)},
        "channel_loads": {"channels": write_channels(results, rng)},
        "ring_all_reduce": {
            "collectives": write_rings(results),
            "topologies": [write_speeds(results / "rings")],
        },
        "collective_time": {"collectives": write_collectives(results / "all")},
        "agreement": {"comparison": [write_agreement(results)]},
        "latency_load": {"points": write_packets(results)},
        "largest_job": {"faults": [tenancy["faults"]]},
        "step_time": {"steps": write_steps(results)},
        "utilisation": {"utilisation": [tenancy["utilisation"]]},
        "fault_trace": {"trace": [write_trace(results)]},
        "node_prices": {"prices": [write_node_prices(results)]},
    }


def published_inputs(name: str) -> dict[str, list[Path]]:
    """The published tables of a figure."""
    tables = figure_of(name).inputs
    return {table.key: [PUBLISHED / table.published] for table in tables if table.published}


def load_settings(name: str, **changes: Any) -> CanvasSettings:
    """The shipped settings of a figure, with changes; ``only`` is left open: an
    experiment's names are not those made here.
    """
    plain = choice("figure", name)
    if "only" in plain and plain["figure"] != "cost":
        plain["only"] = []
    settings: CanvasSettings = load(FigureSettings, {**plain, **changes})
    return settings


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run, the same for all its worker processes."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "figures"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def inputs(shared: Path) -> dict[str, dict[str, list[Path]]]:
    """Tables for every figure, made by the first worker that needs them."""
    names = shared / "tables.json"
    with FileLock(shared / "tables.lock"):
        if not names.exists():
            tables = write_all(shared / "tables")
            assert set(tables) == set(FIGURES)
            write_json(
                names,
                {
                    name: {key: [str(path) for path in paths] for key, paths in files.items()}
                    for name, files in tables.items()
                },
            )
    made = {
        name: {key: [Path(path) for path in paths] for key, paths in tables.items()}
        for name, tables in read_json(names).items()
    }
    return {name: published_inputs(name) | tables for name, tables in made.items()}


@pytest.fixture(scope="session")
def gallery(inputs: dict[str, dict[str, list[Path]]], shared: Path) -> Gallery:
    return Gallery(shared, lambda name, output: _draw(name, inputs, output))


def _draw(name: str, inputs: dict[str, dict[str, list[Path]]], output: Path) -> list[str]:
    """Draw a shipped figure; the texts that lie on one another are returned.

    :data:`PRINTED` alone is written as a PDF too: fonts take long to embed.
    """
    overlaps: list[str] = []
    write = canvas.save

    def watched(figure: Any, path: Path, dpi: int) -> None:
        overlaps.extend(clashes(figure))
        write(figure, path, dpi)

    settings = load_settings(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canvas, "save", watched)
        if name != PRINTED:
            patch.setattr(canvas, "save_pdf", lambda figure, output: None)
        draw_figure(settings, inputs[settings.figure], output)
    return overlaps


def draw_words(settings: CanvasSettings, inputs: dict[str, list[Path]], output: Path) -> Any:
    """Draw a figure without its layout and images, which take most of the time; its
    page.
    """
    pages: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("settle", "refuse_hidden"):
            patch.setattr(canvas, name, lambda *_: None)
        patch.setattr(canvas, "save", lambda page, *_: pages.append(page))
        patch.setattr(registry, "_draw_narrow", lambda *_: None)
        draw_figure(settings, inputs, output)
    return pages[0]


@pytest.fixture(scope="session")
def settings_of() -> Any:
    return load_settings
