"""Changing one thing reruns what depends on it and nothing else, on the real DAG of the
quick experiment.

The pipeline's files are copied, every output is put in place and marked as made
(``snakemake --touch``), then one thing is changed and a dry run says which jobs it
would start.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from railx.io import write_json
from railx.provenance import job_record
from railx.settings import to_dict
from tests.workflow.conftest import PipelineCopy
from workflow.config import compose_experiment
from workflow.stages import (
    STAGES,
    code_of,
    files_of,
    inputs_of,
    packages_of,
    provenance_path,
    results_folder,
)

pytestmark = pytest.mark.system

ALWAYS = {"report", "crate", "tracking"}
#: New verdicts, and the figure of them all.
JUDGED = {"evidence", "figure all_claims", *ALWAYS}


class MadePipeline:
    """A copy of the pipeline whose outputs count as made, with a record of each job."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        for line in pipeline.snakemake("--summary").stdout.splitlines()[1:]:
            output = pipeline.folder / line.split("\t")[0]
            output.parent.mkdir(parents=True, exist_ok=True)
            output.touch()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(pipeline.folder)
            assert self.record() > 80
        pipeline.snakemake("--touch", "--forceall")

    def jobs(self, *overrides: str) -> set[str]:
        """What would run: ``rule`` or ``rule name`` for rules with a wildcard."""
        extra = [f"hydra={' '.join(overrides)}"] if overrides else []
        result = self.pipeline.snakemake(*extra, "--dry-run")
        messages = re.findall(r"^Job \d+: (.+)$", result.stdout, re.MULTILINE)
        return {_job(message) for message in messages}

    @contextmanager
    def changed(self, file: str, old: str, new: str) -> Iterator[None]:
        path = self.pipeline.folder / file
        text = path.read_text()
        assert old in text, f"{file} has no {old!r}"
        path.write_text(text.replace(old, new, 1))
        try:
            yield
        finally:
            path.write_text(text)

    def record(self) -> int:
        """Write the records of all jobs, as the jobs do; returns how many."""
        experiment: dict[str, Any] = to_dict(compose_experiment(["experiment=quick"]))
        jobs = [(stage, item) for stage in STAGES.values() for item in stage.items(experiment)]
        for stage, item in jobs:
            inputs = inputs_of(stage, experiment, item).values()
            files = [
                path for part in inputs for path in ([part] if isinstance(part, Path) else part)
            ]
            outputs = [
                files_of(experiment, f"{stage.name}.{key}", [item])[item] for key in stage.outputs
            ]
            record = job_record(
                stage=stage.name,
                item=item,
                code=code_of(stage, experiment, item),
                packages=packages_of(stage, experiment, item),
                settings=stage.settings(experiment, item),
                inputs=files,
                outputs=outputs,
                started_utc="2026-01-01T00:00:00+00:00",
                load_before=None,
                repository=self.pipeline.folder,
            )
            write_json(results_folder(experiment) / provenance_path(stage, item), record)
        return len(jobs)


def _job(message: str) -> str:
    if message == "Greeting":
        return "greeting"
    for stage in STAGES.values():
        found = re.fullmatch(re.escape(stage.message).replace(r"\{item\}", r"(\w+)"), message)
        if found:
            return " ".join([stage.name, *found.groups()])
    raise AssertionError(f"unknown job: {message}")


@pytest.fixture(scope="module")
def pipeline(pipeline_copy: Any) -> MadePipeline:
    return MadePipeline(pipeline_copy)


def test_what_changes_no_result_reruns_nothing(pipeline: MadePipeline) -> None:
    """Comments and docstrings, in modules that 62 of 85 jobs import too, and a younger
    script of the jobs.
    """
    (pipeline.pipeline.folder / "workflow/scripts/stage.py").touch()
    with (
        pipeline.changed("conf/topology/torus_2d.yaml", "family:", "# another word\nfamily:"),
        pipeline.changed("railx/network/collectives.py", '"""', '"""Changed. '),
        pipeline.changed("railx/network/traffic.py", "_NO_FLOWS =", "# A comment.\n_NO_FLOWS ="),
        pipeline.changed("railx/planning/sequence/flexsp.py", '"""', '"""Changed. '),
        pipeline.changed(
            "railx/planning/pipeline/chunks.py", "Chunking =", "# A comment.\n\nChunking ="
        ),
        pipeline.changed("workflow/stages/figure.py", '"""', '"""Changed. '),
    ):
        assert pipeline.jobs() == set()


def test_one_topology(pipeline: MadePipeline) -> None:
    with pipeline.changed("conf/topology/torus_2d.yaml", "choices:", "n: 3\nchoices:"):
        assert pipeline.jobs() == {
            "topology torus_2d",
            "metrics",
            "network torus_2d",
            "agreement",
            "figure agreement",
            "figure topology_metrics",
            "figure all_to_all_bandwidth",
            "figure ring_all_reduce",
            "arena torus_2d",
            "design",
            "figure arena",
            "figure design_front",
            *JUDGED,
        }


