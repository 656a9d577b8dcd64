"""The pipeline runs wherever a checkout lies: below a path with a space and an umlaut,
in the locale C, without .git, and for a user who is not root.
"""

import os
import subprocess
import sysconfig
import venv

import pytest

from tests.workflow.conftest import PipelineCopy

pytestmark = pytest.mark.system

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
