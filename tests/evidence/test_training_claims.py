"""The claims on measured, emulated and replayed training, on tables whose values are
known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from railx.evidence import judge
from railx.intervals import FEWEST
from railx.io import write_json
from tests.builders import write_result
from workflow.experiment import checked_experiment
from workflow.resources import all_claims

CLAIMS = [claim for claim in all_claims() if claim.file.endswith("_training.yaml")]
TIMED = (
    "opus_on_demand_time_grows_with_latency",
    "opus_on_demand_pays_every_reconfiguration",
    "opus_provisioned_no_slower_than_on_demand",
)
UNTIMED = (
    "opus_pipeline_alone_never_switches",
    "opus_data_parallel_pipeline_switches_twice",
    "opus_provisioned_hides_stalls",
    "infinipipe_window_in_training",
    "infinipipe_live_chunks_over_time",
    "infinipipe_stage_memory_in_training",
    "infinipipe_same_loss",
    "infinipipe_loss_falls",
    "flexsp_same_loss",
)
CONVERGENCE = ("infinipipe_same_loss", "infinipipe_loss_falls", "flexsp_same_loss")
LATENCIES_MS = (0.0, 10.0, 50.0)


def block(
    mode: str,
    latency_ms: float,
    repeat: int,
    *,
    transitions: int = 2,
    hidden_ms: float = 0.0,
    slower_ms: float = 0.0,
    disturbed: bool = False,
    loss: float = 4.2,
    steps: int = 50,
) -> Iterator[dict[str, Any]]:
    """T0 + N max(0, L - W) for two ranks, a small batch and a large one.

    One iteration of each batch was held up by others, and rank 1 waits for rank 0. With
    electrical switching there are as many ``steps`` as convergence needs, and the loss
    falls.
    """
    stall = transitions * max(0.0, latency_ms - hidden_ms)
    iterations = steps if mode == "electrical" else 4
    for iteration in range(1, 1 + iterations):
        tokens = 500 if iteration % 2 else 900
        for rank in (0, 1):
            yield {
                "mode": mode,
                "reconfiguration_latency_ms": latency_ms,
                "iteration": iteration,
                "repeat": repeat,
                "rank": rank,
                "tokens": tokens,
                "iteration_ms": tokens + stall + slower_ms - 3 * rank + 70 * (iteration > 2),
                "stall_ms": stall,
                "reconfigurations": 0 if mode == "electrical" else transitions,
                "loss": loss - 0.01 * iteration,
                "disturbed": disturbed,
                "fidelity": "measured_cpu" if mode == "electrical" else "emulated",
            }


def repeat_of(repeat: int, **changes: Any) -> Iterator[dict[str, Any]]:
    """All blocks of a repeat; asking ahead hides 20 ms of each switch."""
    yield from block("electrical", 0.0, repeat, **changes)
    for latency_ms in LATENCIES_MS:
        yield from block("on_demand", latency_ms, repeat, **changes)
        yield from block("provisioned", latency_ms, repeat, hidden_ms=20, **changes)


def alone(repeat: int) -> Iterator[dict[str, Any]]:
    """A job that never switches."""
    for mode in ("electrical", "on_demand", "provisioned"):
        yield from block(mode, 0.0, repeat, transitions=0)


def passes(more: int = 0, share: float = 1.0) -> list[dict[str, Any]]:
    """Two chunks through three stages: forward, forward, backward, backward.

    Each holds ``more`` chunks once, and ``share`` of the bytes expected.
    """
    return [
        {
            "stage": stage,
            "rank": stage,
            "place": 0,
            "position": position,
            "kind": kind,
            "chunk": chunk,
            "live_chunks": live + more * (position == 1),
            "predicted_live_chunks": live,
            "held_bytes": int(1000 * live * share),
            "peak_bytes": 2000 * live,
            "predicted_held_bytes": 1000 * live,
        }
        for stage in range(3)
        for position, (kind, chunk, live) in enumerate(
            [("forward", 0, 1), ("forward", 1, 2), ("backward", 0, 1), ("backward", 1, 0)]
        )
    ]


def verdicts(
    results: Path,
    pipeline: Iterable[dict[str, Any]],
    static: Iterable[dict[str, Any]] = (),
    held: tuple[int, int] = (3, 2),
    parameters: int = 10_000_000,
    over_time: Iterable[dict[str, Any]] = (),
) -> dict[str, dict[str, Any]]:
    whole = [row for n in range(3) for row in repeat_of(n)]
    runs = {
        "pipeline_stdlib": list(pipeline),
        "static_stdlib": list(static) or whole,
        "flexsp_stdlib": whole,
        "pipeline_alone_stdlib": [row for n in range(3) for row in alone(n)],
    }
    files = [
        write_result(results, "training.iterations", rows, run, run=run)
        for run, rows in runs.items()
    ]
    blocks = [
        {
            "mode": "electrical",
            "repeat": repeat,
            "fidelity": "measured_cpu",
            "peak_live_chunks": list(held),
            "planned_peak_live_chunks": [3, 2],
        }
        for repeat in range(3)
    ]
    for run in ("pipeline_stdlib", "static_stdlib", "flexsp_stdlib"):
        files.append(results / f"training/{run}/result.json")
        write_json(files[-1], {"parameters": parameters, "blocks": blocks})
    own = list(over_time) or passes()
    files.append(
        write_result(
            results, "training.passes", own, "pipeline_stdlib", run="pipeline_stdlib",
            plan="pipeline_stdlib", device="cpu", iteration=0, replica=0, pipeline=0,
            start_ms=0.0, end_ms=1.0, fidelity="measured_cpu",
        )
    )  # fmt: skip
    names = [str(file.relative_to(results)) for file in files]
    return {row["claim"]: row for row in judge(CLAIMS, results, names)}


def three(**changes: Any) -> list[dict[str, Any]]:
    return [row for repeat in range(3) for row in repeat_of(repeat, **changes)]


def test_every_claim_on_training_is_tried_here() -> None:
    assert {claim.id for claim in CLAIMS} == {*TIMED, *UNTIMED}


@pytest.mark.parametrize(("name", "fewest"), [("quick", FEWEST), ("rails", FEWEST), ("paper", 7)])
def test_runs_whose_times_are_judged_are_repeated(name: str, fewest: int) -> None:
    """Fixed before a run: enough for Student's interval, or for order statistics."""
    runs = checked_experiment([f"experiment={name}"])["runs"]
    queries = [claim.settings.query or "" for claim in CLAIMS if claim.id in TIMED]
    timed = {run for query in queries for run in re.findall(r"training\.(\w+)\.", query)}
    assert timed & runs.keys()
    for run in timed & runs.keys():
        assert runs[run]["training"]["repeats"] >= fewest


