"""The stage that tracks: what it makes of the files of a results folder, by what the
stages declare. Digests of results: the same for the same config, inputs and code,
different for any change.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.io import dotted_leaves, read_json, write_json, write_table
from railx.tracking.compare import compare_invocations
from railx.tracking.results import StageResult, few_numbers, numbers, result_digest
from railx.tracking.stage_results import stage_result
from railx.tracking.store import open_store
from tests.builders import choice, write_result
from workflow.experiment import checked_experiment
from workflow.stages import STAGES, tracked_results

RUN = {
    "run": "flexsp_stdlib",
    "plan": "flexsp_stdlib",
    "parallelism": "sequence_parallel",
    "device": "cpu",
    "mode": "on_demand",
    "reconfiguration_latency_ms": 50.0,
}


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    """What is said of the training run, from where the project stands."""
    experiment = checked_experiment(["experiment=quick"])
    (result,) = (
        one
        for one in tracked_results(experiment)
        if (one["stage"], one["name"]) == ("training", "flexsp_stdlib")
    )
    return result


@pytest.fixture
def folder(
    described: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Results of one training run, from where a pipeline would run."""
    results = tmp_path / "results" / "quick"
    rows = [
        {
            **RUN,
            "iteration": iteration,
            "rank": rank,
            "iteration_ms": 100.0 + iteration + rank,
            "stall_ms": 10.0,
            "wait_ms": 5.0,
            "loss": 4.0 - iteration,
        }
        for iteration in (1, 2)
        for rank in (0, 1)
    ]
    write_result(results, "training.iterations", rows, "flexsp_stdlib")
    run = results / "training" / "flexsp_stdlib"
    write_table(run / "settings.parquet", [RUN])
    write_json(run / "summary.json", {"on_demand_50ms": {"iteration_ms": 102.5}, "seed": 1})
    (run / "trace.json").write_text("{}")
    for path in ("plan/flexsp_stdlib/plan.json", "corpus/stdlib/sequences.parquet"):
        (results / path).parent.mkdir(parents=True)
        (results / path).write_text(path)
    benchmarks = results / "benchmarks" / "training"
    benchmarks.mkdir(parents=True)
    (benchmarks / "flexsp_stdlib.tsv").write_text(
        "s\th:m:s\tmax_rss\tcpu_time\n54.1\t0:00:54\t2446.8\tNA\n"
    )
    monkeypatch.chdir(tmp_path)
    yield results
    shutil.rmtree(results)


def track(folder: Path, result: dict[str, Any]) -> dict[str, Any]:
    return STAGES["tracking"].make(
        {
            "tracking": {**choice("tracking", "default"), "wandb": "disabled"},
            "experiment": "quick",
            "config": {"seed": 1},
            "folder": str(folder.parent),
            "results": [result],
        },
        outputs={"tracking": folder / "tracking.json"},
    )


def test_a_training_run_is_tracked_with_its_whole_history(
    folder: Path, described: dict[str, Any]
) -> None:
    summary = track(folder, described)
    assert read_json(folder / "tracking.json") == summary
    (tracked,) = summary["runs"]
    client = open_store(folder.parent, create=False)
    run = client.get_run(tracked["mlflow_run"])
    for value, points in (
        ("iteration_ms", [(1, 102.0), (2, 103.0)]),
        ("stall_ms", [(1, 10.0), (2, 10.0)]),
        ("wait_ms", [(1, 5.0), (2, 5.0)]),
        ("loss", [(1, 3.0), (2, 2.0)]),
    ):
        history = client.get_metric_history(run.info.run_id, f"on_demand_50ms/{value}")
        assert [(point.step, point.value) for point in history] == points
    assert run.data.metrics["on_demand_50ms.iteration_ms"] == 102.5
    assert run.data.metrics["job.seconds"] == 54.1
    # Snakemake writes NA of a job that was too short for it.
    assert "job.cpu_seconds" not in run.data.metrics
    assert run.data.params["training.iterations"] == "3"
    lineage = read_json(client.download_artifacts(run.info.run_id, "lineage.json"))
    assert set(lineage["inputs"]) == {
        "results/quick/plan/flexsp_stdlib/plan.json",
        "results/quick/corpus/stdlib/sequences.parquet",
    }
    assert "results/quick/training/flexsp_stdlib/iterations.parquet" in lineage["outputs"]


