"""A result depends on code, config and inputs alone: two processes write the same
bytes. The pipeline runs wherever a checkout lies: below a path with a space and an
umlaut, in the locale C, without .git, and for a user who is not root.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.builders import ROOT
from tests.commands import environment
from tests.workflow.conftest import PipelineCopy
from tests.workflow.small_stages import MADE, experiment
from workflow.outputs import Table
from workflow.stages import STAGES, files_of

pytestmark = pytest.mark.system

#: What says how fast this machine was. Nothing reads it.
OF_THE_MACHINE = {("packets", "speed"), ("seeds", "speed")}


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The stages made in two processes that order sets of words differently."""
    folders = [tmp_path_factory.mktemp(f"run_{number}") for number in (1, 2)]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.workflow.small_stages", folder],
            cwd=ROOT,
            env=environment(PYTHONHASHSEED=str(number)),
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, folder in enumerate(folders, 1)
    ]
    for one in running:
        _, errors = one.communicate()
        assert one.returncode == 0, errors
    return folders


def test_every_output_of_what_computes_is_the_same_in_another_process(twice: list[Path]) -> None:
    small = experiment()
    one, other = twice
    compared = 0
    for name in MADE:
        for key in STAGES[name].outputs:
            if (name, key) in OF_THE_MACHINE:
                continue
            for path in files_of(small, f"{name}.{key}").values():
                assert (one / path).read_bytes() == (other / path).read_bytes(), path
                compared += 1
    assert compared > 30


def test_the_machines_speed_stands_where_no_claim_and_no_figure_reads_it() -> None:
    for stage, key in OF_THE_MACHINE:
        output = STAGES[stage].outputs[key]
        assert not output.claims
        assert not isinstance(output, Table)
    for name, stage in STAGES.items():
        for key, output in stage.outputs.items():
            if isinstance(output, Table) and name not in ("training", "evidence"):
                timed = {
                    column
                    for column in output.declared()
                    if column.endswith(("_per_second", "wall_s", "solve_s", "cpu_s"))
                }
                assert not timed, f"{name}.{key}"


TARGET = "results/quick/topology/torus_2d/metrics.json"
OPTIONS = ("--cores", "1", "--forcerun", "topology", "--config", "experiment=quick")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> PipelineCopy:
    """A checkout with an environment of its own, as scripts/setup.sh makes it."""
    copy = PipelineCopy(tmp_path_factory.mktemp("folders") / "my läb")
    venv.create(copy.folder / ".venv", symlinks=True)
    (packages,) = (copy.folder / ".venv" / "lib").glob("python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return copy


def run(checkout: PipelineCopy, *before: str) -> None:
    """One job in the locale C, started by the command ``before``."""
    unset = ("LC_ALL", "LC_CTYPE", "PYTHONPATH", "PYTHONUTF8", "XDG_CACHE_HOME")
    variables = {name: value for name, value in os.environ.items() if name not in unset}
    python = checkout.folder / ".venv" / "bin" / "python"
    done = subprocess.run(
        [*before, python, "-m", "snakemake", TARGET, *OPTIONS],
        cwd=checkout.folder,
        env={**variables, "LANG": "C", "HOME": str(checkout.folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (checkout.folder / TARGET).stat().st_size > 100


def test_a_path_may_have_a_space_and_an_umlaut(checkout: PipelineCopy) -> None:
    assert not (checkout.folder / ".git").exists()
    run(checkout)


def test_a_user_need_not_be_root(checkout: PipelineCopy) -> None:
    other = ("unshare", "--user", "--map-user=1000")
    if os.geteuid() == 0:
        if subprocess.run([*other, "true"], capture_output=True, check=False).returncode:
            pytest.skip("this machine has no namespaces of users")
        run(checkout, *other)
    else:
        run(checkout)
