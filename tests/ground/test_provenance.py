"""Provenance: complete, plain JSON, without names of people, machines or folders."""

from __future__ import annotations

import getpass
import json
import platform
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from railx import provenance
from railx.provenance import collect_provenance
from tests.commands import python


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def test_it_is_plain_data_with_versions_and_hardware() -> None:
    found = collect_provenance()
    assert json.loads(json.dumps(found)) == found
    assert found["schema"] == "railx.provenance/1"
    assert found["packages"]["numpy"]
    assert found["cores"] >= 1
    assert found["memory_gb"] > 0
    assert found["cpu"]
    assert found["python"].endswith(platform.python_version())


def test_it_names_no_machine_person_or_folder() -> None:
    text = json.dumps(collect_provenance())
    words = {platform.node(), str(Path.home()), str(Path.cwd())}
    assert not [word for word in words if len(word) > 3 and word in text]
    assert f'"{getpass.getuser()}"' not in text


def test_commit_and_dirty_follow_the_repository(tmp_path: Path) -> None:
    assert collect_provenance(tmp_path)["commit"] is None
    git(tmp_path, "init", "-q")
    assert (collect_provenance(tmp_path)["commit"], collect_provenance(tmp_path)["dirty"]) == (
        None,
        None,
    )
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "one")
    clean = collect_provenance(tmp_path)
    assert (clean["commit"], clean["dirty"]) == (git(tmp_path, "rev-parse", "HEAD"), False)
    (tmp_path / "file").write_text("2")
    assert collect_provenance(tmp_path)["dirty"] is True
    inside = tmp_path / "inside"
    inside.mkdir()
    assert collect_provenance(inside)["commit"] is None


def test_gpus_are_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text(
        "#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 81559, 550.1'\necho 'Odd GPU, [N/A], '\n"
    )
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert provenance.collect_provenance(tmp_path)["gpus"] == [
        {"name": "NVIDIA H100 80GB HBM3", "memory_gb": 85.5, "driver": "550.1"},
        {"name": "Odd GPU", "memory_gb": None, "driver": None},
    ]


def test_it_needs_the_standard_library_alone() -> None:
    new = "{name.split('.')[0] for name in set(sys.modules) - before}"
    code = f"import sys; before = set(sys.modules); import railx.provenance; print(*{new})"
    done = python("-S", "-c", code)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= set(sys.stdlib_module_names) | {"railx"}
