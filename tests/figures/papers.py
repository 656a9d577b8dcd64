"""Small tables for the figures that draw published numbers beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from railx.io import write_json
from tests.builders import choice, write_result
from workflow.config import choices

Row = dict[str, Any]


def claim(name: str, ours: float | None, verdict: str, **more: Any) -> Row:
    """A published claim of ratio 1, with its verdict."""
    return {
        "claim": name,
        "kind": "published",
        "headline": False,
        "paper": "opus",
        "sentence": "Sentence.",
        "published": 1.0,
        "ours": ours,
        "comparison": "ratio",
        "tolerance": 0.1,
        "fidelity": None if ours is None else "analytic",
        "verdict": verdict,
        **more,
    }


def write_claims(results: Path) -> Path:
    """Claims of every verdict and comparison, with and without a ratio."""
    flexsp: Row = {"paper": "flexsp"}
    rows = [
        claim("opus_cost", 1.07, "reproduced", headline=True, comparison="at_least"),
        claim("opus_power", 0.6, "not reproduced", headline=True, comparison="at_most"),
        claim("opus_slope", 8.0, "direction only", low=7.0, high=9.0, fidelity="emulated"),
        claim("opus_trend", 1.9, "reproduced", comparison="trend"),
        claim("opus_overhead", 1.2, "undecided", fidelity="emulated"),
        claim("opus_testbed", None, "not here", headline=True),
        claim("flexsp_speedup", 1.02, "direction only", headline=True, **flexsp),
        *(claim(f"flexsp_same_{i}", 1.0, "reproduced", **flexsp) for i in range(7)),
        claim("flexsp_zero", 0.0, "reproduced", published=0.0, comparison="exact", **flexsp),
        claim("flexsp_check", 1.0, "reproduced", kind="check", **flexsp),
    ]
    return write_result(results, "evidence.claims", rows)


def plan_rows(plan: str, planner: str, seconds: float, degree: int, gb_s: float) -> list[Row]:
    """Two iterations of one micro-batch, costed with 2 MiB a token over ``gb_s``."""
    tokens = 64_000
    return [
        {
            "plan": plan,
            "planner": planner,
            "corpus": "wikipedia",
            "devices": 64,
            "kind": "sequence_parallel",
            "iteration": iteration,
            "micro_batch": 0,
            "degree": degree,
            "tokens": tokens,
            "predicted_ms": 1e3 * seconds,
            "predicted_all_to_all_ms": 2.0 * tokens / degree / gb_s,
        }
        for iteration in range(2)
    ]


def write_plans(results: Path) -> list[Path]:
    """Plans for the published case of Wikipedia's lengths."""
    return [
        write_result(results, "plan.groups", rows, str(rows[0]["plan"]), fidelity="analytic")
        for rows in (
            plan_rows("static_7b_192k_wikipedia", "static", 8.0, 64, 4.87),
            plan_rows("flexsp_7b_192k_wikipedia", "flexsp", 5.0, 8, 96.5),
        )
    ]


def write_baselines(results: Path) -> list[Path]:
    """Plans of several planners for two corpora."""
    seconds = {"static": 8.0, "static_per_batch": 6.0, "megatron": 9.0, "byte_scale": 5.0}
    return [
        write_result(
            results,
            "plan.groups",
            [row | {"corpus": corpus} for row in plan_rows(plan, planner, each, 64, 4.87)],
            plan,
            fidelity="analytic",
        )
        for corpus in ("wikipedia", "github_like")
        for planner, each in (seconds | {"flexsp": 4.0}).items()
        for plan in [f"{planner}_7b_192k_{corpus.removesuffix('_like')}"]
    ]


