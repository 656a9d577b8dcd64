"""docs/tutorial.md word for word: its commands in their order, in a fresh clone with an
empty home, and the files that it tells a user to write.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.builders import ROOT

PAGE = ROOT / "docs" / "tutorial.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def script(page: str) -> str:
    """The commands of a page; a block of another language is written to the file that
    the text before it names last.
    """
    lines, before = ["set -e"], 0
    for block in _BLOCK.finditer(page):
        language, content = block.groups()
        if language:
            name = re.findall(r"`([\w/.]+\.\w+)`", page[before : block.start()])[-1]
            lines.append(f"cat > {name} <<'END'\n{content}END")
        else:
            for command in content.splitlines():
                lines += [f"echo {shlex.quote('> ' + command)}", command]
        before = block.end()
    return "\n".join(lines) + "\n"


def test_the_script_has_every_command_and_file_in_order() -> None:
    page = "```\na b\nc\n```\nWrite `x.md`, `x/y.yaml`:\n\n```yaml\nk: 1\n```\n\n```\nd\n```\n"
    lines = [line for line in script(page).splitlines() if not line.startswith("echo")]
    assert lines == ["set -e", "a b", "c", "cat > x/y.yaml <<'END'", "k: 1", "END", "d"]
    written = re.findall(r"^cat > (\S+)", script(PAGE.read_text(encoding="utf-8")), re.MULTILINE)
    assert written == ["conf/topology/mine.yaml", "links.csv"]


@pytest.mark.slow
def test_the_tutorial_runs_word_for_word(tmp_path: Path) -> None:
    clone, home = tmp_path / "a clone" / "railx lab", tmp_path / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    # In place of the downloads of the first command: the packages of this checkout.
    (clone / ".venv").symlink_to(ROOT / ".venv")
    (ROOT / ".venv" / ".ready").touch()
    # In place of its run: that of this checkout, if there is one. Snakemake reruns what
    # differs.
    if (ROOT / "results" / "quick").is_dir():
        paths = [".snakemake", "results/quick", "results/mlflow.db", "results/mlflow_artifacts"]
        subprocess.run(["cp", "--archive", "--parents", *paths, clone], cwd=ROOT, check=True)
    schemas = {**os.environ, "PYTHONPATH": str(clone), "HOME": str(home)}
    python = str(clone / ".venv" / "bin" / "python")
    subprocess.run([python, "-m", "workflow.schemas"], cwd=clone, env=schemas, check=True)
    kept = ("PATH", "LANG", "PYTHONDONTWRITEBYTECODE", "TMPDIR")
    variables = {name: os.environ[name] for name in kept if name in os.environ}
    variables |= {"HOME": str(home), "PYTHONPATH": str(clone)}
    done = subprocess.run(
        ["bash", "-c", script(PAGE.read_text(encoding="utf-8"))],
        cwd=clone,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    said = done.stdout
    assert "direction only" in said
    assert "page: file://" in said
    rows = [line for line in said.splitlines() if re.match(r"(mine|graph)\s+\d", line)]
    # (m n + 1)^2 nodes of m x m chips, and the complete graph of four.
    assert [int(line.split()[1]) for line in rows] == [196, 4]
    assert (clone.parent / "study" / "results" / "study" / "report.html").is_file()
