"""workflow/rules/common.smk as plain Python: what it refuses before any job, and what
it hands to rules. Its one directive is left out; Snakemake itself is not started.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from railx.errors import UserError
from railx.io import read_json
from railx.provenance.jobs import digest_of
from railx.settings import to_dict
from tests.builders import ROOT
from tests.commands import python
from training import nodes
from workflow import cluster, places, resources
from workflow.config import compose_experiment
from workflow.stages import STAGES, code_of, packages_of

_DIRECTIVE = re.compile(r"^wildcard_constraints:\n(?: {4}.*\n)+", re.MULTILINE)
Read = Callable[..., SimpleNamespace]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Read:
    """What the file defines, for a run in an empty folder with such cores and words."""
    monkeypatch.chdir(tmp_path)
    # Stages have found these from the checkout already.
    for name in ("resources", "railx", "Snakefile"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(
        *targets: str,
        cores: int | None = 1,
        profile: Any = None,
        dryrun: bool = False,
        **config: Any,
    ) -> Any:
        monkeypatch.setattr(sys, "argv", ["snakemake", *targets])
        asked = SimpleNamespace(cores=cores, overwrite_resources=profile)
        own: dict[str, Any] = {
            "workflow": SimpleNamespace(
                basedir=ROOT,
                current_basedir=ROOT / "workflow/rules",
                resource_settings=asked,
                dryrun=dryrun,
            ),
            "config": {"experiment": "quick"} | config,
        }
        text, removed = _DIRECTIVE.subn("", (ROOT / "workflow/rules/common.smk").read_text())
        assert removed == 1
        exec(compile(text, "common.smk", "exec"), own)
        return SimpleNamespace(**own)

    return run


def _file_in_the_way(folder: Path) -> None:
    (folder / "results").write_text("")


def _nothing(folder: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("targets", "given", "change", "said"),
    [
        ((), {"cores": 0}, _nothing, "cores: got 0; allowed: "),
        ((), {}, _file_in_the_way, "results: is a file; allowed: a folder"),
        (
            ("-n", "results/quick/figure/nope.svg"),
            {},
            _nothing,
            "figure: got 'nope'; allowed: ",
        ),
        ((), {"experiment": "nope"}, _nothing, "experiment: got 'nope'; allowed: "),
        ((), {"hydra": "a='b"}, _nothing, "hydra: got "),
        (
            (),
            {"hydra": "corpora.mine=folder corpora.mine.path=nowhere"},
            _nothing,
            "corpora.mine.path: got nowhere: no such folder; allowed: ",
        ),
    ],
    ids=["cores", "folder", "target", "experiment", "quotes", "corpus"],
)
def test_a_run_is_refused_in_one_line_before_any_job(
    read: Read,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    targets: tuple[str, ...],
    given: dict[str, Any],
    change: Callable[[Path], None],
    said: str,
) -> None:
    change(tmp_path)
    with pytest.raises(SystemExit) as left:
        read(*targets, **given)
    assert left.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"error: {said}")
    assert printed.err.count("\n") == 1
    assert not (tmp_path / ".snakemake").exists()


def test_a_file_that_went_after_its_experiment_was_kept_is_named(
    read: Read, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("5\n")
    own = f"corpora.mine=file corpora.mine.path={lengths}"
    read(hydra=own)
    lengths.unlink()
    with pytest.raises(SystemExit):
        read(hydra=own)
    said = capsys.readouterr().err
    assert (
        said == f"error: corpus mine, source: got {lengths}, which is not there; allowed: a file\n"
    )


def test_claims_and_queries_are_checked_before_any_job(
    read: Read, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise UserError("claims.mine.query: got no SELECT")

    monkeypatch.setattr(resources, "check_resources", refuse)
    with pytest.raises(SystemExit):
        read()
    assert capsys.readouterr().err == "error: claims.mine.query: got no SELECT\n"


def test_a_run_that_may_start_holds_its_folder(read: Read, tmp_path: Path) -> None:
    rules = read("results/quick/figure/cost.svg", cores=3)
    assert rules.WHOLE_MACHINE == 3
    assert rules.FOLDER is not None
    assert (tmp_path / ".snakemake").is_dir()
    assert Path("results/quick") == rules.RESULTS


def test_rules_take_what_their_stage_declares(read: Read) -> None:
    rules = read()
    one = ["stdlib"]
    assert rules.settings("corpus")(one) == STAGES["corpus"].settings(rules.EXPERIMENT, "stdlib")
    asked = (STAGES["corpus"], rules.EXPERIMENT, "stdlib")
    # A change of either reruns the stage.
    assert rules.code("corpus")(one) == {"digest": code_of(*asked), "packages": packages_of(*asked)}
    assert rules.code("corpus")(one)["packages"]
    written = rules.files_out("corpus")
    assert written["record"] == "results/quick/provenance/corpus/{corpus}.json"
    assert set(written) == {*STAGES["corpus"].outputs, "record"}
    assert rules.log_file("corpus") == "results/quick/logs/corpus/{corpus}.log"
    assert rules.log_file("report") == "results/quick/logs/report.log"
    assert rules.benchmark_file("corpus") == "results/quick/benchmarks/corpus/{corpus}.tsv"
    assert "{wildcards.corpus}" in rules.words("corpus")


def test_a_dry_run_takes_settings_and_code_of_jobs_with_a_record(
    read: Read, tmp_path: Path
) -> None:
    rules = read(dryrun=True)
    # Of another experiment, or of files that are gone.
    (tmp_path / ".snakemake/metadata/of_a_file").mkdir(parents=True)
    record = tmp_path / "results/quick/provenance/corpus/stdlib.json"
    record.parent.mkdir(parents=True)
    for taken in (rules.settings("corpus"), rules.code("corpus")):
        assert taken(["stdlib"]) is None
        record.touch()
        assert taken(["stdlib"])
        record.unlink()
    assert rules.settings("report")([]) is None


def test_nodes_are_asked_for_as_the_profile_says(read: Read) -> None:
    run = ["static_stdlib"]
    wanted = read().cluster_resources("training")
    assert {key: value(run) for key, value in wanted.items()} == dict.fromkeys(wanted)
    profile = {"training": {"ranks_per_node": 2, "gpus_per_rank": 1}}
    wanted = read(profile=profile).cluster_resources("training")
    assert {key: wanted[key](run) for key in ("nodes", "gres")} == {"nodes": 2, "gres": "gpu:2"}


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ({"training": {"ranks_per_node": 0}}, "training static_stdlib: ranks_per_node: got 0"),
        ({"training": {"ranks_per_node": "x"}}, "training static_stdlib: ranks_per_node: got 'x'"),
    ],
)
def test_ranks_that_fit_no_nodes_are_refused_before_any_job(
    read: Read, capsys: pytest.CaptureFixture[str], profile: Any, said: str
) -> None:
    with pytest.raises(SystemExit) as left:
        read(profile=profile)
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {said}; allowed")
    assert read(profile={"training": {"ranks_per_node": 4}, "live": {"runtime": 60}})


def test_jobs_on_a_device_that_is_not_here_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that run: results of another machine need no device."""
    monkeypatch.setattr(nodes, "_has_cuda", lambda: False)
    experiment: dict[str, Any] = to_dict(
        compose_experiment(["experiment=quick", "training@runs.static_stdlib.training=gpu"])
    )
    on_gpu, on_cpu, other = (
        SimpleNamespace(rule=SimpleNamespace(name=name), wildcards=[item])
        for name, item in (
            *(("training", "static_stdlib"), ("training", "flexsp_stdlib")),
            ("topology", "torus_2d"),
        )
    )
    here = SimpleNamespace(overwrite_resources=None)
    cluster.check_devices([on_cpu, other], here, STAGES, experiment)
    with pytest.raises(UserError, match=r"^training static_stdlib: device: got cuda, but no CUDA"):
        cluster.check_devices([on_cpu, on_gpu], here, STAGES, experiment)
    nodes_of = SimpleNamespace(overwrite_resources={"training": {"ranks_per_node": 4}})
    cluster.check_devices([on_gpu], nodes_of, STAGES, experiment)
    monkeypatch.setattr(nodes, "_has_cuda", lambda: True)
    cluster.check_devices([on_gpu], here, STAGES, experiment)


