"""Marks of a killed run are cleared, those of a living one are not."""

import subprocess
import sys
from pathlib import Path

import pytest

from workflow.places import hold_folder

pytestmark = pytest.mark.system

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
