"""``railx replay``: the step of traces of others on networks, a line for bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from railx.exchange.graph_files import read_graphs
from tests.exchange.traces import COLL, COMP, node, unpacked, write
from tests.workflow.test_cli import refused
from workflow.cli import main

#: The rates of the Opus artifact.
RATES = (
    *("--scale-up-gb-s", "450", "--scale-out-gb-s", "50"),
    *("--tflops", "989", "--memory-gb-s", "4800"),
)
TWO_LEVEL = ("--network", "two_level", "--server", "8", *RATES)


def replayed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["replay", *words, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    answer = json.loads(printed.out)
    # A list, whatever the number; one replay also has its figures beside it.
    (row,) = answer.pop("replays")
    assert row == answer
    return answer


def test_the_smoke_run_of_the_public_generator(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two stages of 28.8 s follow each other. An executor of other code, for which all
    but tensor parallelism leaves the server, says 61.39 s.
    """
    monkeypatch.chdir(tmp_path)
    prefix = unpacked("stg_smoke_8", tmp_path)
    before = set(tmp_path.iterdir())
    groups = ("--groups", f"{prefix}.json")
    found = replayed(capsys, str(prefix), *groups, *TWO_LEVEL, "--counts", "published")
    assert found["step_ms"] == pytest.approx(61_386, rel=0.002)
    assert found["compute_ms"] == pytest.approx(28_821, rel=1e-4)
    assert set(found["exposed_ms"]) == {
        "all_gather",
        "all_reduce",
        "reduce_scatter",
        "send",
        "recv",
    }
    assert found["fidelity"] == "replay"
    parts = found["compute_ms"] + sum(found["exposed_ms"].values()) + found["waiting_ms"]
    assert parts == pytest.approx(found["step_ms"])
    assert set(tmp_path.iterdir()) == before
    hardware = replayed(capsys, str(prefix), *TWO_LEVEL, "--counts", "hardware")
    assert hardware["step_ms"] == pytest.approx(2 * found["step_ms"], rel=1e-6)
    slow = replayed(capsys, str(prefix), *TWO_LEVEL, "--latency-ns", "1e6")
    assert slow["step_ms"] > found["step_ms"] + 200