def test_checks_are_those_of_the_package() -> None:
    """The file imports them by name: what it calls is what tests call."""
    text = (ROOT / "workflow/rules/common.smk").read_text()
    for name, check in vars(places).items():
        if not name.startswith("check_") or check.__module__ != places.__name__:
            continue
        assert re.search(rf"^ {{8}}{name}\(", text, re.MULTILINE), name
    assert {"asked", "check_devices", "check_nodes"} <= vars(cluster).keys()


# what a job does around its stage

#: A job of a stage whose work is to copy what it reads, as Snakemake hands it over.
_JOB = """
import sys
from pathlib import Path
from types import SimpleNamespace
from workflow.job import make
from workflow.stages import STAGES


class Files(list):
    def __init__(self, **named):
        super().__init__(named.values())
        self.items = named.items


def copy(settings, *, item, inputs, outputs):
    Path(outputs["table"]).write_bytes(Path(inputs["source"][0]).read_bytes())


STAGES["metrics"] = SimpleNamespace(make=copy)
made = "results/NAME/metrics/a"
make(
    SimpleNamespace(
        rule="metrics",
        log=["log"],
        input=Files(source="results/NAME/corpus/a"),
        output=Files(table=made, record="results/NAME/provenance/metrics/a.json"),
        wildcards=["a"],
        params=SimpleNamespace(settings={"n": 2}, code={"digest": "d", "packages": {"x": "1"}}),
    )
)
"""


