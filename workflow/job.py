"""A job of the pipeline: its log, inputs as they were made, its stage, its record."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from railx.io import clear_beside, write_json
from railx.progress import told
from railx.provenance.intact import check_intact
from railx.provenance.jobs import job_record, load_average, now_utc
from workflow.compilation import announce_compilation
from workflow.log import logged
from workflow.stages import STAGES

__all__ = ["arrow_alone", "leave", "make"]

#: Packages that hand pandas' frames to pyarrow, or take them from it.
_PANDAS = frozenset({"duckdb", "matplotlib", "mlflow", "pandas", "seaborn", "wandb"})


def make(job: Any) -> None:
    """Run the stage that is named as the rule of ``job``, as Snakemake gives it.

    Beside the results stands the record of what they were made of.
    """
    with logged(job.log[0]) as log:
        arrow_alone(job.params.code["packages"])
        started_utc, load_before = now_utc(), load_average()
        written = dict(job.output.items())
        record = written.pop("record")
        item = next(iter(job.wildcards), "")
        inputs = {
            name: [files] if isinstance(files, str) else list(files)
            for name, files in job.input.items()
        }
        log.begins(job.rule, item, job.params.settings, inputs)
        for path in (*written.values(), record):
            clear_beside(path)
        check_intact(job.input, Path(record.split("/provenance/")[0]))
        name = " ".join(filter(None, [job.rule, item]))
        if "numba" in job.params.code["packages"]:
            announce_compilation(name, log.progress)
        with told(name, log.progress):
            STAGES[job.rule].make(job.params.settings, item=item, inputs=inputs, outputs=written)
        log.ends(written)
        write_json(
            record,
            job_record(
                stage=job.rule,
                item=item,
                code=job.params.code["digest"],
                packages=job.params.code["packages"],
                settings=job.params.settings,
                inputs=job.input,
                outputs=written.values(),
                started_utc=started_utc,
                load_before=load_before,
            ),
        )


def arrow_alone(packages: Iterable[str]) -> None:
    """Let pyarrow do without pandas where none of a stage's packages knows frames.

    pyarrow imports pandas, a quarter of a second, as soon as it makes its first array
    of anything, to tell a list from a series. Told once that there is none, it asks no
    more; everybody else can import pandas as before.
    """
    if not _PANDAS.isdisjoint(packages):
        return
    import pyarrow as pa

    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([None])
    finally:
        sys.meta_path.remove(_NoPandas)


class _NoPandas:
    """A finder of modules for which there is no pandas."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Refuse pandas; others look for the rest."""
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)


def leave() -> NoReturn:
    """End the process of a job that is done.

    What is registered for the end runs and what was printed is written, but memory goes
    back whole: taking half a thousand modules apart costs a fifth of a second. Threads
    that still work are waited for, as Python does.
    """
    if any(not one.daemon for one in threading.enumerate() if one is not threading.main_thread()):
        sys.exit(0)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(0)