def write_underlays(results: Path) -> list[Path]:
    """Two plans on the cluster's own bandwidths, and on two networks at three rates."""
    paths = []
    for network, times in (
        ("published", (16.0, 24.0)),
        ("rails", (15.0, 21.0)),
        ("tree", (19, 22)),
    ):
        rates = [("equal_rate", 6.25), ("equal_rate", 50.0), ("equal_cost", 6.25)]
        bases = [("own", None)] if network == "published" else rates
        rows = [
            {
                "plan": f"{plan}_7b_384k_commoncrawl",
                "planner": plan.split("_")[0],
                "basis": basis,
                "outside_gb_s": rate,
                "made_for": made_for,
                "iteration": iteration,
                "iteration_ms": 1e3 * seconds + 500 * (made_for == "cluster"),
                "degree": degree,
                "device_ms": 64e3 * seconds * share,
                "share": share,
            }
            for basis, rate in bases
            for plan, seconds in zip(("flexsp", "static_per_batch"), times, strict=True)
            for made_for in (("cluster",) if basis == "own" else ("cluster", "network"))
            for iteration in range(2)
            for degree, share in ((1, 0.3), (8, 0.4), (64, 0.25), (0, 0.05))
        ]
        named = {"network": network, "label": network, "fidelity": "analytic"}
        paths.append(write_result(results, "underlay.mix", rows, network, **named))
    return paths


def write_pipelines(results: Path) -> dict[str, list[Path]]:
    """A pipeline of two stages, and the plans of the same batches."""
    plans = write_plans(results / "with_pipeline")
    chunks = [
        {"iteration": iteration, "group": chunk, "tokens": 32_000}
        for iteration in range(2)
        for chunk in range(2)
    ]
    groups = write_result(
        results / "with_pipeline",
        "plan.groups",
        chunks,
        "pipeline_7b_192k_wikipedia",
        plan="pipeline_7b_192k_wikipedia",
        planner="pipeline",
        corpus="wikipedia",
        devices=8,
        kind="pipeline",
        micro_batch=0,
        predicted_ms=1000.0,
        fidelity="analytic",
    )
    # Each stage works for 3 s of 4 s.
    schedule = [
        {"iteration": iteration, "stage": stage, "start_ms": start, "end_ms": start + 3000.0}
        for iteration in range(2)
        for stage, start in ((0, 0.0), (1, 1000.0))
    ]
    passes = write_result(
        results / "with_pipeline",
        "plan.schedule",
        schedule,
        "pipeline_7b_192k_wikipedia",
        plan="pipeline_7b_192k_wikipedia",
        pipeline=0,
        replica=0,
        chunk=0,
        kind="forward",
        fidelity="analytic",
    )
    return {"groups": [*plans, groups], "schedule": [passes]}


def write_iterations_of_plans(results: Path) -> dict[str, list[Path]]:
    """Every plan of the figures of iteration parts, two batches of 10 s each.

    Groups: two of 4 of 8 ranks, one of which waits for 2 s; 3 s are all-to-all and 1 s
    is ZeRO-3's. Pipelines: two stages that run 6 s of chunks, of which 1 s is
    all-to-all, recompute 2 s, wait for 1 s, and then gather for 1 s.
    """
    shipped = [choice("figure", name) for name in choices("figure")]
    panels = [one["panels"] for one in shipped if one["figure"] == "iteration_parts"]
    plans = {plan for one in panels for some in one.values() for plan in some}
    found: dict[str, list[Path]] = {"groups": [], "schedule": [], "summary": []}
    for plan in sorted(plans):
        pipelined = not plan.startswith(("flexsp", "deepspeed", "joint"))
        head = {"plan": plan, "devices": 8, "predicted_other_ms": 0.0, "micro_batch": 0}
        head |= {"kind": "pipeline" if pipelined else "sequence_parallel", "fidelity": "analytic"}
        times = [(8, 6000.0, 1000.0)] if pipelined else [(4, 10_000.0, 3000.0), (4, 8000.0, 3000.0)]
        rows = [
            {"iteration": iteration, "degree": degree, "predicted_ms": time_ms}
            | {"predicted_all_to_all_ms": exchange_ms}
            for iteration in range(2)
            for degree, time_ms, exchange_ms in times
        ]
        found["groups"].append(write_result(results, "plan.groups", rows, plan, **head))
        schedule = [
            {"iteration": iteration, "stage": stage, "start_ms": start, "end_ms": start + 8000.0}
            for iteration in range(2 if pipelined else 0)
            for stage, start in ((0, 0.0), (1, 1000.0))
        ]
        found["schedule"].append(
            write_result(results, "plan.schedule", schedule, plan, plan=plan, replica=0)
        )
        summary = results / "plan" / plan / "summary.json"
        write_json(summary, {"plan": plan, "predicted_sharding_ms": 1000.0})
        found["summary"].append(summary)
    return found
