"""Every command line of README.md and docs/ runs: for real where it is short, else as
far as it goes in seconds.

``RULES`` says how, by the beginning of the command; a command without a rule fails. A
new rule is one line there: ``by_hand`` runs a ``railx`` command in this process,
``dry`` asks Snakemake or make what it would do, ``options`` checks that the program
knows the options, and ``NOT_RUN`` gives the reason why no more is done.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from railx.exchange.chakra import write_chakra
from railx.exchange.graph_files import read_graphs
from railx.io import write_json, write_table
from railx.planning.format.files import write_plan
from railx.planning.format.parts import Pipeline
from railx.replay.graphs import write_graph_table
from railx.replay.programs import write_programs
from scripts.site import commands_page
from tests.builders import ROOT, write_result
from tests.commands import environment, python
from tests.exchange.drawn import job
from tests.exchange.traces import unpacked
from tests.plans import chunk, pipeline_plan
from workflow import cli
from workflow.experiment import checked_experiment
from workflow.stages import STAGES

pytestmark = pytest.mark.system

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DRAWN = re.compile("[─│├└▼►]")
_BEFORE_COMMENT = re.compile(r"""(?:[^'"#]|'[^']*'|"[^"]*")*""")
_SHELLS = ("", "bash", "sh", "console")


def commands_of(page: str) -> list[str]:
    """The command lines in the code blocks of a page, comments and joints taken off."""
    found = []
    for language, block in _BLOCK.findall(page):
        if language not in _SHELLS or _DRAWN.search(block):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            whole = _BEFORE_COMMENT.match(line)
            bare = "" if whole is None else whole.group().strip().removeprefix("$ ")
            found += [part.strip() for part in bare.split("&&") if part.strip()]
    return found


def block_of(page: str, language: str) -> str:
    """The first block of a language on a page of docs/."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return next(block for own, block in _BLOCK.findall(text) if own == language)


def documented() -> list[str]:
    return list(
        dict.fromkeys(
            command for page in PAGES for command in commands_of(page.read_text(encoding="utf-8"))
        )
    )


def snakemake(arguments: list[str]) -> str:
    """What Snakemake would run."""
    done = python("-m", "snakemake", *arguments, "--dry-run", "--quiet", "rules")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def dry(command: str, folder: Path) -> None:
    """Snakemake's commands as a dry run; make's commands by the rules of each."""
    words = shlex.split(command)
    if words[0] == "snakemake":
        snakemake(words[1:])
        return
    # what make sets up is there already
    done = subprocess.run(
        ["make", "--no-print-directory", "-n", "-o", ".venv/.ready", *words[1:]],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert printed, f"{command}: does nothing"
    for line in printed:
        if ".venv/bin/snakemake" in line and "--report" not in line:
            snakemake(shlex.split(line.split(".venv/bin/snakemake", 1)[1]))
        if ".venv/bin/railx " in line:
            known(line.split(".venv/bin/", 1)[1], folder)


def by_hand(command: str, folder: Path) -> None:
    """A ``railx`` command, in a folder with what a user would have there."""
    assert cli.main(shlex.split(command)[1:]) == 0


@cache
def help_of(*program: str) -> str:
    done = python(*program, "--help")
    assert done.returncode == 0, done.stderr
    return done.stdout


def options(*program: str) -> Callable[[str, Path], None]:
    """Whether the program knows the options of the command."""

    def check(command: str, folder: Path) -> None:
        of_another = command.split("torchrun", 1)[-1].split(" -m ", 1)[-1]
        of_another = of_another.split("examples/", 1)[-1]
        for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", of_another):
            assert option in help_of(*program), f"{command}: {option}"

    return check


def known(command: str, folder: Path) -> None:
    """A command that is in ``NOT_RUN``: those of ``railx`` know their options."""
    words = command.split()
    if words[0] == "railx":
        action = words[1:3] if words[1] == "fabric" else words[1:2]
        options("-c", _RAILX, *action)(command, folder)


_RAILX_FABRIC = "from railx.fabric.command import main; raise SystemExit(main())"
_RAILX = "from workflow.cli import main; raise SystemExit(main())"

#: What cannot run here, and why.
NOT_RUN = {
    "wandb login": "asks for an account",
    "wandb sync": "sends to an account; tests/tracking reads back what it would send",
    "wandb leet": "a screen of its own until it is left; tests/tracking reads the same files",
    "railx compare": "needs two tracked runs; tests/tracking/test_compare.py makes them",
    "railx claim": "makes what the claim needs; tests/workflow has its own test",
    "railx verdicts": "needs a finished run; tests/workflow has its own test",
    "railx summary": "needs a finished run; tests/workflow has its own test",
    "railx fabric serve": "serves until it is stopped; tests/fabric starts and ends it",
    "railx fabric": "needs a running controller; tests/workflow/test_train_command.py has one",
    "railx train": "takes minutes; tests/workflow has its own test",
    "apt-get install": "installs",
    "source .venv/bin/activate": "for a shell that stays",
    "railx design design=small gpus=64 --experiment": "writes into conf/; tests/workflow does",
    "squeue": "asks a Slurm; tests/cluster/test_slurm.py has one",
    "scancel": "the same",
    "tail": "shows a log until it is stopped",
    "railx reproduce": "runs a whole experiment; tests/package/test_wheel.py does",
    "railx sweep": "runs experiments; tests/package/test_wheel.py does",
    "cd ": "into the folder that `railx init` made",
    "pip install": "needs the wheel; tests/package/test_wheel.py installs it",
    "eval": "for a shell that stays; tests/package/test_commands.py asks what it would",
    "podman run": "needs the image; `make container` builds and runs it",
    "railx pdf": "needs a finished run and a browser; tests/report has its own test",
    # tests/package/test_tutorial.py runs these on what its page writes.
    "railx advise model=llama3_8b devices=h100 gpus=128 network=mine": "needs the network",
    'railx sql "select topology, chips, injection': "needs the study of its page",
    'railx sql "select network, value from arena': "needs a run with an arena",
    # tests/families/test_documented_family.py writes it.
    "railx topology topology=ladder": "needs the family that its page writes",
    "railx network topology=ladder": "needs the family that its page writes",
    "make reproduce EXPERIMENT=quick OVERRIDES='topologies.ladder=ladder'": "needs it too",
}

RULES: list[tuple[str, Callable[[str, Path], None]]] = [
    *((words, known) for words in NOT_RUN),
    ("mlflow ui", options("-m", "mlflow", "ui")),  # else it serves until it is stopped
    # the same files are read in tests/tracking
    ("MLFLOW_TRACKING_URI=", options("-m", "mlflow", "runs", "list")),
    ("python -m training.run", options("-m", "training.run")),  # tests/training/test_run.py runs it
    # tests/training/test_record_trace.py and test_example.py run them
    ("torchrun --nproc-per-node 2 examples/record_trace.py", options("examples/record_trace.py")),
    ("torchrun --nproc-per-node 4 examples/fsdp_pipeline.py", options("examples/fsdp_pipeline.py")),
    # tests/railx_torch/test_plan_groups.py runs it
    ("torchrun --nproc-per-node 4 examples/flexsp_fsdp2.py", lambda command, folder: None),
    ("torchrun", options("-m", "training.run")),
    # tests/training/test_gpu_script.py runs it
    ("python gpu_folder/gpu run", options("scripts/gpu", "run")),
    ("python -m railx_lab workflow.kubernetes", options("-m", "workflow.kubernetes", "render")),
    # tests/package/test_wheel.py starts and ends it
    ("railx-fabric serve", options("-c", _RAILX_FABRIC, "serve")),
    ("make ", dry),
    ("snakemake ", dry),
    ("railx ", by_hand),
]

#: What takes more than some ten seconds.
SLOW = (
    *("make reproduce EXPERIMENT=gpu", "make reproduce EXPERIMENT=quick PROFILE"),
    *("make reproduce PROFILE", "railx mapping", "snakemake --workflow-profile"),
    *("railx design gpus=4096",),
)


def rule_of(command: str) -> Callable[[str, Path], None] | None:
    return next((rule for start, rule in RULES if command.startswith(start)), None)


def marked(commands: list[str]) -> list[Any]:
    return [
        pytest.param(
            command, marks=[pytest.mark.slow] if command.startswith(SLOW) else [], id=command
        )
        for command in commands
    ]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a user's own lengths, a plan and the results of a small run."""
    folder = tmp_path_factory.mktemp("workplace")
    write_json(folder / "lengths.json", [100 + 37 * number % 3_000 for number in range(700)])
    (folder / "links.csv").write_text(block_of("tutorial.md", "csv"), encoding="utf-8")
    (folder / "conf" / "topology").mkdir(parents=True)
    pipeline = Pipeline(2, 0, (chunk((0, 0, 10, 20)), chunk((0, 10, 20, 20))))
    write_plan(folder / "pipeline.json", pipeline_plan(2, [pipeline]))
    (folder / "plan.json").write_text(block_of("exchange.md", "json"), encoding="utf-8")
    (folder / "traces").mkdir()
    write_programs(folder / "job.parquet", job())
    write_chakra(folder / "traces" / "job", job())
    graphs = read_graphs(folder / "traces" / "job").graphs
    write_graph_table(folder / "back.parquet", graphs)
    for path in unpacked("torch_gloo_2", folder / "recorded").parent.iterdir():
        path.rename(folder / "traces" / path.name.replace("job", "mine"))
    bandwidth = {"operation": "all_gather", "group_size": 2, "stride": 1, "fidelity": "analytic"}
    write_table(folder / "groups.parquet", [bandwidth | {"latency_us": 1.0, "gb_s": 100.0}])
    results = folder / "results" / "quick"
    write_json(results / "config.json", checked_experiment(["experiment=quick"]))
    write_result(
        results,
        "economics.summary",
        [{"topology": "railx_hyperx_full", "cost_usd": 100.0, "chips": 4}],
    )
    write_result(
        results,
        "network.bounds",
        [{"topology": "railx_hyperx"}],
        "railx_hyperx",
        fidelity="analytic",
    )
    return folder


def test_every_command_has_a_rule() -> None:
    assert len(documented()) > 15
    without = [command for command in documented() if rule_of(command) is None]
    assert not without, "tests/test_documented_commands.py: RULES has no line for these"


def test_tests_that_run_a_command_instead_are_there() -> None:
    named = re.findall(r"tests/[\w/.]*\w", " ".join(NOT_RUN.values()))
    assert len(named) > 10
    assert not [path for path in named if not (ROOT / path).exists()]


def test_commands_are_found_without_their_comments_and_drawings_are_none() -> None:
    page = (
        "```\nmake a  # why\n$ x b && y \\\n  c\n```\n```yaml\nd: 1\n```\n"
        "```\nconf/ ──► e\n```\ntext `railx f`\n```bash\nrailx 'g # h'\n```\n"
    )
    assert commands_of(page) == ["make a", "x b", "y    c", "railx 'g # h'"]


@pytest.mark.parametrize("command", marked(documented()))
def test_a_documented_command_runs(
    command: str, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workplace)
    rule = rule_of(command)
    assert rule is not None, "tests/test_documented_commands.py: RULES has no line for it"
    rule(command, workplace)


def test_every_target_of_make_that_a_page_names_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"`make\s([a-z-]+)", page.read_text(encoding="utf-8")))
        assert named <= targets, page.name


