"""Where a run reads and writes, checked before any job: cores, folders, files, targets.

These checks ask the machine, so they are made anew for every run, a dry one too.
Snakemake marks a working folder as taken with files that outlive a killed process. A
lock of the operating system does not: with it no other run is alive, so marks that are
still there are stale.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from snakemake.script import PythonScript, ScriptBase
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

from railx.places import check_writable
from railx.settings import SettingsError
from workflow.stage import Config, FromStage
from workflow.stages import STAGES, files_of, results_folder, shipped

#: Options of Snakemake whose word may be a file or folder below results/, no target.
_TAKE_A_PATH = ("--report", "--archive", "--directory", "-d", "--configfile", "--configfiles")

#: Folders below the results of an experiment with a file for each job, no result.
_OF_JOBS = ("benchmarks", "logs", "provenance")


def check_cores(cores: int | None) -> None:
    """Refuse a run on no core, which would wait for ever; None is a cluster's own."""
    if cores is not None and cores < 1:
        raise SettingsError("cores", f"got {cores}; allowed: all, or a whole number from 1")


def check_folder(folder: Path) -> None:
    """Refuse results without permission, or with a file or dead link in the way."""
    for path in (*reversed(folder.parents), folder):
        if path.exists() and not path.is_dir():
            raise SettingsError(str(path), "is a file; allowed: a folder, for results")
        if path.is_symlink() and not path.exists():
            got = f"leads to {path.readlink()}, which is not there"
            raise SettingsError(str(path), f"{got}; allowed: a folder")
    check_writable(folder, folder, "results")


def check_sources(experiment: Config) -> None:
    """Refuse files of the user's own that are not there."""
    results = results_folder(experiment)
    for stage in STAGES.values():
        for item in stage.items(experiment):
            for name, source in stage.inputs(experiment, item).items():
                if isinstance(source, FromStage):
                    continue
                for path in (source,) if isinstance(source, Path) else source:
                    if not path.is_relative_to(results) and not shipped(path).exists():
                        key = f"{stage.name} {item}".strip()
                        got = f"got {path}, which is not there"
                        raise SettingsError(f"{key}, {name}", f"{got}; allowed: a file")


def check_targets(experiment: Config, targets: Iterable[str]) -> None:
    """Refuse words of a command line that name files of another run, or of no stage."""
    folder = results_folder(experiment)
    words = list(map(str, targets))
    for before, target in zip(["", *words], words, strict=False):
        path = Path(target)
        below = path.is_relative_to(folder.parent) and before not in _TAKE_A_PATH
        if below and folder not in path.parents:
            raise SettingsError(
                "targets", f"got {str(path)!r}; allowed: files of this run, below {folder}"
            )
        names = path.relative_to(folder).parts if path.is_relative_to(folder) else ()
        if len(names) == 3 and names[0] in _OF_JOBS and names[1] in STAGES:
            items = STAGES[names[1]].items(experiment)
            if path.stem not in items and STAGES[names[1]].item:
                raise SettingsError(names[1], f"got {path.stem!r}; allowed: {', '.join(items)}")
        stage = "".join(names[:1])
        if stage not in STAGES or len(names) < 2:
            continue
        written = {
            str(file): item
            for key in STAGES[stage].outputs
            for item, file in files_of(experiment, f"{stage}.{key}").items()
        }
        if str(path) not in written:
            named = path.relative_to(folder / stage).parts[0].partition(".")[0]
            files = [file for file, item in written.items() if item in ("", named)]
            allowed = files or dict.fromkeys(written.values())
            got = target if files else named
            raise SettingsError(stage, f"got {got!r}; allowed: {', '.join(allowed)}")


_execute = ScriptBase._execute_cmd
_executable = RemoteExecutor.get_python_executable


def quote_interpreter() -> None:
    """Quote the path in the jobs of this process, local ones and those of a cluster."""
    PythonScript._execute_cmd = _execute_quoted
    RemoteExecutor.get_python_executable = lambda self: shlex.quote(_executable(self))


def _execute_quoted(script: Any, command: str, **values: Any) -> Any:
    return _execute(script, command.replace("{py_exec}", "{py_exec:q}"), **values)


#: Taken until the process ends: a lock that nobody refers to is given back.
_LOCKS: list[FileLock] = []


def hold_folder(state: Path) -> FileLock | None:
    """Take the folder until this process ends; stale marks in ``state``/locks go.

    Returns the lock; None where another run holds it, for which Snakemake's marks
    speak.
    """
    state.mkdir(parents=True, exist_ok=True)
    lock = FileLock(state / "pipeline.lock", mode=0o666)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return None
    _LOCKS.append(lock)
    for mark in (state / "locks").glob("*.lock"):
        mark.unlink(missing_ok=True)
    return lock
