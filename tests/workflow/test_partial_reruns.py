"""Changing one thing reruns what depends on it and nothing else, on the real DAG of the
quick experiment.

The pipeline's files are copied, every output is put in place and marked as made
(``snakemake --touch``), then one thing is changed and a dry run says which jobs it
would start.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from workflow.stages import STAGES

pytestmark = pytest.mark.system

ALWAYS = {"report", "crate", "tracking"}
#: New verdicts, and the figure of them all.
JUDGED = {"evidence", "figure all_claims", *ALWAYS}


class MadePipeline:
    """A copy of the pipeline whose outputs count as made."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        for line in pipeline.snakemake("--summary").stdout.splitlines()[1:]:
            output = pipeline.folder / line.split("\t")[0]
            output.parent.mkdir(parents=True, exist_ok=True)
            output.touch()
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


def test_nothing_changed_nothing_runs(pipeline: MadePipeline) -> None:
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


def test_a_comment_changes_nothing(pipeline: MadePipeline) -> None:
    with pipeline.changed("conf/topology/torus_2d.yaml", "family:", "# another word\nfamily:"):
        assert pipeline.jobs() == set()


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
    with pipeline.changed("railx/network/collectives.py", '"""', '"""Changed. '):
        topologies = (
            "railx_hyperx",
            "railx_hyperx_m4n2",
            "railx_hyperx_full",
            "railx_torus",
            "torus_2d",
            "fat_tree",
            "fat_tree_1250",
        )
        expected = {f"network {name}" for name in topologies}
        drawn = ("all_to_all_bandwidth", "channel_loads", "ring_all_reduce")
        expected |= {f"figure {name}" for name in drawn} | JUDGED
        assert pipeline.jobs() == expected


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
    outputs={"word": Json("word.json")},
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
