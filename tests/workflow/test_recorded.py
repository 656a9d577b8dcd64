"""Recordings of a GPU: tables that are empty without one, and verdicts with one.

The recordings here are made up (``stand_in``), written to a temporary folder and never
to results/recorded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from railx.evidence import judge
from railx.io import read_json, read_rows, write_json
from tests.builders import ROOT
from training.records import SCHEMA, read_record
from workflow.resources import all_claims
from workflow.stages import STAGES
from workflow.stages.recorded import RECORDINGS

STAGE = STAGES["recorded"]
TABLES = ("steps", "checks", "measurements")
CLAIMS = {claim.id: claim for claim in all_claims()}
#: The claims that rest on recordings alone.
OF_RECORDINGS = [claim for claim in CLAIMS.values() if "recorded." in (claim.settings.query or "")]
SIZES = ("llama_1b", "llama_7b", "llama_13b", "llama_30b")


def check(name: str, found: float, expected: float = 0.0, *, goal: bool = False) -> dict[str, Any]:
    return {
        "name": name, "subject": "", "found": found, "relation": "at_most", "expected": expected,
        "unit": "", "passed": found <= expected, "goal": goal, "fidelity": "measured_gpu",
    }  # fmt: skip


def number(name: str, subject: str, value: float, sample: str = "") -> dict[str, Any]:
    return {
        "name": name, "subject": subject, "sample": sample, "value": value, "unit": "",
        "fidelity": "measured_gpu",
    }  # fmt: skip


def thrice(name: str, subject: str, value: float) -> list[dict[str, Any]]:
    return [number(name, subject, value, str(sample)) for sample in range(3)]


def record(
    step: str,
    checks: list[dict[str, Any]],
    measurements: list[dict[str, Any]] = [],  # noqa: B006
) -> dict[str, Any]:
    """A record as a step writes it, of a device that there is not."""
    missed = any(one["passed"] is False and not one["goal"] for one in checks)
    return {
        "schema": SCHEMA,
        "step": step,
        "part": 1,
        "status": "wrong" if missed else "passed",
        "why": "does not hold" if missed else "",
        "seconds": 1.5,
        "fidelity": "measured_gpu",
        "provenance": {
            "commit": "0" * 40, "device": "cuda", "device_name": "a stand-in of a GPU",
            "driver": None, "cuda": "12.8", "nccl": None, "torch": "2.11.0", "python": "3.12.1",
            "cores": 16, "seed": 1, "command": "gpu step x", "started": "2026-01-01T00:00:00",
        },
        "checks": checks,
        "measurements": measurements,
        "details": {"anything": [1, {"deep": None}]},
    }  # fmt: skip


def stand_in(folder: Path, **changes: float) -> list[Path]:
    """A recording in which everything holds, but for ``changes``."""
    values = {"time": 0.03, "memory": 0.02, "slices": 2.4, "gradients": 1e-14, "early": 0.5}
    values |= {"mfu": 0.46, "over_nccl": 1.05, "step_model": 0.05, "scores": 0.1}
    values |= changes
    held = [check("something", 0.0)]
    plans = [f"{plan} {what} float64" for plan in ("static", "flexsp") for what in ("a", "b")]
    records = [
        *(
            record(
                f"profile_{size}",
                held,
                [
                    number("largest_time_error", f"flexsp {size}", values["time"]),
                    number("median_time_error", f"infinipipe {size}", values["time"]),
                    number("median_memory_error", f"infinipipe {size}", values["memory"]),
                ],
            )
            for size in SIZES
        ),
        record(
            "stages", held, [number("memory_error", f"stage {n}", values["memory"]) for n in (0, 1)]
        ),
        record(
            "slices",
            held,
            [number("time_over_whole", "8 slices", values["slices"], str(n)) for n in range(3)],
        ),
        record(
            "equality",
            held,
            [number("difference_from_one_process", plan, values["gradients"]) for plan in plans],
        ),
        record("compiled", held, thrice("mfu", "compiled", values["mfu"])),
        record(
            "eager",
            held,
            thrice("mfu", "eager", values["mfu"])
            + thrice("step_model_error", "", values["step_model"]),
        ),
        record("fsdp", held, thrice("step_time_over_nccl", "fsdp2", values["over_nccl"])),
        record(
            "attention",
            [
                check("memory_over_all_scores", values["scores"], 0.25) | {"subject": head}
                for head in "abc"
            ],
        ),
        record("order", [check(name, values["early"], 1.0) for name in ("a", "b", "c")]),
    ]
    paths = [folder / "made_up" / "steps" / f"{one['step']}.json" for one in records]
    for path, one in zip(paths, records, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, one)
    return paths


def verdicts(folder: Path, records: list[Path]) -> dict[str, dict[str, Any]]:
    """What the claims on recordings come to with these records."""
    outputs = {key: folder / "results" / STAGE.path(key) for key in (*TABLES, "summary")}
    STAGE.make(inputs={"records": records}, outputs=outputs)
    files = [str(path.relative_to(folder / "results")) for path in outputs.values()]
    rows = judge(OF_RECORDINGS, folder / "results", files)
    return {row["claim"]: row for row in rows}


def test_without_a_recording_tables_are_empty_and_nothing_is_attempted(tmp_path: Path) -> None:
    found = verdicts(tmp_path, [])
    assert len(found) == 10
    for name in TABLES:
        assert read_rows(tmp_path / "results" / "recorded" / f"{name}.parquet") == []
    summary = read_json(tmp_path / "results" / "recorded" / "summary.json")
    assert summary == {"recordings": 0, "records": 0, "note": "nothing was measured on a GPU"}
    for row in found.values():
        assert row["verdict"] == "not testable"
        assert row["reason"].startswith("Nothing was measured on a GPU")
        assert "make gpu" in row["needs"]


def test_with_a_recording_the_verdicts_follow_its_numbers(tmp_path: Path) -> None:
    found = verdicts(tmp_path, stand_in(tmp_path))
    assert {row["verdict"] for row in found.values()} == {"reproduced"}
    assert {row["fidelity"] for row in found.values()} == {"measured_gpu"}
    assert {row["needs"] for row in found.values()} == {""}
    assert found["infinipipe_kernel_slowdown"]["ours"] == 2.4
    (steps, checks, measurements) = (
        read_rows(tmp_path / "results" / "recorded" / f"{name}.parquet") for name in TABLES
    )
    assert {row["recording"] for row in (*steps, *checks, *measurements)} == {"made_up"}
    assert {row["device_name"] for row in steps} == {"a stand-in of a GPU"}
    assert [row["commit"] for row in steps] == ["0" * 40] * 12


@pytest.mark.parametrize(
    ("change", "claim", "verdict"),
    [
        ({"time": 0.2}, "flexsp_layer_cost_model_error", "not reproduced"),
        ({"time": 0.2, "memory": 0.2}, "infinipipe_cost_model_error", "not reproduced"),
        ({"slices": 1.4}, "infinipipe_kernel_slowdown", "not reproduced"),
        ({"gradients": 1e-3}, "flexsp_gradients_of_ranks_on_a_gpu", "not reproduced"),
        ({"early": 7.0}, "opus_grants_on_a_gpu", "not reproduced"),
        ({"mfu": 0.42}, "gpu_compiled_mfu", "not reproduced"),
        ({"mfu": 0.39}, "gpu_eager_mfu", "not reproduced"),
        ({"over_nccl": 1.2}, "gpu_fsdp_over_nccl", "not reproduced"),
        ({"step_model": 0.1}, "gpu_step_model_error", "not reproduced"),
        ({"scores": 0.9}, "gpu_attention_memory", "not reproduced"),
    ],
)
def test_a_number_that_is_off_changes_its_verdict(
    tmp_path: Path, change: dict[str, float], claim: str, verdict: str
) -> None:
    assert verdicts(tmp_path, stand_in(tmp_path, **change))[claim]["verdict"] == verdict


def test_a_dry_run_is_no_recording(tmp_path: Path) -> None:
    plain = record("order", [check("a", 0.0) | {"fidelity": "measured_cpu"}])
    plain["fidelity"] = "measured_cpu"
    plain["provenance"]["device"] = "cpu"
    path = tmp_path / "dry" / "steps" / "order.json"
    path.parent.mkdir(parents=True)
    write_json(path, plain)
    assert read_record(path).status == "passed"
    with pytest.raises(ValueError, match=r"order\.json: measured_cpu; allowed: records of"):
        verdicts(tmp_path, [path])


def test_what_is_recorded_here_is_whole() -> None:
    for path in (ROOT / RECORDINGS).glob("*/steps/*.json"):
        kept = read_record(path)
        assert kept.fidelity == "measured_gpu"
        assert "stand-in" not in kept.provenance.device_name