def test_claims_follow_the_model_of_switching(tmp_path: Path) -> None:
    found = verdicts(tmp_path, three())
    for name, row in found.items():
        assert (row["verdict"], row["samples"]) == ("reproduced", 3), f"{name}: {row['reason']}"
    ours = {name: row["ours"] for name, row in found.items()}
    assert ours["opus_on_demand_pays_every_reconfiguration"] == pytest.approx(1.0)
    assert ours["opus_provisioned_hides_stalls"] == pytest.approx(0.5)
    assert ours["opus_data_parallel_pipeline_switches_twice"] == 2
    # On demand 720 and 800 ms, provisioned 700 and 760.
    assert ours["opus_provisioned_no_slower_than_on_demand"] == pytest.approx(1460 / 1520)
    assert found["infinipipe_same_loss"]["fidelity"] == "measured_cpu"
    assert found["opus_provisioned_hides_stalls"]["fidelity"] == "emulated"


def test_one_repeat_decides_nothing(tmp_path: Path) -> None:
    found = verdicts(tmp_path, repeat_of(0))
    left_alone = (
        "opus_pipeline_alone_never_switches",
        "infinipipe_window_in_training",
        "infinipipe_live_chunks_over_time",
        "infinipipe_stage_memory_in_training",
        "flexsp_same_loss",
    )
    assert {row["verdict"] for name, row in found.items() if name not in left_alone} == {
        "undecided"
    }
    assert "too few: 1 repeat" in found["infinipipe_same_loss"]["reason"]


def test_a_slow_repeat_leaves_differences_within_it(tmp_path: Path) -> None:
    """Three repeats of unlike speed: each is compared with itself."""
    slow = [row for n in range(3) for row in repeat_of(n, slower_ms=400.0 * n)]
    found = verdicts(tmp_path, slow)
    pays = found["opus_on_demand_pays_every_reconfiguration"]
    assert (pays["low"], pays["high"]) == (pytest.approx(1.0), pytest.approx(1.0))
    assert found["opus_on_demand_time_grows_with_latency"]["verdict"] == "reproduced"


def test_disturbed_repeats_are_set_aside_where_time_counts(tmp_path: Path) -> None:
    """The third repeat ran beside something; its counts and losses stand."""
    disturbed = [*repeat_of(0), *repeat_of(1), *repeat_of(2, disturbed=True, slower_ms=9000)]
    found = verdicts(tmp_path, disturbed)
    for name in TIMED:
        assert (found[name]["verdict"], found[name]["samples"]) == ("undecided", 2), name
        assert found[name]["set_aside"] > 0, name
    for name in UNTIMED:
        assert (found[name]["verdict"], found[name]["set_aside"]) == ("reproduced", 0), name


def test_a_block_that_was_run_again_stands_for_its_repeat(tmp_path: Path) -> None:
    """Beside the disturbed block stands an undisturbed one of the same repeat."""
    again = list(block("on_demand", 50.0, 1, disturbed=True, slower_ms=9000))
    again += block("provisioned", 10.0, 2, disturbed=True, slower_ms=9000)
    found = verdicts(tmp_path, [*again, *three()])
    for name, row in found.items():
        assert (row["verdict"], row["samples"], row["set_aside"]) == ("reproduced", 3, 0), name
    ours = found["opus_on_demand_pays_every_reconfiguration"]["ours"]
    assert ours == pytest.approx(1.0)