def test_code_of_a_run_is_known_by_module(
    folder: Path, described: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import workflow.digest
    from railx.tracking import runs

    named = iter(("run-1", "run-2"))
    real = runs.log_runs
    monkeypatch.setattr(
        "railx.tracking.runs.log_runs",
        lambda *given, **about: real(*given, **{**about, "invocation": next(named)}),
    )
    track(folder, described)
    digest = workflow.digest.module_digest
    monkeypatch.setattr(
        workflow.digest,
        "module_digest",
        lambda module: "changed" if module == "training.loop" else digest(module),
    )
    track(folder, {**described, "code": "changed"})
    comparison = compare_invocations(folder.parent, "run-1", "run-2")
    assert [(row["module"], row["b"]) for row in comparison["code"]] == [
        ("training.loop", "changed")
    ]
    assert [row["because"] for row in comparison["stages"]] == [["code"]]


def test_figures_verdicts_and_the_page_are_tracked() -> None:
    experiment = checked_experiment(["experiment=quick"])
    results = {(one["stage"], one["name"]): one for one in tracked_results(experiment)}
    assert results["figure", "cost"]["artifacts"] == [
        "results/quick/figure/cost.png",
        "results/quick/figure/cost.csv",
    ]
    assert results["report", "page"]["artifacts"] == ["results/quick/report.html"]
    assert results["evidence", "claims"]["verdicts"] == "results/quick/evidence/claims.parquet"
    (history,) = results["packets", "railx_hyperx_min"]["history"]
    assert (history["repeat"], history["settings"]) == ("seed", True)


_LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
)
_CONFIGS = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=5), _CONFIGS, max_size=5))
def test_digest_does_not_depend_on_the_order_of_keys(config: dict[str, object]) -> None:
    assert result_digest(config) == result_digest(dict(reversed(config.items())))


def test_digest_sees_config_code_contents_and_their_order(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1")
    two.write_bytes(b"2")
    base = result_digest({"a": 1}, [one, two], "code")
    assert result_digest({"a": 1}, [one, two], "code") == base
    changed = [
        result_digest({"a": 2}, [one, two], "code"),
        result_digest({"a": 1}, [two, one], "code"),
        result_digest({"a": 1}, [one], "code"),
        result_digest({"a": 1}, [one, two], "other"),
    ]
    two.write_bytes(b"3")
    changed.append(result_digest({"a": 1}, [one, two], "code"))
    assert len({base, *changed}) == 6
    one.rename(tmp_path / "renamed")
    two.write_bytes(b"2")
    assert result_digest({"a": 1}, [tmp_path / "renamed", two], "code") == base


def test_keys_tell_stage_name_and_digest_apart() -> None:
    keys = {
        StageResult(*parts, {}, {}).key
        for parts in (("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""), ("", "ab", "c"))
    }
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("rows", "values"),
    [
        (
            [{"network": "a", "usd": 1.0}, {"network": "b", "usd": 2.0}],
            {"a.usd": 1.0, "b.usd": 2.0},
        ),
        (
            [
                {"network": "a", "latency_ms": latency, "step_ms": 2.0 * latency}
                for latency in (1.0, 10.0)
            ],
            {"a.1.step_ms": 2.0, "a.10.step_ms": 20.0},
        ),
    ],
)
def test_no_row_of_a_table_takes_the_place_of_another(
    rows: list[dict[str, Any]], values: dict[str, float], tmp_path: Path
) -> None:
    write_table(tmp_path / "steps.parquet", rows)
    result = {
        "stage": "switched",
        "numbers": str(tmp_path / "steps.parquet"),
        **dict.fromkeys(("name", "code", "benchmark", "verdicts", "fidelity"), ""),
        **dict.fromkeys(("history", "artifacts", "inputs", "outputs"), ()),
        **{key: {} for key in ("settings", "packages")},
    }
    assert numbers(stage_result(result, {}).metrics) == values


def test_dotted_leaves_and_numbers_keep_leaves() -> None:
    nested = {
        "a": {"b": 1, "c": {"d": 2.5}},
        "e": [1, 2],
        "f": "text",
        "g": float("inf"),
        "h": False,
    }
    assert dict(dotted_leaves(nested)) == {
        "a.b": 1,
        "a.c.d": 2.5,
        "e": [1, 2],
        "f": "text",
        "g": float("inf"),
        "h": False,
    }
    assert numbers(nested) == {"a.b": 1.0, "a.c.d": 2.5, "h": 0.0}


def test_few_numbers_are_those_of_the_result_itself() -> None:
    metrics = {
        "parts": {"a": {"x": 1.0}, "b": {"x": 2.0}},
        "a_name_that_is_longer_than_the_head_of_a_chart": 3.0,
        "time": 4.0,
        "time_low": 3.5,
        "time_high": 4.5,
        "chips": 5,
    }
    assert few_numbers(metrics, 2) == {"time": 4.0, "chips": 5.0}
    assert next(iter(few_numbers(metrics, 3))).startswith("a_name")
    assert len(few_numbers(metrics, 6)) == 6
    assert few_numbers(metrics, 100) == numbers(metrics)