def test_readme_names_the_stages_that_quick_leaves_out() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.search(r"^\| `quick` \| every stage but (.*), small \|", readme, re.MULTILINE)
    experiment = checked_experiment(["experiment=quick"])
    without = {name for name, stage in STAGES.items() if not stage.items(experiment)}
    assert named is not None
    # Stage seeds is part of a sweep that is split.
    assert set(re.findall(r"`(\w+)`", named.group(1))) == without - {"seeds"}


#: Files of an example, which its reader writes.
_WRITTEN = re.compile(r".*/(mine|graph|ladder|study)\.(yaml|py)")
_FOLDERS = (
    "benchmarks|conf|docs|examples|profiles|railx\\w*|resources|scripts|tests|training|workflow"
)


def test_files_that_pages_and_help_name_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "76")  # as the page of the commands sets it
    pages = [*PAGES, ROOT / "CONTRIBUTING.md"]
    text = "\n".join([commands_page(), *(page.read_text(encoding="utf-8") for page in pages)])
    named = set(re.findall(rf"(?<![\w/.'-])((?:{_FOLDERS})/[\w/.*-]*\w)", text))
    assert len(named) > 50
    gone = {
        path
        for path in named
        if not any(ROOT.glob(path)) and not _WRITTEN.fullmatch(path) and path.lower() == path
    }
    assert not gone