def test_a_slower_mode_contradicts(tmp_path: Path) -> None:
    rows = three()
    for row in rows:
        if row["mode"] == "provisioned":
            row["iteration_ms"] += 100
            row["stall_ms"] = 200.0
    found = verdicts(tmp_path, rows)
    assert found["opus_provisioned_no_slower_than_on_demand"]["verdict"] == "not reproduced"
    assert found["opus_provisioned_hides_stalls"]["verdict"] == "not reproduced"


def test_one_switch_more_in_one_repeat_is_no_agreement(tmp_path: Path) -> None:
    rows = three()
    for row in rows:
        if row["repeat"] == 2 and row["mode"] == "on_demand":
            row["reconfigurations"] = 3
    switches = verdicts(tmp_path, rows)["opus_data_parallel_pipeline_switches_twice"]
    assert switches["verdict"] == "undecided"


def test_a_chunk_too_many_and_another_loss_contradict(tmp_path: Path) -> None:
    found = verdicts(tmp_path, three(), static=three(loss=4.3), held=(4, 2))
    assert found["infinipipe_window_in_training"]["verdict"] == "not reproduced"
    assert found["infinipipe_same_loss"]["verdict"] == "not reproduced"
    assert found["flexsp_same_loss"]["verdict"] == "not reproduced"


def test_a_chunk_or_bytes_too_many_contradict(tmp_path: Path) -> None:
    many = verdicts(tmp_path / "many", three(), over_time=passes(more=1))
    assert many["infinipipe_live_chunks_over_time"]["verdict"] == "not reproduced"
    assert many["infinipipe_stage_memory_in_training"]["verdict"] == "reproduced"
    for share, verdict in ((1.04, "reproduced"), (0.9, "not reproduced")):
        found = verdicts(tmp_path / str(share), three(), over_time=passes(share=share))
        assert found["infinipipe_stage_memory_in_training"]["verdict"] == verdict
        assert found["infinipipe_live_chunks_over_time"]["verdict"] == "reproduced"


def test_a_toy_converges_nowhere(tmp_path: Path) -> None:
    """Few steps, or few parameters: what coincides there decides nothing."""
    short = three(steps=49)
    for number, (rows, parameters, reason) in enumerate(
        (
            (short, 10_000_000, "ours rests on 49 steps of at least 50 that the claim requires"),
            (three(), 824_704, "ours rests on 824,704 parameters of at least 10,000,000 that"),
        )
    ):
        found = verdicts(tmp_path / str(number), rows, parameters=parameters)
        same = found["infinipipe_same_loss"]
        assert same["verdict"] == "undecided"
        assert f"but {reason}" in same["reason"]
    # The second run of the loop: every claim on convergence stands on the same model.
    assert {found[name]["verdict"] for name in CONVERGENCE} == {"undecided"}


def test_a_toy_that_differs_contradicts(tmp_path: Path) -> None:
    found = verdicts(tmp_path, three(steps=4), static=three(loss=4.3, steps=4))
    assert found["infinipipe_same_loss"]["verdict"] == "not reproduced"
    assert "besides, ours rests on 4 steps" in found["infinipipe_same_loss"]["reason"]


def test_a_loss_that_rises_contradicts(tmp_path: Path) -> None:
    rows = three()
    for row in rows:
        row["loss"] += 0.05 * row["iteration"]
    found = verdicts(tmp_path, rows, static=rows)
    assert found["infinipipe_loss_falls"]["verdict"] == "not reproduced"
    assert found["infinipipe_same_loss"]["verdict"] == "reproduced"


def test_less_than_half_hidden_is_the_direction_only(tmp_path: Path) -> None:
    """20 ms of each switch are hidden: of 50 ms and of 10, half; 19 ms are less."""
    rows = three()
    for row in rows:
        if row["mode"] == "provisioned" and row["stall_ms"]:
            row["stall_ms"] += 2
    hides = verdicts(tmp_path, rows)["opus_provisioned_hides_stalls"]
    assert hides["verdict"] == "direction only"
    assert hides["ours"] == pytest.approx(62 / 120)


@pytest.mark.parametrize(("off_ms", "verdict"), [(1.0, "reproduced"), (9.0, "not reproduced")])
def test_a_replay_may_be_two_percent_off(tmp_path: Path, off_ms: float, verdict: str) -> None:
    wanted = [claim for claim in all_claims() if claim.id == "opus_replay_gives_the_recorded_times"]
    rows: list[dict[str, Any]] = [
        {"topology": topology, "mode": mode, "iteration": iteration, "cluster_ms": ms}
        for topology, mode, ms in (
            ("recorded", "electrical", 100.0 + off_ms),
            ("recorded", "on_demand", 300.0),
            ("fat_tree", "electrical", 20.0),
        )
        for iteration in (1, 2)
    ]
    made = write_result(
        tmp_path,
        "replay.iterations",
        rows,
        "pipeline_stdlib",
        wall_ms=100.0,
        fidelity="replay",
    )
    (found,) = judge(wanted, tmp_path, [str(made.relative_to(tmp_path))])
    assert found["verdict"] == verdict
    assert found["ours"] == pytest.approx(off_ms / 100)