def test_one_planner(pipeline: MadePipeline) -> None:
    with pipeline.changed(
        "conf/planner/pipeline.yaml", "planner: pipeline", "planner: pipeline\nmost_slices: 4"
    ):
        assert pipeline.jobs() == {
            "plan pipeline_stdlib",
            "training pipeline_stdlib",
            "replay pipeline_stdlib",
            "figure cluster_time",
            "figure pipeline_schedule",
            "figure reconfiguration",
            "figure pipeline_speedups",
            "figure stage_memory",
            "figure switching_overhead",
            *JUDGED,
        }


def test_one_figure_setting(pipeline: MadePipeline) -> None:
    assert pipeline.jobs("figures.cost.height_inches=6.9") == {"figure cost", *ALWAYS}


def test_one_override_on_the_command_line(pipeline: MadePipeline) -> None:
    assert pipeline.jobs("economics.price_set=opus_400g_notebook") == {
        "economics",
        "figure cost",
        "figure price_sensitivity",
        "figure cost_scale",
        "figure claim_map",
        "figure network_prices",
        "figure rail_savings",
        "figure rail_bills",
        "figure rail_claims",
        *JUDGED,
    }


def test_changed_code_reruns_the_stages_that_import_it(pipeline: MadePipeline) -> None:
    with pipeline.changed("railx/network/collectives.py", "_BLOCK =", "_NEW = 1\n_BLOCK ="):
        topologies = (
            "railx_hyperx",
            "railx_hyperx_m4n2",
            "railx_hyperx_full",
            "railx_torus",
            "torus_2d",
            "fat_tree",
            "fat_tree_1152_nodes",
        )
        expected = {f"network {name}" for name in topologies}
        drawn = ("all_to_all_bandwidth", "channel_loads", "ring_all_reduce")
        expected |= {f"figure {name}" for name in drawn} | JUDGED
        assert pipeline.jobs() == expected


def test_a_docstring_that_a_program_prints_counts(pipeline: MadePipeline) -> None:
    with pipeline.changed("training/run.py", '"""', '"""Changed. '):
        trained = {"flexsp_stdlib", "pipeline_stdlib", "static_stdlib"}
        assert {job for job in pipeline.jobs() if job.startswith("training")} == {
            f"training {run}" for run in trained
        }


def test_a_changed_planner_reruns_no_figure_that_shows_no_plan(pipeline: MadePipeline) -> None:
    with pipeline.changed(
        "railx/planning/rivals/context_parallel.py", "_HALVINGS =", "_NEW = 1\n_HALVINGS ="
    ):
        jobs = pipeline.jobs()
    assert "figure cluster_time" in jobs
    assert {"figure cost", "figure channel_loads", "figure utilisation"}.isdisjoint(jobs)


NEW_STAGE = '''"""Stage greeting: a word."""

from workflow.outputs import Json
from workflow.stage import Job, Stage, Summary


def run(job: Job) -> Summary:
    job.write_json("word", {"word": "hello"})
    return {}


STAGE = Stage(
    name="greeting",
    help="a word",
    message="Greeting",
    outputs={"word": Json()},
    run=run,
)
'''


def test_a_new_stage_is_a_module_and_a_line_and_reruns_no_other(
    pipeline: MadePipeline,
) -> None:
    folder = pipeline.pipeline.folder / "workflow"
    (folder / "stages" / "greeting.py").write_text(NEW_STAGE)
    listed = pipeline.changed("workflow/stages/__init__.py", '"figure", ', '"figure", "greeting", ')
    try:
        with listed:
            # The page and the crate tell of every job; nothing else is made again.
            assert pipeline.jobs() == {"greeting", *ALWAYS}
            pipeline.pipeline.snakemake("results/quick/greeting/word.json")
            written = pipeline.pipeline.folder / "results/quick/greeting/word.json"
            assert written.read_text() == '{\n  "word": "hello"\n}\n'
    finally:
        (folder / "stages" / "greeting.py").unlink()


def _carried(made: MadePipeline, clone: Path, *folders: str) -> MadePipeline:
    """A fresh clone with folders of ``made`` in it, every file as old as its copy."""
    copy = PipelineCopy(clone)
    for folder in folders:
        shutil.copytree(made.pipeline.folder / folder, clone / folder, copy_function=shutil.copy)
    for script in clone.rglob("*.py"):
        script.touch()
    pipeline = MadePipeline.__new__(MadePipeline)
    pipeline.pipeline = copy
    return pipeline


@pytest.mark.parametrize("folders", [("results",), ("results", ".snakemake")])
def test_results_in_a_fresh_clone_are_not_made_again(
    pipeline: MadePipeline, tmp_path: Path, folders: tuple[str, ...]
) -> None:
    clone = _carried(pipeline, tmp_path / "clone", *folders)
    assert clone.jobs() == set()
    # From now on Snakemake's own notes decide.
    assert clone.jobs("figures.cost.height_inches=6.9") == {"figure cost", *ALWAYS}


def test_carried_results_of_other_settings_and_files_are_made_again(
    pipeline: MadePipeline, tmp_path: Path
) -> None:
    clone = _carried(pipeline, tmp_path / "clone", "results")
    drawn = clone.pipeline.folder / "results/quick/figure"
    (drawn / "channel_loads.csv").write_text("edited by hand\n")
    (clone.pipeline.folder / "results/quick/provenance/figure/all_claims.json").write_text("{")
    jobs = clone.jobs("figures.cost.height_inches=6.9")
    assert jobs == {"figure cost", "figure channel_loads", "figure all_claims", *ALWAYS}