# One experiment has the name of the folder of the records.
@pytest.mark.parametrize("name", ["quick", "provenance"])
def test_a_job_says_what_it_does_and_writes_its_record(name: str, tmp_path: Path) -> None:
    job, results = _JOB.replace("NAME", name), tmp_path / "results" / name
    for folder in ("corpus", "metrics", "provenance/metrics", "provenance/corpus"):
        (results / folder).mkdir(parents=True)
    read = results / "corpus/a"
    read.write_bytes(b"made")
    made = {"outputs": {f"results/{name}/corpus/a": digest_of(read)}}
    (results / "provenance/corpus/a.json").write_text(json.dumps(made))
    # A killed job left two files that are not whole; one beside them is another job's.
    for part in ("metrics/.a.x1.part", "metrics/.ab.x2.part", "provenance/metrics/.a.json.x3.part"):
        (results / part).touch()
    done = python("-c", job, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [path.name for path in results.rglob("*.part")] == [".ab.x2.part"]
    record = read_json(results / "provenance/metrics/a.json")
    assert (record["stage"], record["item"], record["code"]) == ("metrics", "a", "d")
    assert record["packages"] == {"x": "1"}
    assert record["inputs"] == {f"results/{name}/corpus/a": digest_of(read)}
    assert record["outputs"] == {f"results/{name}/metrics/a": digest_of(read)}
    assert record["started_utc"] <= record["ended_utc"]
    said = [line.split(" ", 1)[1] for line in (tmp_path / "log").read_text().splitlines()]
    assert said[:2] == ["begins: metrics a", "setting n = 2"]
    assert said[2].startswith(f"reads source: results/{name}/corpus/a, 4 bytes, ")
    assert said[-2].startswith(f"made table: results/{name}/metrics/a, 4 bytes, ")
    assert said[-1].startswith("ends: ")
    # What it reads is no more what its job made.
    read.write_bytes(b"mad!")
    done = python("-c", job, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: results/{name}/corpus/a: is damaged: ")
    assert done.stderr.count("\n") == 1
