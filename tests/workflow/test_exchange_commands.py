"""``railx export`` and ``railx import``: what they print and write, one line for bad
input.
"""

from __future__ import annotations

import json
from pathlib import Path

import networkx as nx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from railx.exchange.formats import NETWORK_FORMATS
from railx.exchange.graph_files import read_graphs
from railx.families import build_topology
from railx.io import read_json
from railx.replay.graphs import COMPUTE, read_graph_table
from railx.replay.programs import write_programs
from tests.exchange.drawn import job
from tests.exchange.networks import chosen, lane_counts
from tests.workflow.test_cli import refused
from workflow.cli import main
from workflow.commands.export import _NETWORK_FORMATS
from workflow.config import compose_stage

TORUS = ("topology=torus_2d", "topology.x_scale=3", "topology.y_scale=3")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    write_programs(tmp_path / "job.parquet", job((10, 2_000, 3_000, 400)))
    return tmp_path / "job.parquet"


def test_the_command_offers_every_format() -> None:
    assert tuple(NETWORK_FORMATS) == _NETWORK_FORMATS


@pytest.mark.parametrize("name", NETWORK_FORMATS)
def test_a_network_is_printed_and_written_alike(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["export", "topology", *TORUS, "--format", name]) == 0
    printed = capsys.readouterr()
    out = tmp_path / "torus.txt"
    assert main(["export", "topology", *TORUS, "--format", name, "--out", str(out)]) == 0
    written = capsys.readouterr()
    expected = NETWORK_FORMATS[name](chosen(*TORUS), "torus_2d")
    assert printed.out == out.read_text() == expected.text
    assert f"written: {out}\n" in written.out
    lost = "".join(f"lost: {line}\n" for line in expected.lost)
    assert printed.err == written.err == lost
    assert {path.name for path in tmp_path.iterdir()} == {
        out.name,
        *(f"torus{ending}" for ending, _ in expected.beside),
    }


def test_a_network_goes_out_and_comes_back(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made, graph = tmp_path / "made.parquet", tmp_path / "made.graphml"
    assert main(["topology", *TORUS, "--out", str(made)]) == 0
    assert main(["export", "topology", str(made), "--format", "graphml", "--out", str(graph)]) == 0
    assert nx.read_graphml(graph).number_of_nodes() == 9
    capsys.readouterr()
    settings = tmp_path / "mine.yaml"
    words = ("--chips-per-node", "3", "--port-gbps", "100", "--out", str(settings))
    assert main(["import", "topology", str(graph), *words]) == 0
    printed = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines() if line)
    plain = yaml.safe_load(settings.read_text())
    assert printed["digest"] == plain["digest"]
    assert (printed["chips"], printed["nodes"]) == ("9", "3")
    values = {key: "null" if value is None else value for key, value in plain.items()}
    overrides = ["topology=imported", *(f"topology.{key}={value}" for key, value in values.items())]
    again = build_topology(compose_stage(overrides, ("topology",))["topology"])
    assert lane_counts(again) == lane_counts(chosen(*TORUS))
    graph.write_text(graph.read_text() + "\n")
    assert main(["topology", *overrides]) == 2
    assert "topology.digest: got " in capsys.readouterr().err


def test_cycles_of_an_anynet_file(capsys: pytest.CaptureFixture[str]) -> None:
    for ns, cycles in ((None, 10), ("2.5", 4)):
        words = () if ns is None else ("--cycle-ns", ns)
        assert main(["export", "topology", *TORUS, "--format", "anynet", *words]) == 0
        assert capsys.readouterr().out.splitlines()[0].split()[-1] == str(cycles)


