"""Jobs of the pipeline: what one costs beside its work, what it loads, and how it ends.
A run killed at any moment continues where it was; its marks are cleared, those of a
living one are not.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from railx.families import read_topology, write_topology
from railx.io import read_json, read_metadata, read_table, write_table
from tests.builders import hyperx
from tests.commands import loaded, python
from workflow.places import hold_folder

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


def test_jobs_that_ended_are_not_looked_after_for_good(pipeline_copy: Any) -> None:
    """With a limit on jobs a second, every job that ends has Snakemake look at all
    ready jobs once more in each second of the rest of the run.
    """
    (pipeline_copy.folder / "asks.smk").write_text(
        'include: "Snakefile"\n'
        "onsuccess:\n"
        '    print("limit:", workflow.scheduler.job_rate_limiter)\n'
    )
    wanted = "results/quick/topology/torus_2d/graph.parquet"
    done = pipeline_copy.snakemake("--snakefile", "asks.smk", wanted)
    assert "limit: None" in done.stdout.splitlines()


TARGETS = (
    "results/quick/figure/topology_metrics.svg",
    "results/quick/circuits/railx_hyperx/circuits.json",
    "results/quick/corpus/stdlib/summary.json",
)


def _total_jobs(output: str) -> int:
    return next(int(line.split()[1]) for line in output.splitlines() if line.startswith("total"))


def test_a_killed_run_continues(pipeline_copy: Any) -> None:
    first_total = _total_jobs(pipeline_copy.snakemake(*TARGETS, "--dry-run").stdout)
    running = pipeline_copy.start(*TARGETS)
    for line in running.stdout:
        # Two jobs are done and others are under way when the whole process group dies.
        if line.startswith("2 of "):
            os.killpg(running.pid, signal.SIGKILL)
            break
    running.communicate()
    assert running.returncode == -signal.SIGKILL
    assert list((pipeline_copy.folder / ".snakemake" / "locks").iterdir())

    done_before = list((pipeline_copy.folder / "results").rglob("*.parquet"))
    again = pipeline_copy.snakemake(*TARGETS)
    assert done_before
    for target in TARGETS:
        assert (pipeline_copy.folder / target).stat().st_size > 0
    assert not list((pipeline_copy.folder / "results").rglob("*.part"))
    assert _total_jobs(again.stdout) < first_total

    third = pipeline_copy.snakemake(*TARGETS)
    assert "Nothing to be done" in third.stdout


HOLDER = """
import sys
from pathlib import Path
from workflow.places import hold_folder
print(hold_folder(Path(sys.argv[1])) is not None, flush=True)
sys.stdin.read()
"""


def stale_mark(state: Path) -> Path:
    mark = state / "locks" / "0.input.lock"
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return mark


def test_a_killed_holder_leaves_nothing_behind(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline().strip() == "True"
    mark = stale_mark(tmp_path)
    assert hold_folder(tmp_path) is None
    assert mark.exists()
    holder.kill()
    holder.communicate()
    assert hold_folder(tmp_path) is not None
    assert not mark.exists()
