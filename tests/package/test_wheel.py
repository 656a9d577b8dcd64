"""The wheel in an environment of its own, far from any checkout.

The environment borrows the packages of this one, the project itself aside, so that the
test needs no network. `make wheel-test` runs it.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.share import SHARE, shared_files
from tests.builders import ROOT
from workflow.schemas import generated_files

pytestmark = pytest.mark.slow

_NEEDED = (
    *("railx", "railx_lab", "railx_torch", "training", "workflow", "conf", "resources", "scripts"),
    "packaging",
)
_FILES = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "Snakefile")
#: As little as an experiment can have.
_SMALL = """\
# Two networks, measured and drawn.
seed: 1
topologies: [railx_hyperx_m4n2, mesh_2d]
networks: [static_min]
sweeps: []
agreement: virtual_channels
mapping: default
tenancy: small
transitions: []
corpora: []
plans: []
runs: []
figures: [topology_metrics]
tracking: "off"
"""
#: A torch program that uses the backend.
_GROUP = """\
import os
import torch.distributed as dist

store = "file://" + os.path.abspath("store")
dist.init_process_group("railx", init_method=store, rank=0, world_size=1)
dist.barrier()
dist.destroy_process_group()
import railx_torch

print(railx_torch.__file__)
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


def _own(**changes: str) -> dict[str, str]:
    """The variables of this process without those that would find the checkout."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, **changes}


def _ended(command: list[str | Path], **options: object) -> subprocess.CompletedProcess[str]:
    options.setdefault("env", _own())
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        command, capture_output=True, text=True, check=False, **options
    )


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout: building leaves nothing behind here."""
    folder = tmp_path_factory.mktemp("build")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in _NEEDED:
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in _FILES:
        shutil.copy(ROOT / name, folder / name)
    schemas = _ended([sys.executable, "-m", "workflow.schemas"], cwd=folder)
    assert schemas.returncode == 0, schemas.stderr
    return folder


