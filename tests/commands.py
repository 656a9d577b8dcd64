"""Python in processes of its own, on the modules of this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["ROOT", "environment", "loaded", "python"]

ROOT = Path(__file__).resolve().parents[1]

_LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def environment(*before: Path, **changes: str) -> dict[str, str]:
    """The variables of this process without the rank in a launch, with the folders
    ``before`` and the checkout as first places of imports.
    """
    own = {name: value for name, value in os.environ.items() if name not in _LAUNCHED}
    return {**own, "PYTHONPATH": os.pathsep.join(map(str, (*before, ROOT))), **changes}


def python(
    *arguments: str | Path,
    cwd: Path = ROOT,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """A process that has ended, with what it printed; pytest limits its time."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment() if env is None else env,
        capture_output=True,
        text=True,
        check=False,
    )


def loaded(code: str, modules: set[str]) -> set[str]:
    """Which of ``modules`` a new process has imported after ``code``."""
    done = python("-c", f"import sys\n{code}\nprint(*({modules!r} & set(sys.modules)))")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())
