"""A copy of the pipeline's files to run Snakemake in, so that tests touch neither the
results nor the configs of the checkout.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import ROOT
from workflow import config, mounts
from workflow.config import CONF, compose_experiment
from workflow.settings import Experiment

PACKAGES = ("railx", "railx_lab", "railx_torch", "training", "workflow")
PARTS = ("Snakefile", "conf", "profiles", "resources", *PACKAGES)


def _take_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class PipelineCopy:
    """The pipeline in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        for part in PARTS:
            if (ROOT / part).is_dir():
                # Compiled code comes along, without what another test is writing there.
                shutil.copytree(
                    ROOT / part, folder / part, ignore=shutil.ignore_patterns("*.pyc.*", "*.tmp.*")
                )
            else:
                shutil.copy(ROOT / part, folder / part)
        (ROOT / ".cache").mkdir(exist_ok=True)
        (folder / ".cache").symlink_to(ROOT / ".cache")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Snakemake in a process group of its own, its output in one pipe."""
        # Snakemake reads all that follows --config up to the next option as entries of
        # it.
        entries = [argument for argument in arguments if argument.startswith("hydra=")]
        others = [argument for argument in arguments if argument not in entries]
        command = [
            sys.executable,
            "-m",
            "snakemake",
            *others,
            "--cores",
            "2",
            "--config",
            "experiment=quick",
            *entries,
        ]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # A shell in the background ignores Ctrl-C, and so would its children.
            preexec_fn=_take_interrupts,
        )

    def snakemake(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run to the end; the run must succeed."""
        process = self.start(*arguments)
        output, _ = process.communicate()
        assert process.returncode == 0, output
        return subprocess.CompletedProcess(process.args, process.returncode, output, "")


@pytest.fixture(scope="module")
def pipeline_copy(tmp_path_factory: pytest.TempPathFactory) -> PipelineCopy:
    return PipelineCopy(tmp_path_factory.mktemp("pipeline"))


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of conf/ that is composed instead, with nothing kept from earlier."""
    copy = tmp_path / "conf"
    shutil.copytree(CONF, copy)
    for module in (config, mounts):
        monkeypatch.setattr(module, "CONF", copy)
    monkeypatch.setattr(config, "KEPT", tmp_path / "kept")
    return copy


@pytest.fixture
def mine(conf: Path) -> Callable[..., Experiment]:
    """``mine("seed: 2", "override")``: conf/experiment/mine.yaml with that content,
    composed.
    """

    def compose(content: str, *overrides: str) -> Experiment:
        (conf / "experiment" / "mine.yaml").write_text(content)
        return compose_experiment(["experiment=mine", *overrides])

    return compose