def _built(project: Path, folder: Path) -> Path:
    offline = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    done = _ended([sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", folder, project])
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(copied: Path) -> Path:
    """The wheel of the lab."""
    return _built(copied, copied / "dist")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of an environment with the wheel."""
    return _installed(wheel, tmp_path_factory.mktemp("environment"))


def _installed(wheel: Path, folder: Path) -> Path:
    assert _ended([sys.executable, "-m", "venv", "--without-pip", folder]).returncode == 0
    (site,) = (folder / "lib").glob("python*/site-packages")
    # Of a folder that a .pth file names no other .pth file is read: an editable install
    # of this checkout stays unseen.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install"]
    done = _ended([*pip, "--quiet", "--no-deps", "--no-index", "--ignore-installed", wheel])
    assert done.returncode == 0, done.stderr
    return folder / "bin"


@pytest.fixture(scope="module")
def railx(installed: Path) -> Run:
    """The command of the installed wheel, started in a folder."""

    def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return _ended([installed / "railx", *arguments], cwd=cwd)

    return run


@pytest.fixture(scope="module")
def study(railx: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of work with a small experiment that has run."""
    folder = tmp_path_factory.mktemp("work") / "my study"
    done = railx("init", str(folder), cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    (folder / "conf" / "experiment" / "small.yaml").write_text(_SMALL)
    done = railx("reproduce", "small", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_wheel_holds_what_the_code_reads(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {(SHARE / name).as_posix() for name in shared_files()} <= held
    assert "railx/report/templates/report.html.jinja" in held
    assert "railx/design/templates/design.js" in held
    generated = {(SHARE / name).as_posix() for name in generated_files()}
    assert generated <= held
    metadata = {name for name in held if name.startswith("railx_lab-")}
    top_level = {name.split("/")[0] for name in held - metadata}
    assert top_level == {"railx", "railx_lab", "railx_torch"}, "no name that others may have"


def test_torch_is_imported_beside_modules_called_as_ours(installed: Path, tmp_path: Path) -> None:
    """Every torch program of the environment loads our entry point, whatever it is."""
    names = ("training", "workflow", "railx", "conf", "tests")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True\n")
    imports = "".join(f"import {name}; assert {name}.MINE\n" for name in names)
    (tmp_path / "program.py").write_text(f"import torch\n{imports}")
    done = _ended([installed / "python", "program.py"], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_torch_program_creates_a_group_of_the_backend(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_GROUP)
    variables = _own(RAILX_FABRIC="electrical", RAILX_GPUS_PER_SERVER="1")
    done = _ended([installed / "python", "program.py"], cwd=tmp_path, env=variables)
    assert done.returncode == 0, done.stderr
    assert "site-packages" in done.stdout


def test_the_trainer_is_run_by_the_name_of_the_lab(installed: Path, tmp_path: Path) -> None:
    help_of_trainer = [installed / "python", "-m", "railx_lab", "training.run", "--help"]
    done = _ended(help_of_trainer, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--resume CHECKPOINT" in done.stdout
    found = "import importlib.util as u; print(u.find_spec('training'), u.find_spec('workflow'))"
    assert _ended([installed / "python", "-c", found], cwd=tmp_path).stdout == "None None\n"


@pytest.fixture(scope="module")
def backend_alone(copied: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of an environment with the backend alone."""
    wheel = _built(copied / "packaging" / "railx-torch", copied / "dist-backend")
    return _installed(wheel, tmp_path_factory.mktemp("backend"))


def test_the_backend_alone_has_a_controller_and_creates_groups(
    backend_alone: Path, tmp_path: Path
) -> None:
    serve = [backend_alone / "railx-fabric", "serve", "--ranks", "1", "--latency-ms", "0"]
    with subprocess.Popen(
        list(map(str, serve)), stdout=subprocess.PIPE, text=True, env=_own(), cwd=tmp_path
    ) as controller:
        assert controller.stdout is not None
        said = [controller.stdout.readline() for _ in range(6)]
        variables = dict(
            line.removeprefix("export ").strip().split("=", 1) for line in said if "=" in line
        )
        (tmp_path / "program.py").write_text(_GROUP)
        done = _ended([backend_alone / "python", "program.py"], cwd=tmp_path, env=_own(**variables))
        controller.send_signal(signal.SIGINT)
    assert done.returncode == 0, done.stderr
    assert str(backend_alone.parent) in done.stdout
    for name in ("railx.planning", "training", "railx_lab"):
        gone = [backend_alone / "python", "-c", f"import {name}"]
        assert "ModuleNotFoundError" in _ended(gone, cwd=tmp_path).stderr


def test_the_command_says_its_version_and_what_there_is(railx: Run, tmp_path: Path) -> None:
    assert railx("--version", cwd=tmp_path).stdout.startswith("railx-lab ")
    rows = json.loads(railx("list", "experiments", "--json", cwd=tmp_path).stdout)
    assert "quick" in {row["name"] for row in rows}
    # Stages by hand need no folder of work, a pipeline does.
    metrics = railx("topology", "topology=torus_2d", "--json", cwd=tmp_path)
    assert json.loads(metrics.stdout)["family"] == "torus_2d", metrics.stderr
    refused = railx("reproduce", "quick", cwd=tmp_path)
    assert refused.returncode == 2
    assert "railx init" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_experiment_of_ones_own_runs_and_is_up_to_date(railx: Run, study: Path) -> None:
    results = study / "results" / "small"
    assert (results / "report.html").stat().st_size > 100_000
    assert (results / "figure" / "topology_metrics.svg").is_file()
    # What came with the code stands in the records under its name there, never with
    # the place of the installation.
    crate = (results / "ro-crate-metadata.json").read_text()
    assert "railx_lab" not in crate
    assert "site-packages" not in crate
    again = railx("reproduce", "small", cwd=study)
    assert "Nothing to be done" in again.stdout + again.stderr


def test_one_changed_number_reruns_what_depends_on_it(railx: Run, study: Path) -> None:
    conf = study / "conf" / "topology" / "mesh_2d.yaml"
    assert not conf.exists()
    conf.write_text("family: mesh_2d\nn: 3\n")
    try:
        planned = railx("reproduce", "small", "--dry-run", cwd=study)
    finally:
        conf.unlink()
    said = planned.stdout + planned.stderr
    assert planned.returncode == 0, said
    assert "Topology mesh_2d" in said
    assert "Topology railx_hyperx_m4n2" not in said


def test_a_study_has_what_it_changes_and_the_package_the_rest(
    railx: Run, installed: Path, study: Path
) -> None:
    assert len(list((study / "conf").rglob("*.yaml"))) <= 10
    # A choice of the folder beside those of the package.
    (study / "conf" / "topology" / "mine.yaml").write_text("defaults: [torus_2d]\nn: 2\n")
    try:
        mine = json.loads(railx("topology", "topology=mine", "--json", cwd=study).stdout)
        assert mine["family"] == "torus_2d"
        planned = railx("reproduce", "study", "topologies.mine=mine", "-n", cwd=study)
        assert "Topology mine" in planned.stdout + planned.stderr, planned.stderr
        unknown = railx("reproduce", "study", "topologies.x=mime", "-n", cwd=study)
        assert unknown.returncode == 2
        assert "got 'mime'; allowed (conf/topology): mine, " in unknown.stderr
        assert railx("init", ".", cwd=study).returncode == 0
        schema = study / "resources/schemas/conf/experiment.schema.json"
        assert '"mine"' in schema.read_text()
    finally:
        (study / "conf" / "topology" / "mine.yaml").unlink()
    # An experiment of the package, unchanged.
    quick = railx("reproduce", "quick", "-n", "--until", "topology", cwd=study)
    assert "Topology railx_hyperx_full" in quick.stdout + quick.stderr, quick.stderr
    copied = railx("init", "--copy", "topology/dragonfly", cwd=study)
    (shipped,) = installed.parent.glob("lib/python*/site-packages/railx_lab/conf")
    own = study / "conf" / "topology" / "dragonfly.yaml"
    assert own.read_bytes() == (shipped / "topology" / "dragonfly.yaml").read_bytes(), copied.stderr


def test_a_plan_of_a_users_own_lengths_leaves_the_folder(railx: Run, study: Path) -> None:
    (study / "lengths.json").write_text(json.dumps([5000, 400, 3000, 9_000, 30, 900]))
    words = ("planner=static", "corpus.path=lengths.json", "--format", "megatron")
    done = railx("plan", *words, "--out", "flags.txt", cwd=study)
    assert done.returncode == 0, done.stderr
    assert "--context-parallel-size" in (study / "flags.txt").read_text()
    groups = json.loads((study / "flags.groups.json").read_text())
    assert (groups["schema"], groups["ranks"]) == ("railx.groups/1", 64)


def test_a_sweep_asks_every_point(railx: Run, study: Path) -> None:
    query = "select chips, bound_flits_per_chip_cycle as bound from network.mesh_2d.bounds"
    done = railx(
        *("sweep", "small", "topologies.mesh_2d.x_scale=4,6", "--sql", query, "--json"), cwd=study
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    found = {row["topologies.mesh_2d.x_scale"]: row["chips"] for row in rows}
    assert found == {"4": 4 * 8, "6": 6 * 8}