@pytest.mark.slow
def test_128_ranks_of_the_public_generator(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The executor of other code says 11.686 s, one collective of a rank at a time."""
    prefix = unpacked("stg_h200_128_llama", tmp_path)
    found = replayed(capsys, str(prefix), *TWO_LEVEL)
    assert found["step_ms"] == pytest.approx(11_686, rel=1e-4)
    assert found["placement"] == "traffic"
    several = replayed(capsys, str(prefix), *TWO_LEVEL, "--collectives", "one_of_each_group")
    assert several["step_ms"] == pytest.approx(11_645, rel=1e-4)
    numbered = replayed(capsys, str(prefix), *TWO_LEVEL, "--placement", "consecutive")
    assert numbered["step_ms"] > 20_000


def test_a_table_of_networks_and_modes_and_a_trace_for_perfetto(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prefix = unpacked("stg_smoke_8", tmp_path)
    words = ("--network", "fat_tree", "railx_hyperx", "opus_rails", *RATES, "--server", "4")
    modes = ("--mode", "electrical", "on_demand", "provisioned", "--latency-ms", "10", "100")
    assert main(["replay", str(prefix), *words, *modes]) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = [line.split("  ") for line in lines[:8]]
    table = [[cell.strip() for cell in row if cell.strip()] for row in cells]
    assert table[0] == [
        *("network", "chips", "mode", "latency_ms", "step_ms", "compute_ms"),
        *("all_reduce_ms", "all_gather_ms", "reduce_scatter_ms", "send_ms", "recv_ms"),
        *("waiting_ms", "switches", "windows", "contention", "fidelity"),
    ]
    assert [row[0] for row in table[1:]] == ["fat_tree", "railx_hyperx", *["opus_rails"] * 5]
    assert [row[2:4] for row in table[3:]] == [
        ["electrical", "0"],
        *(["on_demand", "10"], ["on_demand", "100"]),
        *(["provisioned", "10"], ["provisioned", "100"]),
    ]
    contention = [row[-2] for row in table[1:]]
    assert contention == ["exact loads"] * 2 + ["own circuits"] * 5
    step = [float(row[4]) for row in table[3:]]
    assert step[0] <= step[3] <= step[1] < step[2]
    assert lines[-1] == "written: workload.perfetto.json"
    written = json.loads((tmp_path / "workload.perfetto.json").read_text())
    names = [e["args"]["name"] for e in written["traceEvents"] if e["name"] == "process_name"]
    assert names[0] == "fat_tree, electrical"
    assert names[-1] == "opus_rails, provisioned, 100 ms"
    ends = [e["ts"] + e["dur"] for e in written["traceEvents"] if e["ph"] == "X" and e["pid"] == 6]
    assert max(ends) == pytest.approx(step[-1] * 1e3, rel=1e-5)


def test_recorded_torch_needs_no_rates(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prefix = unpacked("torch_gloo_2", tmp_path)
    out = tmp_path / "job.perfetto.json"
    words = ("--network", "opus_rails", "--mode", "on_demand", "--latency-ms", "25")
    assert main(["replay", str(prefix), *words, "--out", str(out)]) == 0
    # Both ranks are in one server, which needs no light.
    assert "job" not in capsys.readouterr().err
    (line,) = [e for e in json.loads(out.read_text())["traceEvents"] if e["name"] == "process_name"]
    assert line["args"]["name"] == "opus_rails, on_demand, 25 ms"


def test_networks_in_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A link of 2 GB/s: a ring of two sends half of a tensor twice."""
    own = [node(0, COLL, comm_type=0, comm_size=4_000_000)]
    prefix = write(tmp_path, {0: own, 1: own})
    network = tmp_path / "network.yml"
    rate = 2e9 / 2**30
    network.write_text(f"topology: [Ring]\nnpus_count: [2]\nbandwidth: [{rate}]\nlatency: [0]\n")
    found = replayed(capsys, str(prefix), "--network", str(network))
    assert found["step_ms"] == pytest.approx(2.0)
    assert found["exposed_ms"] == {"all_reduce": pytest.approx(2.0)}
    assert found["contention"] == "exact loads"
    # Settings that name it, as railx import topology writes them.
    (tmp_path / "mine.yaml").write_text(f"family: imported\npath: {network}\n")
    named = replayed(capsys, str(prefix), "--network", str(tmp_path / "mine.yaml"))
    assert {**named, "network": ""} == {**found, "network": ""}


def test_a_symmetric_job(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    own = [node(0, COLL, comm_type=0, comm_size=4_000_000, pg_name="3")]
    prefix = write(tmp_path, {0: own})
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps({"3": [0, 4, 8, 12]}))
    words = (str(prefix), "--groups", str(groups), "--symmetric", "tp=4,dp=4", *TWO_LEVEL)
    found = replayed(capsys, *words)
    assert (found["chips"], found["step_ms"]) == (16, pytest.approx(4e6 * 1.5 / 2 / 50 / 1e6))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "{job} --network two_levels",
            "--network: got two_levels; allowed: a file, or two_level, ",
        ),
        ("{job} --network {folder}/none.yml", "none.yml"),
        ("{job} --network two_level", "--server: got none; allowed with two_level: a number above"),
        ("{job} --network two_level --server 0", "--server: got 0; allowed: a number above 0"),
        (
            "{job} --network two_level --server 2 --scale-up-gb-s 1",
            "--scale-out-gb-s: got none; allowed with two_level",
        ),
        ("{job} --network fat_tree --tflops nan", "--tflops: got nan; allowed: a number above 0"),
        ("{job} --network fat_tree --latency-ms -1", "--latency-ms: got -1; allowed: numbers from"),
        ("{job} --network fat_tree --latency-ns=-1", "--latency-ns: got -1; allowed: a number fr"),
        ("{job} --network fat_tree --symmetric dp", "--symmetric: got 'dp'; allowed: axes with"),
        (
            "{job} --network fat_tree",
            (
                "job.0.et, rank 0, node 7 with 5 operations and no duration; allowed: durations, or"
                " --tflops"
            ),
        ),
        ("{folder}/none --network fat_tree", "got ranks none of {folder}/none; allowed: at least"),
        ("{folder}/none.goal --network fat_tree", "got {folder}/none.goal"),
        ("{folder}/none.parquet --network fat_tree", "got {folder}/none.parquet"),
        ("{job} --network fat_tree --tflops 1 --out {folder}", "--out: got {folder}, a folder"),
        ("{job} --network fat_tree --tflops 1 --groups {folder}/job.0.et", "--groups: got"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(
    words: str,
    expected: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    prefix = write(tmp_path, {0: [node(7, COMP, num_ops=5)], 1: [node(7, COMP, num_ops=5)]})
    before = sorted(tmp_path.iterdir())
    message = refused(capsys, "replay", *words.format(job=prefix, folder=tmp_path).split())
    assert expected.format(folder=tmp_path) in message
    assert sorted(tmp_path.iterdir()) == before


def test_a_graph_in_a_table_replays_as_its_traces(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prefix, table = unpacked("stg_smoke_8", tmp_path), tmp_path / "job.parquet"
    words = ("--tflops", "989", "--out", str(table))
    assert main(["import", "chakra", str(prefix), *words]) == 0
    capsys.readouterr()
    network = TWO_LEVEL[: TWO_LEVEL.index("--tflops")]
    by_peak = (*network, "--tflops", "989")
    assert replayed(capsys, str(table), *network) == replayed(capsys, str(prefix), *by_peak)
    assert len(read_graphs(table).graphs) == 16_208
