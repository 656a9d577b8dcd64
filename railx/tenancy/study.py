"""The tables of the tenancy studies: failures, job streams, degraded lines, job
mixes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from railx.progress import counted
from railx.tenancy.allocate import find_nodes
from railx.tenancy.degraded import degraded_rows
from railx.tenancy.grid import (
    Faults,
    NodeGrid,
    PlacedJob,
    check_placements,
    placement_circuits,
    random_faults,
)
from railx.tenancy.largest import formula_share, largest_block, largest_product, matching_size
from railx.tenancy.settings import SYSTEMS, GridJobSettings, TenancySettings, place_rule
from railx.tenancy.stream import Outcome, Stream, draw_failures, draw_stream, simulate_stream
from railx.vocabulary.arrays import BoolArray
from railx.vocabulary.topology import Circuits, join_rows

Rows = list[dict[str, Any]]
# Each study has its own random sequence, so that a change of one leaves the others
# unchanged.
_FAULTS, _DEGRADED, _MIX, _STREAM = range(4)


def fault_table(settings: TenancySettings, seed: int) -> Rows:
    """Largest usable job by number of failed nodes.

    One row per count, draw and system; shares are of all side^2 nodes. ``placement``:
    random (nodes drawn uniformly) or distinct_lines (no two in one line, the case of
    the formula). RailX and HammingMesh take products of lines and have the same
    optimum; the torus takes a contiguous block. ``formula_share`` is NaN for more
    failures than distinct lines. ``lines_needed`` is the size of a maximum matching of
    the failed pairs.
    """
    side, rows = settings.side, []
    for count in counted(settings.faults.counts, "counts of failures"):
        formula = formula_share(count, side) if count <= side else float("nan")
        for placement, sample, healthy in _draws(settings, count, seed):
            largest, lines_needed = largest_product(healthy), matching_size(healthy)
            nodes = {"lines": largest.nodes, "blocks": largest_block(healthy)}
            for system in SYSTEMS:
                rule = place_rule(system)
                rows.append(
                    {
                        "system": system,
                        "placement": placement,
                        "failed_nodes": count,
                        "sample": sample,
                        "nodes": side**2,
                        "usable_nodes": nodes[rule],
                        "usable_share": nodes[rule] / side**2,
                        "healthy_share": 1 - count / side**2,
                        "formula_share": formula,
                        "lines_needed": lines_needed,
                        "lines_out": len(largest.rows_out) + len(largest.columns_out)
                        if rule == "lines"
                        else None,
                        "fidelity": "analytic",
                    }
                )
    return rows


def _draws(
    settings: TenancySettings, count: int, seed: int
) -> Iterator[tuple[str, int, BoolArray]]:
    """Healthy masks: failures on a diagonal if that is long enough, and random ones."""
    side = settings.side
    if count <= side:
        healthy = np.ones((side, side), dtype=np.bool_)
        healthy[np.arange(count), np.arange(count)] = False
        yield "distinct_lines", 0, healthy
    for sample in range(settings.faults.samples):
        rng = np.random.default_rng([seed, _FAULTS, count, sample])
        yield "random", sample, _healthy(side, count, rng)


def _healthy(side: int, failed: int, rng: np.random.Generator) -> BoolArray:
    """Working nodes when ``failed`` of them, drawn uniformly, do not work."""
    healthy = np.ones(side**2, dtype=np.bool_)
    healthy[rng.choice(side**2, size=failed, replace=False)] = False
    return healthy.reshape(side, side)


def degraded_table(settings: TenancySettings, seed: int) -> Rows:
    """Links and rings left in a line after failures: :mod:`railx.tenancy.degraded`."""
    rng = np.random.default_rng([seed, _DEGRADED])
    return degraded_rows(
        settings.side, settings.rails, settings.degraded.failures, settings.degraded.samples, rng
    )


def allocate_jobs(
    grid: NodeGrid, jobs: Sequence[GridJobSettings], faults: Faults
) -> list[PlacedJob | None]:
    """Place jobs one after another, the largest first, around the failures.

    None for a job without a free product. An all-to-all of k nodes takes no line with
    fewer than k - 1 rails that work on all of its nodes; a ring takes any line with a
    working rail.
    """
    free = faults.healthy(grid)
    placed: list[PlacedJob | None] = [None] * len(jobs)
    for index in sorted(range(len(jobs)), key=lambda i: -jobs[i].nodes):
        job = jobs[index]
        for a, b in dict.fromkeys(((job.rows, job.columns), (job.columns, job.rows))):
            # The lines with enough rails depend on the job's orientation, so the search
            # must not turn it.
            wireable = _wireable(grid, free, faults, job, a, b)
            lines = find_nodes(wireable, a, b, "lines", "best_fit", turn=False)
            if lines is not None:
                placed[index] = PlacedJob(
                    tuple(map(int, lines[0])), tuple(map(int, lines[1])), job.setting
                )
                free[np.ix_(*lines)] = False
                break
    return placed


def _wireable(
    grid: NodeGrid, free: BoolArray, faults: Faults, job: GridJobSettings, rows: int, columns: int
) -> BoolArray:
    """The free nodes without lines that lack rails for a job of this shape."""
    mask = free.copy()
    broken: list[dict[int, set[int]]] = [{}, {}]
    for dimension, line, rail in faults.switches:
        broken[dimension].setdefault(line, set()).add(rail)
    for row, column, dimension, rail in faults.rails:
        broken[dimension].setdefault(row if dimension == 0 else column, set()).add(rail)
    for dimension, length in ((0, columns), (1, rows)):
        needed = 0 if length == 1 else length - 1 if job.setting == "hyperx" else 1
        for line, rails in broken[dimension].items():
            if grid.rails - len(rails) < needed:
                (mask if dimension == 0 else mask.T)[line] = False
    return mask


def mix_of_jobs(settings: TenancySettings, seed: int) -> dict[str, Any]:
    """Jobs of several shapes and settings placed together around random failures.

    They are checked port by port. Returns the placed jobs, the failures and flat
    counts. Raises ValueError as :func:`railx.tenancy.grid.check_placements`;
    ``ports_shared`` and the counts of failed parts used are counted again here, from
    the circuits of all jobs.
    """
    grid, mix = NodeGrid(settings.side, settings.rails), settings.mix
    rng = np.random.default_rng([seed, _MIX])
    faults = random_faults(grid, mix.failed_nodes, mix.failed_rails, mix.failed_switches, rng)
    placed = allocate_jobs(grid, mix.jobs, faults)
    placements = [placement for placement in placed if placement is not None]
    circuits = [placement_circuits(grid, placement, faults) for placement in placements]
    counts = check_placements(grid, faults, list(zip(placements, circuits, strict=True)))
    touched = _touched(grid, circuits)
    side, rails = grid.side, grid.rails
    failed = {
        "nodes": {row * side + column for row, column in faults.nodes},
        "rails": {((y * side + x) * 2 + d) * rails + rail for y, x, d, rail in faults.rails},
        "switches": {(d * side + line) * rails + rail for d, line, rail in faults.switches},
    }
    summary = {
        "jobs": len(placed),
        "jobs_placed": counts["jobs"],
        "shapes": len({(job.rows, job.columns) for job in mix.jobs}),
        "wirings": len({job.setting for job in mix.jobs}),
        "nodes_asked": sum(job.nodes for job in mix.jobs),
        "nodes_placed": counts["nodes"],
        "circuits": counts["circuits"],
        **{f"failed_{part}": getattr(mix, f"failed_{part}") for part in failed},
        "ports_shared": touched["port_ends"] - len(touched["ports"]),
        **{f"failed_{part}_used": len(touched[part] & failed[part]) for part in failed},
    }
    return {"placements": placed, "faults": faults, "summary": summary}


def _touched(grid: NodeGrid, circuits: Sequence[Circuits]) -> dict[str, Any]:
    """Numbers of the nodes, node rails, switches and ports in all circuits."""
    names = ("ocs", "dimension", "rail", "port_a", "port_b", "node_a", "node_b")
    joined = join_rows(circuits)
    columns = (getattr(joined, name).astype(np.int64) for name in names)
    ocs, dimension, rail, port_a, port_b, *ends = columns
    parts = {
        "nodes": np.concatenate(ends),
        "rails": np.concatenate([(node * 2 + dimension) * grid.rails + rail for node in ends]),
        "switches": ocs,
        "ports": np.concatenate([ocs * 2 * grid.side + port for port in (port_a, port_b)]),
    }
    numbers: dict[str, Any] = {name: set(np.unique(part).tolist()) for name, part in parts.items()}
    return numbers | {"port_ends": 2 * len(ocs)}


def utilisation_table(settings: TenancySettings, seed: int) -> Rows:
    """Use of the grid by a stream of jobs.

    One row per system, policy, queue, scenario, offered load and draw. All systems and
    policies see the same arrivals and failures. HammingMesh places by the rule of
    RailX, so its rows repeat those of RailX; the two differ in more than counts of
    nodes.
    """
    rows: Rows = []
    stream = settings.stream
    for sample in counted(range(stream.samples), "streams of jobs"):
        for load in stream.offered_loads:
            drawn = draw_stream(
                stream, settings.side**2, load, np.random.default_rng([seed, _STREAM, sample])
            )
            for number, (name, scenario) in enumerate(stream.scenarios.items()):
                rng = np.random.default_rng([seed, _STREAM, sample, 1 + number])
                healthy = _healthy(settings.side, scenario.failed_nodes, rng)
                hours = float(drawn.arrival_hours[-1])
                failures = draw_failures(
                    settings.side, scenario.mean_hours_between_failures, hours, rng
                )
                case = {"scenario": name, "failed_nodes": scenario.failed_nodes}
                case |= {"offered_load": load, "sample": sample}
                for policy, queue in product(stream.policies, stream.queues):
                    measures: dict[str, dict[str, Any]] = {}
                    for system in stream.systems:
                        rule = place_rule(system)
                        if rule not in measures:
                            outcome = simulate_stream(
                                stream,
                                drawn,
                                healthy,
                                failures,
                                rule=rule,
                                policy=policy,
                                queue=queue,
                            )
                            measures[rule] = _measures(settings, drawn, outcome)
                        head = {"system": system, "policy": policy, "queue": queue}
                        rows.append(head | case | measures[rule])
    return rows


def _measures(settings: TenancySettings, stream: Stream, outcome: Outcome) -> dict[str, Any]:
    window = outcome.to_hours - outcome.from_hours
    considered = stream.arrival_hours >= outcome.from_hours
    nodes = np.array([job.nodes for job in settings.stream.jobs])[stream.kind]
    asked = nodes * stream.duration_hours
    wait = (outcome.start_hours - stream.arrival_hours)[considered & ~np.isnan(outcome.start_hours)]
    refused = considered & outcome.rejected
    return {
        "jobs": int(considered.sum()),
        "utilisation": outcome.busy_node_hours / (window * settings.side**2),
        "utilisation_of_healthy": outcome.busy_node_hours / outcome.healthy_node_hours,
        "rejected_share": float(refused.sum() / considered.sum()),
        "rejected_by_shape_share": float(
            (refused & outcome.rejected_by_shape).sum() / considered.sum()
        ),
        "rejected_node_hours_share": float(asked[refused].sum() / asked[considered].sum()),
        "wait_mean_hours": float(wait.mean()) if len(wait) else None,
        "wait_p95_hours": float(np.quantile(wait, 0.95)) if len(wait) else None,
        "blocked_by_shape_share": outcome.blocked_hours / window,
        "interruptions": outcome.interruptions,
        "lost_share": outcome.lost_node_hours / outcome.total_node_hours,
        "fidelity": "analytic",
    }


def tenancy_summary(
    settings: TenancySettings,
    faults: Rows,
    utilisation: Rows,
    degraded: Rows,
    mix: Mapping[str, Any],
) -> dict[str, Any]:
    """A flat summary of the tables: shares are ratios, times hours."""
    grid = NodeGrid(settings.side, settings.rails)
    line = min(grid.side, grid.rails + 1)
    summary: dict[str, Any] = {
        "nodes": grid.nodes,
        "chips": grid.nodes * settings.m**2,
        "rails": grid.rails,
        "optical_switches": grid.switches,
        "all_to_all_line_nodes": line,
        "fidelity": "analytic",
    }
    by_count = _grouped(faults, ("failed_nodes", "system", "placement"))
    for count in settings.faults.counts:
        for system in ("railx", "torus"):
            shares = [row["usable_share"] for row in by_count[count, system, "random"]]
            summary[f"faults.{count}.{system}_share"] = float(np.mean(shares))
        for exact in by_count.get((count, "railx", "distinct_lines"), [])[:1]:
            summary[f"faults.{count}.distinct_lines_share"] = exact["usable_share"]
            summary[f"faults.{count}.formula_share"] = exact["formula_share"]
    cases = ("scenario", "queue", "policy", "offered_load", "system")
    for key, rows in _grouped(utilisation, cases).items():
        name = ".".join(
            f"load_{round(100 * part)}" if isinstance(part, float) else str(part) for part in key
        )
        for column in ("utilisation", "rejected_share", "wait_mean_hours"):
            values = [row[column] for row in rows if row[column] is not None]
            summary[f"stream.{name}.{column}"] = float(np.mean(values)) if values else None
    for key, rows in _grouped(degraded, ("setting", "fault", "plan", "failures")).items():
        for column in ("ring_share", "worst_pair_share", "pairs_lost"):
            values = [row[column] for row in rows]
            summary[f"degraded.{'.'.join(map(str, key))}.{column}"] = float(np.mean(values))
    return summary | {f"mix.{key}": value for key, value in mix.items()}


def _grouped(rows: Rows, columns: tuple[str, ...]) -> dict[tuple[Any, ...], Rows]:
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups
