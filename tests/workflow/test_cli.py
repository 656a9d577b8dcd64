"""``railx STAGE``: one stage alone, with the pipeline's configs, clear errors and
nothing half-written; ``railx sql``: the tables that a stage declares.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import railx_lab
from railx import effort
from railx.errors import UserError
from railx.io import read_rows, write_json, write_table
from railx.planning.format.files import read_plan
from railx.settings import to_dict
from tests.builders import write_result
from tests.commands import ROOT, python
from training import nodes
from workflow.cli import BY_HAND, main
from workflow.commands import listing, reproduce
from workflow.config import compose_experiment

PLAN_ON_FOUR = ("cluster=cpu_4", "model=tiny", "cost_model=analytic")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    summary: dict[str, Any] = json.loads(capsys.readouterr().out)
    return summary


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    # The first test compiles; on a busy machine progress is reported.
    lines = [
        line
        for line in captured.err.splitlines()
        if not re.search(r": compiles its loops|\d+ \w+ so far", line)
    ]
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


def test_ctrl_c_while_the_command_is_loaded_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(railx_lab, "search_root", interrupted)
    assert railx_lab.main() == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_ctrl_c_while_the_entry_point_is_loaded_ends_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "pathlib.py").write_text("raise KeyboardInterrupt")
    code = f"import sys; sys.path[:0] = {[str(tmp_path), str(ROOT)]}; import railx_lab"
    # Without the modules that an installation loads as Python starts.
    done = subprocess.run([sys.executable, "-IS", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


def test_topology(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "topology.parquet"
    summary = printed(
        capsys,
        "topology",
        "topology=railx_hyperx",
        "topology.m=2",
        "topology.n=2",
        "--out",
        str(out),
    )
    assert (summary["chips"], summary["nodes"], summary["diameter_node_hops"]) == (100, 25, 2)
    assert {row["element"] for row in read_rows(out)} == {"link", "circuit"}


def test_overrides_stand_before_and_behind_options(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("topology=railx_hyperx", "topology.m=2", "topology.n=2")
    together = printed(capsys, "topology", *words)
    assert main(["topology", *words[:2], "--json", words[2]]) == 0
    assert json.loads(capsys.readouterr().out) == together


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("topology", "topology.m=2", "--json", "--nope=3"), "--nope=3"),
        (("list", "topologies", "more"), "more"),
    ],
)
def test_words_that_nothing_takes_are_named(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert capsys.readouterr().err == f"error: {said}: is not known; allowed: what --help lists\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("design", "--json=3"), "--json: got '3'; allowed: no value"),
        (("init", ""), "DIR: got ''; allowed: Path"),
        (("sql", "select 1", "--results", ""), "--results: got ''; allowed: Path"),
    ],
)
def test_values_that_no_option_takes_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert capsys.readouterr().err == f"error: {said}\n"


@pytest.mark.parametrize("content", [b"a: 1", b"[]", b"\xc0"])
def test_constants_that_no_fit_printed_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    said = refused(
        capsys, "validate", "resources/measured/vtrain_multi.csv", "--constants", str(path)
    )
    assert said.startswith(f"--constants: got {path}")


def test_network_gives_the_published_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    summary = printed(
        capsys,
        "network",
        "topology=railx_hyperx",
        "topology.m=2",
        "topology.n=2",
        "traffic=uniform",
    )
    assert summary["bound_flits_per_chip_cycle"] == pytest.approx(1.456, abs=5e-4)
    assert summary["ideal_flits_per_chip_cycle"] == pytest.approx(2.475, abs=5e-4)
    assert summary["fidelity"] == "analytic"


def test_economics_works_from_any_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    summary = printed(capsys, "economics", "--out", "bill.parquet")
    assert summary["railx_hyperx_full.chips"] == 200_704
    bill = [
        row["total_usd"]
        for row in read_rows("bill.parquet")
        if row["topology"] == "railx_hyperx_full"
    ]
    assert sum(bill) == pytest.approx(summary["railx_hyperx_full.cost_usd"])


def test_plan_of_a_users_own_lengths(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.json"
    lengths.write_text("[100000, 48000, 48000, 48000, 48000]")
    source = ("corpus=file", f"corpus.path={lengths}", "cluster.devices=64")
    adaptive = printed(
        capsys, "plan", "planner=flexsp", *source, "--out", str(tmp_path / "plan.json")
    )
    static = printed(capsys, "plan", "planner=static", *source)
    assert adaptive["predicted_batch_ms"] < static["predicted_batch_ms"]
    (batch,) = read_plan(tmp_path / "plan.json").sequence_parallel_batches()
    planned = sorted(
        length
        for micro_batch in batch.micro_batches
        for group in micro_batch.groups
        for length in group.lengths
    )
    assert planned == [48000, 48000, 48000, 48000, 100000]


@pytest.mark.system
def test_training_by_hand(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = python(
        *("-m", "workflow.cli", "training"),
        *("batch.batch_size=6", "batch.max_length_tokens=400", "training.iterations=1"),
        *("training.on_demand_latencies_ms=[5]", "training.provisioned_latencies_ms=[]"),
        *("--json", "--out", tmp_path / "run"),
    )
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["losses_agree"]
    assert summary["electrical_0ms"]["stall_ms"] == 0
    assert {row["mode"] for row in read_rows(tmp_path / "run" / "iterations.parquet")} == {
        "electrical",
        "on_demand",
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("topology", "topology.mm=3"),
            "topology.mm: unknown key; allowed: family, port_gbps, node, m, n",
        ),
        (("plan", "planner=flexsp_"), "planner: got 'flexsp_'; allowed: flexsp, flexsp_milp, "),
        (
            ("plan", "corpus=stdlib", "cluster.all_to_all_gb_s={}"),
            "cluster.all_to_all_gb_s: got {}, which changes none of its values; allowed: values",
        ),
        (("mapping", "topology=torus_2d"), "mapping: no job has room on torus_2d: layout: got 16"),
        (("topology", "topology.m=two"), "topology.m: got 'two'; allowed: an integer"),
        (("topology", "topology=ring"), "topology: got 'ring'; allowed: "),
        (("topology", "topologies=ring"), "topologies: unknown key; allowed: topology, "),
        (
            ("topology", "--out", "graph.csv"),
            "--out: got graph.csv; allowed: a file that ends in .pa",
        ),
        (("network", "network=packet"), "network.model: got 'packet'; allowed: static"),
        (("packets", "network=static_min"), "network.model: got 'static'; allowed: packet"),
        (("topology", "m"), "m: not an override; allowed: key=value"),
        (("topology", "topology.m=1", "topology.n=3"), "undirected"),
        (("topology", "topology.m=1", "topology.n=5"), "undirected"),
        (("corpus", "corpus=file"), "corpus.path: is missing"),
        (
            ("training", "corpus=stdlib_pairs"),
            "model.vocabulary: got 257; allowed: at least 4096, the token ids of corpus stdlib_p",
        ),
        (("corpus", "corpus=file", "corpus.path=nowhere.json"), "nowhere.json"),
        (
            ("plan", "corpus=stdlib", "batch=small", "batch.batch_size=0"),
            "batch.batch_size: got 0; allowed: at least 1",
        ),
    ],
)
def test_bad_settings_are_named_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: str
) -> None:
    assert expected in refused(capsys, *arguments)


def test_a_device_that_is_not_here_is_refused_before_the_plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nodes, "_has_cuda", lambda: False)
    assert refused(capsys, "training", "training.device=cuda") == (
        "training.device: got cuda, but no CUDA device is there; allowed here: auto, cpu"
    )


def test_large_work_has_an_estimate_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(effort, "_LONG_S", 1e-3)
    assert main(["plan", "corpus=stdlib", "batch=small"]) == 0
    said = capsys.readouterr().err.splitlines()[0]
    assert said.startswith("plan: a rough estimate is at most ")


@pytest.mark.parametrize("option", ["-n", "--dry-run"])
def test_a_dry_run_is_snakemakes(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []

    def snakemake(arguments: list[str], experiment: str, overrides: list[str]) -> int:
        given.append([*arguments, experiment, *overrides])
        return 0

    monkeypatch.setattr(reproduce, "snakemake", snakemake)
    assert main(["reproduce", "quick", option]) == 0
    assert given == [["--cores", "all", "--dry-run", "quick"]]


@pytest.mark.parametrize("words", [["--debug", "list", "figures"], ["list", "figures", "--debug"]])
def test_a_bug_is_told_from_a_mistake(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raising(error: Exception) -> None:
        def action(_: object) -> int:
            raise error

        monkeypatch.setattr(listing, "_list", action)

    bug, mistake = ValueError("shapes (2,)\nand (3,)"), UserError("n: got 0; allowed: 1")
    plain = [word for word in words if word != "--debug"]
    raising(bug)
    assert main(plain) == 1
    assert capsys.readouterr().err == (
        "error: ValueError: shapes (2,) and (3,); its traceback: --debug\n"
    )
    assert main(words) == 1
    *traceback, line = capsys.readouterr().err.splitlines()
    assert traceback[0] == "Traceback (most recent call last):"
    assert line == "error: ValueError: shapes (2,) and (3,)"
    raising(mistake)
    assert main(plain) == 2
    assert capsys.readouterr().err == "error: n: got 0; allowed: 1\n"


def test_an_empty_corpus_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text("")
    out = tmp_path / "corpus.parquet"
    assert "empty.json" in refused(
        capsys, "corpus", "corpus=file", f"corpus.path={empty}", "--out", str(out)
    )
    assert not out.exists()


def test_a_sequence_that_no_plan_can_hold_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lengths = tmp_path / "lengths.json"
    lengths.write_text("[100, 90000, 200]")
    out = tmp_path / "plan.json"
    message = refused(
        capsys, "plan", "planner=flexsp", f"corpus.path={lengths}", *PLAN_ON_FOUR, "--out", str(out)
    )
    assert "90000" in message.replace(",", "")
    assert "1536" in message.replace(",", "")
    assert not out.exists()


@pytest.mark.system
def test_a_missing_gpu_is_named(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    result = python(
        *("-m", "workflow.cli", "training", "training.device=cuda", "batch.batch_size=4"),
        *("--out", tmp_path / "run"),
    )
    assert result.returncode == 2
    assert "training.device" in result.stderr
    assert not (tmp_path / "run" / "result.json").exists()


def test_every_stage_explains_itself_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    front = capsys.readouterr().out
    for name, stage in BY_HAND.items():
        assert name in front
        with pytest.raises(SystemExit):
            main([name, "--help"])
        shown = capsys.readouterr().out
        assert stage.example in shown
        assert stage.example.startswith(f"railx {name} ")


def test_packets_of_one_load(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "window.parquet"
    summary = printed(
        capsys,
        "packets",
        "topology=torus_2d",
        "topology.x_scale=2",
        "topology.y_scale=2",
        "traffic.load=0.1",
        "network.warmup_cycles=200",
        "network.measured_cycles=400",
        "--out",
        str(out),
    )
    assert summary["accepted_flits_per_chip_cycle"] == pytest.approx(0.1, rel=0.3)
    assert (summary["family"], summary["fidelity"]) == ("torus_2d", "packet")
    (row,) = read_rows(out)
    assert row == {key: summary[key] for key in row}
    assert set(summary) - set(row) == {"cycles_per_second", "flit_hops_per_second"}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """An experiment with two tables of a stage, one file that no claim may rest on and
    one that no stage declares.
    """
    folder = tmp_path / "quick"
    experiment = compose_experiment(["experiment=quick"])
    write_json(folder / "config.json", {**to_dict(experiment), "name": "quick"})
    rows = [{"topology": "a", "chips": 1}, {"topology": "b", "chips": 2}]
    write_result(folder, "economics.summary", rows)
    write_json(folder / "network/torus_2d/summary.json", {"static": {"bound": 1.5}})
    write_result(folder, "topology.graph", [{"src": 1}], "torus_2d")
    write_table(folder / "economics/left_behind.parquet", {"src": [1]})
    return tmp_path


def asked(results: Path, query: str, *options: str) -> tuple[str, ...]:
    return ("sql", query, "--experiment", "quick", "--results", str(results), *options)


def test_sql_asks_the_declared_tables(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    query = "select sum(chips) as chips, static_bound from economics.summary"
    query += ", network.torus_2d.summary group by static_bound"
    assert main(asked(results, query, "--json")) == 0
    assert json.loads(capsys.readouterr().out) == [{"chips": 3, "static_bound": 1.5}]
    assert main(asked(results, "select topology, chips from economics.summary", "--csv")) == 0
    assert capsys.readouterr().out.splitlines() == ['"topology","chips"', '"a",1', '"b",2']
    assert main(asked(results, "select topology, chips from economics.summary")) == 0
    assert capsys.readouterr().out.splitlines() == ["topology  chips", "a         1", "b         2"]


def test_sql_prints_json_for_any_reader(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    """Decimals are numbers; what JSON lacks is null, or text."""
    query = (
        "select 1.5 as a, sum(chips) as b, 'nan'::double as c, [0.25, '-inf'::double] as d,"
        " {'x': 0.5} as e, date '2020-01-31' as f, null as g from economics.summary"
    )
    assert main(asked(results, query, "--json")) == 0

    def no_json(word: str) -> None:
        raise ValueError(word)

    (row,) = json.loads(capsys.readouterr().out, parse_constant=no_json)
    numbers = {"a": 1.5, "b": 3, "c": None, "d": [0.25, None], "e": {"x": 0.5}}
    assert row == {**numbers, "f": "2020-01-31", "g": None}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("select * from topology.torus_2d.graph", "topology.torus_2d.graph"),
        ("select * from economics.left_behind", "economics.left_behind"),
        ("select chip from economics.summary", "chip"),
        ("select 1 from economics.other", "of this experiment; allowed: economics.summary"),
        ("drop table economics.summary", "SELECT"),
    ],
)
def test_sql_refuses_in_one_line(
    capsys: pytest.CaptureFixture[str], results: Path, query: str, expected: str
) -> None:
    assert expected in refused(capsys, *asked(results, query))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff", "config.json: byte 0 is no text; allowed: JSON"),
        (b"[1]", "config.json: is no experiment; allowed: "),
        (b"{}", "config.json: is no experiment; allowed: "),
        (b'{"name": "quick", "topologies": "x"}', "config.json: is no experiment; allowed: "),
    ],
)
def test_damaged_settings_of_a_run_are_named(
    capsys: pytest.CaptureFixture[str], results: Path, content: bytes, said: str
) -> None:
    (results / "quick" / "config.json").write_bytes(content)
    assert said in refused(capsys, *asked(results, "select 1"))


@pytest.mark.parametrize("shape", [(), ("--json",), ("--csv",)])
def test_sql_refuses_what_no_row_or_csv_can_hold(
    capsys: pytest.CaptureFixture[str], results: Path, shape: tuple[str, ...]
) -> None:
    twice = asked(results, "select 1 as a, 2 as a", *shape)
    assert "columns: got a twice; allowed: names that differ" in refused(capsys, *twice)
    if shape == ("--csv",):
        nested = asked(results, "select [1, 2] as a", *shape)
        assert "allowed: numbers, texts and times" in refused(capsys, *nested)


def test_sql_judges_one_claim(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    name = "railx_absolute_cost"
    own = ("--experiment", "quick", "--results", str(results))

    def verdict() -> dict[str, Any]:
        return printed(capsys, "sql", "--claim", name, *own)

    row = {"topology": "railx_hyperx_full", "cost_usd": 1.3e9, "fidelity": "analytic"}
    summary = write_result(results / "quick", "economics.summary", [row])
    found = verdict()
    assert (found["claim"], found["kind"], found["verdict"]) == (name, "published", "reproduced")
    summary.unlink()
    found = verdict()
    assert found["verdict"] == "not here"
    assert "economics.summary is not among the results" in found["reason"]
    message = refused(capsys, "sql", "--claim", "no", *own)
    assert message.startswith("--claim: got 'no'; allowed: ")
    for both in ((), ("select 1", "--claim", name)):
        message = refused(capsys, "sql", *both, *own)
        assert message == "QUERY: allowed: either one SELECT or --claim ID"
    message = refused(capsys, "sql", "--claim", name, "--csv", *own)
    assert message == "--csv: got --claim; allowed with --claim: --json, or neither"


@pytest.mark.parametrize(
    "command",
    [
        ("sql", "select 1", "--experiment", "quick"),
        ("sync", "--dry-run"),
        ("verdicts",),
        ("summary",),
        ("compare",),
    ],
)
def test_results_that_are_not_there_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: tuple[str, ...]
) -> None:
    nowhere = tmp_path / "nowhere"
    assert refused(capsys, *command, "--results", str(nowhere)) == (
        f"--results: got {nowhere}, which is not there; allowed: a folder that holds results"
    )


def test_before_the_first_run_sql_says_what_makes_results(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused(capsys, "sql", "select 1", "--experiment", "quick") == (
        "--results: got results, which is not there; make it: railx reproduce quick"
    )
    assert main(["sync", "--dry-run"]) == 0


def test_sql_names_an_unknown_experiment(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    message = refused(capsys, "sql", "select 1", "--experiment", "no", "--results", str(tmp_path))
    assert message.startswith("experiment: got 'no'; allowed: ")