def test_a_job_goes_out_as_traces_and_comes_back(
    programs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prefix = tmp_path / "traces" / "job"
    prefix.parent.mkdir()
    words = ("export", "trace", str(programs), "--format", "chakra", "--out", str(prefix))
    assert main(words) == 0
    printed = capsys.readouterr()
    assert printed.out == f"written: {prefix}.0.et to job.groups.json\n"
    assert printed.err == "lost: that ranks begin an iteration together\n"
    back = tmp_path / "back.parquet"
    assert main(["import", "chakra", str(prefix), "--out", str(back)]) == 0
    summary = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines() if line)
    assert summary["ranks"] == "2"
    assert summary["operations"] == "2"
    assert summary["fidelity"] == "replay"
    assert float(summary["step_ms"]) == pytest.approx((10 + 2_000 + 3_000 + 400) / 1e6)
    graphs, notes = read_graph_table(back)
    assert notes == {"source": "job", "by_parallelism": False}
    expected = read_graphs(prefix).graphs
    for name, values in expected.columns.items():
        assert (graphs.columns[name] == values).all()
    assert (graphs.dependencies == expected.dependencies).all()
    assert (graphs.groups, graphs.names) == (expected.groups, expected.names)
    assert main(["replay", str(back), "--network", "opus_rails", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["compute_ms"] == pytest.approx((10 + 2_000 + 3_000 + 400) / 1e6)


def test_operations_take_what_a_table_of_bandwidths_says(
    programs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table, prefix, back = tmp_path / "groups.parquet", tmp_path / "job", tmp_path / "back.parquet"
    assert main(["export", "trace", str(programs), "--format", "chakra", "--out", str(prefix)]) == 0
    words = ("topology=torus_2d", "bandwidth=small", "bandwidth.ranks=16")
    assert main(["bandwidth", *words, "--out", str(table)]) == 0
    words = ("--bandwidth", str(table), "--out", str(back))
    assert main(["import", "chakra", str(prefix), *words]) == 0
    found = read_graph_table(back)[0].columns
    operations = found["kind"] != COMPUTE
    assert found["duration_ns"][operations].min() > 0
    assert (found["duration_ns"][operations] != 2_500).all()
    expected = read_graphs(prefix).graphs.columns["duration_ns"]
    assert (found["duration_ns"][~operations] == expected[~operations]).all()


def test_a_schedule_and_timelines_are_written(
    programs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "job.goal"
    assert main(["export", "trace", str(programs), "--format", "goal", "--out", str(out)]) == 0
    assert out.read_text().startswith("num_ranks 2\n")
    capsys.readouterr()
    out = tmp_path / "job.json"
    words = ("--setting", "electrical", "--setting", "on_demand:1.5", "--gpus-per-server", "2")
    whole = ("export", "trace", str(programs), "--format", "chrome", *words, "--out", str(out))
    assert main(whole) == 0
    assert capsys.readouterr().out == (
        "process: electrical (10 spans, replay)\n"
        "process: on_demand, 1.5 ms (10 spans, replay)\n"
        f"written: {out}\n"
    )
    lasts = [e["dur"] for e in read_json(out)["traceEvents"] if e["name"] == "iteration 0"]
    # Two ranks of a server need no light.
    assert lasts == [5.4] * 4
    assert main([*whole[:-4], "--out", str(out)]) == 0
    lasts = [e["dur"] for e in read_json(out)["traceEvents"] if e["name"] == "iteration 0"]
    assert lasts[2] == pytest.approx(5.4 + 1_500, rel=0.01)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("topology topology=dragonfly --format astra-analytical", "topology: got dragonfly, which"),
        ("topology topology=nope --format edges", "topology: got 'nope'; allowed: "),
        ("topology topology.nope=1 --format edges", "topology.nope: "),
        ("topology nope.parquet --format edges", "got nope.parquet; allowed: a file of"),
        ("topology {folder}/job.parquet --format edges", "not a topology file"),
        ("topology {folder}/text.parquet --format edges", "allowed: a Parquet file"),
        ("topology a.parquet b.parquet --format edges", "got a.parquet b.parquet; allowed: one"),
        ("topology --format edges --out {folder}", "--out: got {folder}, a folder"),
        ("topology --format edges --out {folder}/text.parquet/a", "--out: got "),
        ("topology --format anynet --cycle-ns 0", "--cycle-ns: got 0.0; allowed: greater than 0"),
        ("topology --format anynet --cycle-ns nan", "--cycle-ns: got nan; allowed: greater"),
        ("topology --format edges --cycle-ns 1", "--cycle-ns: got it with --format edges; allowed"),
        ("trace none.parquet --format goal --out a", "got none.parquet: no such file; allowed"),
        ("trace {folder} --format goal --out a", "which is neither; allowed: a trace"),
        ("trace {folder}/text.parquet --format goal --out a", "which is neither; allowed"),
        ("trace {folder}/job.parquet --format goal --out {folder}", "--out: got {folder}, a fold"),
        (
            "trace {folder}/job.parquet --format chakra --out {folder}/text.parquet/job",
            "--out: got ",
        ),
        ("trace {folder}/job.parquet --format chrome --out a.txt", "--out: got a.txt; allowed"),
        (
            "trace {folder}/job.parquet --format goal --setting electrical --out a",
            "--setting: got it with --format goal; allowed: with --format chrome",
        ),
        (
            "trace {folder}/job.parquet --format goal --gpus-per-server 2 --out a",
            "--gpus-per-server: got it with --format goal; allowed: with --format chrome",
        ),
        *(
            (
                "trace {folder}/job.parquet --format chrome --out {folder}/a.json --setting "
                + setting,
                f"--setting: got {setting}; allowed: electrical, on_demand:MS",
            )
            for setting in (
                "quick",
                "on_demand:x",
                "provisioned:-1",
                "electrical:3",
                "on_demand:nan",
            )
        ),
        (
            "trace {folder}/job.parquet --format chrome --gpus-per-server 0 --out {folder}/a.json",
            "--gpus-per-server: got 0; allowed: at least 1",
        ),
    ],
)
def test_mistakes_of_an_export_are_one_line(
    words: str, expected: str, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = programs.parent
    (folder / "text.parquet").write_text("text")
    message = refused(capsys, "export", *words.format(folder=folder).split())
    assert expected.format(folder=folder) in message
    assert not (folder / "a.json").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("topology {folder}/none.graphml", "path: got "),
        ("topology {folder}", "allowed: a file that ends in .graphml, .csv, .txt"),
        ("topology {folder}/two.txt --chips-per-node 3", "--chips-per-node: got 3; allowed: a div"),
        ("topology {folder}/two.txt --chips-per-node 0", "--chips-per-node: got 0; allowed: at l"),
        ("topology {folder}/two.txt --port-gbps 0", "--port-gbps: got 0.0; allowed: greater th"),
        ("topology {folder}/two.txt --latency-ns=-1", "--latency-ns: got -1.0; allowed: 0 or g"),
        ("topology {folder}/two.txt --out {folder}/a.json", "--out: got {folder}/a.json; allowed"),
        ("topology {folder}/two.txt --out {folder}/two.txt/a.yaml", "--out: got {folder}/two.txt"),
        ("plan {folder}/none", "got {folder}/none: No such file or directory; allowed: a plan"),
        ("plan {folder}", "got {folder}: Is a directory; allowed: a plan"),
        ("plan {folder}/two.txt", "two.txt: not valid JSON"),
        ("plan {folder}/job.parquet", "is no text; allowed: JSON"),
        ("chakra {folder}/none", "got ranks none of {folder}/none; allowed: at least two, in"),
        ("chakra {folder}/job --out a.txt", "--out: got a.txt; allowed: a file that ends in .p"),
        ("chakra {folder}/job --tflops 0", "--tflops: got 0.0; allowed: greater than 0"),
        ("chakra {folder}/job --tflops nan", "--tflops: got nan; allowed: greater than 0"),
        ("chakra {folder}/job --groups {folder}/none", "--groups: got {folder}/none"),
        ("chakra {folder}/job --bandwidth {folder}/two.txt", "--bandwidth: got {folder}/two.txt"),
        ("chakra {folder}/job --bandwidth {folder}/job.parquet", "allowed: a table of railx band"),
    ],
)
def test_mistakes_of_an_import_are_one_line(
    words: str, expected: str, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = programs.parent
    (folder / "two.txt").write_text("0 1\n")
    prefix = str(folder / "job")
    assert main(["export", "trace", str(programs), "--format", "chakra", "--out", prefix]) == 0
    capsys.readouterr()
    message = refused(capsys, "import", *words.format(folder=folder).split())
    assert expected.format(folder=folder) in message


def _damaged(table: pa.Table, damage: str) -> pa.Table:
    """A table with another value of a key of its metadata, or of a column."""
    name, _, text = damage.partition("=")
    values = json.loads(text)
    about = json.loads((table.schema.metadata or {}).get(b"railx", b"{}"))
    if name in about:
        about |= {name: values}
        return table.replace_schema_metadata({b"railx": json.dumps(about).encode()})
    column = pa.array([values] * len(table))
    if name.startswith("second_"):
        return table.append_column(name.removeprefix("second_"), column)
    return table.set_column(table.column_names.index(name), name, column)


@pytest.mark.parametrize(
    ("what", "damage", "expected"),
    [
        ("graphs", "notes=3", "got TypeError"),
        ("graphs", "second_rank=0", "got KeyError"),
        ("graphs", "bytes=0.5", "got ValueError (float64 [0.5], no int64)"),
        ("graphs", "stream=2147483648", "got ValueError (int64 [2147483648], no int32)"),
        ("graphs", "kind=[1]", "got ArrowNotImplementedError"),
        ("graphs", "group=-1", "with an operation without a group"),
        ("programs", "channels=null", "got TypeError"),
        ("programs", "configurations=[[]]", "got ValueError"),
        ("programs", "gap_ns=NaN", "got ValueError (float64 [nan], no int64)"),
        ("programs", "rank=1000000", "rank: got 1000000; allowed: below "),
        ("network", "chips=1e999", "chips inf, nodes 9, switches 0, chips_per_node 1, which con"),
        ("network", "nodes=null", "got TypeError"),
        ("network", "chips_per_node=16", "chips_per_node 16, which contradict each other"),
        ("network", "dst=9", "got ValueError (links of vertices 0 to 9)"),
        ("network", "gbps=NaN", "got ValueError (gbps [nan])"),
        ("bandwidths", "gb_s=0", "got ValueError (latency_us "),
        ("bandwidths", "latency_us=null", "got TypeError"),
        ("bandwidths", "group_size=null", "got TypeError"),
    ],
)
def test_tables_with_other_values_are_refused_in_one_line(
    what: str, damage: str, expected: str, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = programs.parent
    traces = folder / "job"
    path = programs if what == "programs" else folder / f"{what}.parquet"
    words = ["export", "trace", str(programs), "--format", "chakra", "--out", str(traces)]
    assert main(words) == 0
    make = {
        "graphs": ["import", "chakra", str(traces)],
        "network": ["topology", *TORUS],
        "bandwidths": [
            "bandwidth",
            *("topology=torus_2d", "bandwidth=small", "bandwidth.ranks=16"),
        ],
    }
    read = {
        "network": ["export", "topology", str(path), "--format", "edges"],
        "bandwidths": ["import", "chakra", str(traces), "--bandwidth", str(path)],
    }
    if what in make:
        assert main([*make[what], "--out", str(path)]) == 0
    pq.write_table(_damaged(pq.read_table(path), damage), path)
    capsys.readouterr()
    replay = ["replay", str(path), "--network", "opus_rails"]
    message = refused(capsys, *read.get(what, replay))
    assert str(path) in message
    assert expected in message
    assert "allowed: " in message


def test_groups_stand_beside_the_traces(programs: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "job"
    assert main(["export", "trace", str(programs), "--format", "chakra", "--out", str(prefix)]) == 0
    groups = json.loads((tmp_path / "job.groups.json").read_text())
    assert groups == {"1": [0, 1]}
