"""What a job costs beside its work: what it loads, and how it ends."""

import subprocess
from pathlib import Path

import pytest

from railx.families import read_topology, write_topology
from railx.io import read_json, read_metadata, read_table, write_table
from tests.builders import hyperx
from tests.commands import loaded, python

pytestmark = pytest.mark.system

#: What takes a tenth of a second or more to load and none of these jobs needs.
HEAVY = {
    "duckdb", "grimp", "hydra", "matplotlib", "mlflow", "networkx", "numba", "omegaconf",
    "pandas", "pyarrow.compute", "seaborn", "torch", "wandb", "yaml",
}  # fmt: skip


def heavy_of(folder: Path, stage: str, settings: object, packages: dict[str, str]) -> set[str]:
    """What of ``HEAVY`` a job of ``stage`` loads, run as Snakemake's script runs it."""
    files = {"topology": f"{folder}/topology/small/graph.parquet"}
    inputs = {} if stage == "topology" else files
    listed = folder / "loaded"
    code = f"""
import sys
from pathlib import Path
from types import SimpleNamespace as Plain
from workflow.job import make
from workflow.stages import STAGES

class Files:
    def __init__(self, files):
        self.items, self.files = files.items, files

    def __iter__(self):
        return iter(self.files.values())

results = Path({str(folder)!r})
outputs = {{key: str(results / STAGES[{stage!r}].path(key, "small"))
           for key in STAGES[{stage!r}].outputs}}
outputs["record"] = str(results / "provenance/{stage}/small.json")
make(Plain(
    rule={stage!r}, wildcards=["small"], log=[str(results / "{stage}.log")],
    input=Files({inputs!r}), output=Files(outputs),
    params=Plain(settings={settings!r}, code={{"digest": "d", "packages": {packages!r}}}),
))
Path({str(listed)!r}).write_text(" ".join({HEAVY!r} & set(sys.modules)))
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    return set(listed.read_text().split())


def test_a_cheap_job_loads_nothing_heavy(tmp_path: Path) -> None:
    torus = {
        "family": "torus_2d", "n": 1, "x_scale": 4, "y_scale": 4, "board_side": 1,
        "port_gbps": 400.0, "latency_ns": 10.0,
    }  # fmt: skip
    network = {
        "seed": 1,
        "traffic": {"pattern": "uniform", "load": 1.0},
        "networks": {"static": {"model": "static", "routing": "min"}},
        "collective": {
            "collectives": ["ring_all_reduce"],
            "payload_bytes": [1024],
            "rows": None,
            "columns": None,
            "fidelities": ["analytic"],
            "routing": "min",
            "most_messages": 1000,
        },
    }
    packages = {"numpy": "2", "pyarrow": "25", "scipy": "1"}
    assert heavy_of(tmp_path, "topology", torus, packages) == set()
    assert heavy_of(tmp_path, "network", network, packages) == set()
    assert read_json(tmp_path / "network/small/summary.json")["chips"] == 16
    record = read_json(tmp_path / "provenance/network/small.json")
    assert set(record["outputs"]) == {
        "bounds.parquet",
        "channels.parquet",
        "collectives.parquet",
        "summary.json",
    }


@pytest.mark.parametrize("package", ["pandas", "duckdb", "matplotlib", "mlflow", "seaborn"])
def test_stages_that_know_frames_keep_them(package: str) -> None:
    code = f"""
from workflow.job import arrow_alone
arrow_alone(["numpy", {package!r}])
import pyarrow as pa
assert list(pa.table({{"a": [1, 2]}}).to_pandas()["a"]) == [1, 2]
"""
    assert loaded(code, {"pandas"}) == {"pandas"}


def test_pandas_itself_can_still_be_imported() -> None:
    code = """
from workflow.job import arrow_alone
before = list(sys.meta_path)
arrow_alone(["numpy"])
import pyarrow as pa
assert pa.array([1, None, 2]).null_count == 1
assert "pandas" not in sys.modules and sys.meta_path == before
import pandas
"""
    assert loaded(code, {"pandas"}) == {"pandas"}


def ended(body: str) -> subprocess.CompletedProcess[str]:
    return python(
        "-c", f"import atexit, sys, threading\nfrom workflow.job import leave\n{body}\nleave()"
    )


def test_a_job_that_leaves_says_all_and_runs_what_was_registered() -> None:
    done = ended("atexit.register(lambda: print('registered'))\nprint('said', end=' ')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "said registered\n", "")


def test_a_job_that_leaves_takes_nothing_apart() -> None:
    body = "class Held:\n    def __del__(self): print('apart')\nheld = Held()"
    assert ended(body).stdout == ""


def test_a_job_that_leaves_waits_for_its_threads() -> None:
    body = """
leaving = threading.Event()
def work():
    leaving.wait()
    print("worked")
threading.Thread(target=work).start()
before = sys.exit
sys.exit = lambda code: (leaving.set(), before(code))
"""
    done = ended(body)
    assert (done.returncode, done.stdout) == (0, "worked\n")


def test_rows_of_a_topology_are_read_in_any_order(tmp_path: Path) -> None:
    topology = hyperx(2, 2)
    assert topology.circuits is not None
    file = tmp_path / "topology.parquet"
    write_topology(file, topology)
    table, metadata = read_table(file), read_metadata(file)
    links = len(topology.links)
    order = [*range(links, len(table)), *range(links)]
    mixed = [order[-1], *order[:-1]]
    for places in (order, mixed):
        write_table(file, table.take(places), metadata=metadata)
        again = read_topology(file)
        assert again.circuits is not None
        assert sorted(again.links.src.tolist()) == sorted(topology.links.src.tolist())
        assert again.circuits.ocs.tolist() == topology.circuits.ocs.tolist()
