"""The claims and published numbers that ship with the project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from railx.evidence import judge, load_claims, read_papers, read_published
from railx.planning.plan import Chunk, Pipeline, Slice
from railx.planning.schedule import simulate_pipeline
from tests.builders import PUBLISHED, ROOT, published, published_rows, write_result

RESOURCES = ROOT / "resources"
CLAIMS = load_claims(RESOURCES / "claims", PUBLISHED, RESOURCES / "papers.yaml")
OURS = sorted(
    path
    for path in PUBLISHED.glob("*.csv")
    if path.stem.split("_")[0] in ("railx", "opus", "infinipipe")
)


def value(file: str, row_id: str) -> float:
    return read_published(PUBLISHED, file, row_id).value


def verdicts(results: Path) -> dict[str, dict[str, Any]]:
    files = [str(path.relative_to(results)) for path in results.rglob("*.parquet")]
    return {row["claim"]: row for row in judge(CLAIMS, results, files)}


def test_every_paper_has_claims_with_a_source() -> None:
    assert len(CLAIMS) >= 12
    assert {claim.paper for claim in CLAIMS} == set(read_papers(RESOURCES / "papers.yaml"))
    assert all(claim.published.source and claim.published.confidence for claim in CLAIMS)


def test_without_results_no_claim_is_attempted(tmp_path: Path) -> None:
    rows = judge(CLAIMS, tmp_path, [])
    assert {row["verdict"] for row in rows} == {"not attempted"}
    assert all("is not among the results" in row["reason"] for row in rows)


#: What the papers themselves state, as far as their text was available; all else is
#: derived or a check.
STATED = {
    "flexsp_all_to_all_share_across_nodes",
    "flexsp_all_to_all_share_in_a_node",
    "flexsp_less_all_to_all",
    "flexsp_speedup_github",
    "flexsp_speedup_wikipedia",
    "infinipipe_bubble_share",
    "infinipipe_same_loss",
    "infinipipe_speedup_over_flexsp",
    "infinipipe_window_of_live_chunks",
    "opus_network_cost",
    "opus_network_power",
    "opus_pipeline_alone_never_switches",
    "railx_absolute_cost",
    "railx_all_to_all_setting_keeps_ring_all_reduce",
    "railx_cost_per_all_to_all_bandwidth",
    "railx_cost_per_injection_bandwidth",
    "railx_diameter_at_full_scale",
    "railx_failures_worked_around",
    "railx_jobs_of_different_shapes_together",
    "railx_scale_of_one_flat_layer",
}


def test_published_claims_are_those_that_a_paper_states() -> None:
    published = {claim.id for claim in CLAIMS if claim.settings.kind == "published"}
    assert published == STATED


def test_a_published_claim_rests_on_a_number_that_is_not_derived() -> None:
    for claim in CLAIMS:
        if claim.settings.kind == "published":
            assert not claim.published.source.startswith("derived"), claim.id
        if claim.published.source.startswith("derived"):
            assert claim.settings.kind != "published", claim.id


def test_every_query_survives_a_shell_and_argument_parser() -> None:
    """`railx sql` takes the query as an argument: it may not look like an option."""
    for claim in CLAIMS:
        query = (claim.settings.query or "").strip()
        assert not query.startswith("-"), claim.id
        assert query.isascii(), claim.id


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_every_published_row_has_a_source_and_every_id_is_unique(path: Path) -> None:
    rows = published_rows(path.name)
    assert rows
    assert all(row["source"] and row["confidence"] in ("high", "medium", "low") for row in rows)
    ids = [row["id"] for row in rows if "id" in row]
    assert len(ids) == len(set(ids))


def test_derived_numbers_of_opus_follow_from_its_tables() -> None:
    measured = published("opus_perlmutter_iteration_latency.csv")

    def seconds(row_id: str) -> float:
        return float(measured[row_id]["mean_iteration_latency_s"])

    slope = seconds("llama16_on_demand_3000ms") - seconds("llama16_on_demand_2000ms")
    assert slope == pytest.approx(value("opus.csv", "on_demand_slope_perlmutter_llama16"), abs=1e-3)
    transitions = float(published("opus_phase_pattern.csv")["llama16"]["transitions_per_iteration"])
    assert transitions == value("opus.csv", "transitions_fsdp_pp2_two_micro_batches")
    assert slope / transitions == pytest.approx(
        value("opus.csv", "on_demand_slope_over_transitions"), rel=0.02
    )
    for case in ("llama16", "llama64"):
        latencies = [
            row["reconfig_latency_ms"]
            for row in measured.values()
            if row["case"] == case and row["mode"] == "provision"
        ]
        ratios = [
            seconds(f"{case}_provision_{ms}ms") / seconds(f"{case}_on_demand_{ms}ms")
            for ms in latencies
        ]
        assert max(ratios) <= value("opus.csv", "provisioned_over_on_demand")
    assert float(
        published("opus_phase_pattern.csv")["deepseek2d"]["transitions_per_iteration"]
    ) == value("opus.csv", "transitions_pp_only")
    for row in published("opus_simulation_smoke.csv").values():
        longer_ms = (float(row["on_demand_step_s"]) - float(row["eps_step_s"])) * 1e3
        assert longer_ms / float(row["reconfig_latency_ms"]) == pytest.approx(
            value("opus.csv", "transitions_dp2_pp2")
        )


def test_opus_simulations_follow_from_their_windows() -> None:
    """T(L) = T0 + sum max(0, L - W): beyond the last window the provisioned time grows
    by the windows left.
    """
    steps = published("opus_simulation_latency.csv")

    def ns(row_id: str) -> float:
        return float(steps[row_id]["sys0_cycles_ns"])

    for figure, gpus in (("fig12", "h200"), ("fig13", "gb200")):
        provisioned = (
            ns(f"{figure}_opus_provision_10ms") / ns(f"{figure}_eps_full_bw_analytical") - 1
        )
        assert provisioned == pytest.approx(
            value("opus.csv", f"overhead_{gpus}_provisioned_10ms"), abs=5e-4
        )
    assert (
        ns("fig12_opus_provision_1000ms") - ns("fig12_opus_provision_0ms")
    ) / 1e6 == pytest.approx(6 * 1000 - value("opus.csv", "windows_hidden_h200_ms"), abs=0.1)


def test_opus_saving_follows_from_the_cost_table() -> None:
    rows = published("opus_cost_power.csv")
    for gpus, config in (
        ("h200", "h200_400g_fig15_trx879_512"),
        ("gb200", "gb200_800g_fig15_trx879_512"),
    ):
        row = rows[config]
        cost = float(row["cost_rail_opt_usd"]) / float(row["cost_opus_usd"])
        power = float(row["power_rail_opt_w"]) / float(row["power_opus_w"])
        assert cost == pytest.approx(
            value("opus.csv", f"network_cost_reduction_{gpus}_512"), abs=5e-4
        )
        assert power == pytest.approx(
            value("opus.csv", f"network_power_reduction_{gpus}_512"), abs=5e-4
        )


def test_flexsp_speedups_agree_with_the_measured_bars() -> None:
    """Printed speed-ups and bar heights come from one figure: they agree within the
    reading error of both bars.
    """
    bars = published("flexsp_iteration_seconds.csv")
    for row in published("flexsp_speedups.csv").values():
        key = f"{row['model']}_{row['context']}_{row['corpus']}"
        slow, fast = bars[f"{key}_{row['reference']}"], bars[f"{key}_{row['system']}"]
        ratio = float(slow["seconds_per_iteration"]) / float(fast["seconds_per_iteration"])
        reading = sum(
            float(bar["reading_error_seconds"]) / float(bar["seconds_per_iteration"])
            for bar in (slow, fast)
        )
        assert ratio == pytest.approx(float(row["value"]), rel=reading + 0.01)
    assert max(float(row["value"]) for row in published("flexsp_speedups.csv").values()) == value(
        "flexsp.csv", "speedup_over_megatron_most"
    )


def test_railx_static_table_is_consistent() -> None:
    for row in published("railx_uniform_bounds.csv").values():
        m, n, rails = int(row["m"]), int(row["n"]), int(row["rails"])
        assert rails == m * n
        assert int(row["chips"]) == (rails + 1) ** 2 * m**2
        assert float(row["min_bound_flits_per_chip_cycle"]) < float(
            row["ideal_flits_per_chip_cycle"]
        )


def write_schedule(results: Path, rows: list[dict[str, Any]]) -> None:
    write_result(results, "plan.schedule", rows, "pipeline_stdlib", fidelity="analytic")


def pipeline_rows(
    chunk_counts: list[int], stages: int, forward_ms: list[float] | None = None
) -> list[dict[str, Any]]:
    """The simulated schedule of sequences cut into these many chunks, longest first."""
    chunks: list[Chunk] = []
    for sequence, count in enumerate(chunk_counts):
        for part in range(count):
            ms = 1.0 if forward_ms is None else forward_ms[len(chunks)]
            piece = Slice(sequence=sequence, start=part * 4, stop=part * 4 + 4, length=count * 4)
            chunks.append(
                Chunk(slices=(piece,), predicted_forward_ms=ms, predicted_backward_ms=2 * ms)
            )
    ops = simulate_pipeline(Pipeline(stages=stages, replica=0, chunks=tuple(chunks)))
    common = {"iteration": 0, "pipeline": 0, "replica": 0}
    return [
        {
            **common,
            "stage": op.stage,
            "chunk": op.chunk,
            "kind": op.kind,
            "start_ms": op.start_ms,
            "end_ms": op.end_ms,
        }
        for op in ops
    ]


@pytest.mark.parametrize("chunk_counts", [[4, 3, 2, 1, 1, 1], [3, 3, 1, 1], [1] * 6, [2], [1]])
def test_pipeline_claims_hold_for_equal_chunks(tmp_path: Path, chunk_counts: list[int]) -> None:
    write_schedule(tmp_path, pipeline_rows(chunk_counts, 2))
    found = verdicts(tmp_path)
    assert found["infinipipe_window_of_live_chunks"]["verdict"] == "reproduced"
    makespan = found["infinipipe_makespan_closed_form"]
    assert (makespan["verdict"], makespan["ours"]) == ("reproduced", pytest.approx(1.0))
    bubble = 1 / (sum(chunk_counts) + 1)
    assert found["infinipipe_bubble_share"]["ours"] == pytest.approx(bubble)
    # A simulated schedule proves a measured share partly at best.
    assert found["infinipipe_bubble_share"]["verdict"] == (
        "partly" if bubble <= 0.2 else "not reproduced"
    )


def test_unequal_chunks_break_the_closed_form(tmp_path: Path) -> None:
    write_schedule(tmp_path, pipeline_rows([1, 1, 1, 1], 2, [8.0, 1.0, 1.0, 8.0]))
    assert verdicts(tmp_path)["infinipipe_makespan_closed_form"]["verdict"] == "partly"


def test_a_stage_that_holds_every_chunk_breaks_the_window(tmp_path: Path) -> None:
    rows = pipeline_rows([1] * 6, 2)
    for row in rows:
        if row["stage"] == 0 and row["kind"] == "backward":
            row |= {"start_ms": row["start_ms"] + 100, "end_ms": row["end_ms"] + 100}
    write_schedule(tmp_path, rows)
    window = verdicts(tmp_path)["infinipipe_window_of_live_chunks"]
    # All six are held where d_p - p + N_split = 2 - 1 + 1 chunks are allowed.
    assert (window["ours"], window["verdict"]) == (4.0, "not reproduced")


def test_flexsp_speedup_is_the_ratio_of_slowest_groups(tmp_path: Path) -> None:
    plans = {
        "static_wikipedia": [(0, 32, 10.0), (0, 32, 4.0), (1, 64, 7.2)],
        "flexsp_wikipedia": [(0, 32, 6.0), (0, 32, 5.0), (1, 64, 4.0)],
    }
    for plan, groups in plans.items():
        rows = [
            {
                "micro_batch": batch,
                "degree": degree,
                "predicted_ms": ms,
                "predicted_all_to_all_ms": ms / 4,
            }
            for batch, degree, ms in groups
        ]
        common: dict[str, Any] = {"plan": plan, "iteration": 0, "fidelity": "analytic"}
        write_result(tmp_path, "plan.groups", rows, plan, **common)
    found = verdicts(tmp_path)
    speedup = found["flexsp_speedup_wikipedia"]
    assert speedup["ours"] == pytest.approx(1.72)
    assert (speedup["verdict"], speedup["fidelity"]) == ("partly", "analytic")
    assert "requires measured_gpu" in speedup["reason"]
    assert found["flexsp_speedup_github"]["verdict"] == "not attempted"
    assert found["flexsp_less_all_to_all"]["ours"] == pytest.approx(
        (32 * 14 + 64 * 7.2) / (32 * 11 + 64 * 4)
    )
