"""A job of the pipeline: its log, inputs as they were made, its stage, its record.

The log says what the job is, read and made, and how it ended. All that its script and
its children print goes there too. What went wrong is one line, in the log and on the
terminal. Lines of progress go to both.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from railx.errors import DISK_FULL, is_explained
from railx.io import clear_beside, leaves, write_json
from railx.progress import duration, told
from railx.provenance.jobs import check_intact, digest_of, job_record, load_average, now_utc
from workflow.compilation import announce_compilation
from workflow.stages import STAGES

#: Packages that hand pandas' frames to pyarrow, or take them from it.
_PANDAS = frozenset({"duckdb", "matplotlib", "mlflow", "pandas", "seaborn", "wandb"})


def make(job: Any) -> None:
    """Run the stage named as the rule of ``job``; its record goes beside results."""
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
        check_intact(job.input, Path(record.rsplit("/provenance/", 1)[0]))
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


#: Settings that a log names; the rest is in the record of the job.
_SETTINGS = 40
#: How a shell calls the end by Ctrl-C.
_INTERRUPTED = 130


class JobLog:
    """The log of a job that runs."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._begun = time.monotonic()

    def say(self, line: str) -> None:
        """A line with the time in UTC."""
        print(f"{now_utc()} {line}", flush=True)

    def progress(self, line: str) -> None:
        """A line of the log that the terminal shows too."""
        self.say(line)
        self.terminal(line)

    def terminal(self, line: str) -> None:
        """A line for whoever watches."""
        with contextlib.suppress(OSError):
            os.write(self._terminal, f"{line}\n".encode())

    def begins(
        self, stage: str, item: str, settings: Any, inputs: Mapping[str, Iterable[str]]
    ) -> None:
        """What the job is, its settings, and the files that it reads, with digests."""
        self.say(f"begins: {' '.join(filter(None, [stage, item]))}")
        for line in _settings_lines(settings):
            self.say(f"setting {line}")
        for name, files in inputs.items():
            for file in files:
                size = Path(file).stat().st_size if Path(file).is_file() else 0
                self.say(f"reads {name}: {file}, {size} bytes, sha256 {digest_of(file)[:12]}")

    def ends(self, outputs: Mapping[str, str | Path]) -> None:
        """What the job made, and how long it took."""
        for name, file in outputs.items():
            self.say(f"made {name}: {file}, {_counts(Path(file))}")
        self.say(f"ends: {duration(self.seconds)} ({self.seconds:.1f} s)")

    @property
    def seconds(self) -> float:
        """How long the job has run."""
        return time.monotonic() - self._begun


@contextmanager
def logged(path: str | Path) -> Iterator[JobLog]:
    """Send this process's output (and that of its children) to ``path``.

    An exception that explains itself (:func:`railx.errors.is_explained`) is one line in
    the log and on the terminal. Any other is a bug: its traceback is in the log, and
    the line on the terminal says where.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    terminal = os.dup(sys.stderr.fileno())
    log = JobLog(terminal)
    try:
        with Path(path).open("wb") as file:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
                os.dup2(file.fileno(), stream.fileno())
        yield log
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            log.say(f"ends: interrupted after {duration(log.seconds)} ({log.seconds:.1f} s)")
        _end(_INTERRUPTED)
    except Exception as error:
        explained = is_explained(error)
        bug = " ".join(f"{type(error).__name__}: {error}".split())
        line = f"error: {_one_line(error, Path(path)) if explained else bug}"
        log.terminal(line if explained else f"{line}; its traceback is in {path}")
        # A full disk takes no line of the log either.
        with contextlib.suppress(OSError):
            if not explained:
                traceback.print_exc()
            log.say(line)
            log.say(f"ends: failed after {duration(log.seconds)} ({log.seconds:.1f} s)")
        _end(1)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()


def _end(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # What is left in the buffer would be tried again when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


def _one_line(error: BaseException, path: Path) -> str:
    """One line: what happened, to which file, and what to do."""
    if isinstance(error, MemoryError):
        return f"out of memory{f': {error}' if str(error) else ''}"
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        place = Path(str(error.filename)) if error.filename else path
        there = next((one for one in (place, *place.parents) if one.is_dir()), Path())
        free = shutil.disk_usage(there).free
        why = "the file may not grow" if error.errno == errno.EFBIG else "the disk is full"
        return (
            f"{place}: {why} ({free} bytes free in {there}); nothing half-written is left, and the"
            " next run goes on from here once there is space"
        )
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _settings_lines(settings: Any) -> list[str]:
    if not isinstance(settings, Mapping):
        return [] if settings is None else [json.dumps(settings, default=str)]
    named = [f"{key} = {json.dumps(value, default=str)}" for key, value in leaves(settings)]
    kept = [line if len(line) <= 200 else f"{line[:200]}..." for line in named[:_SETTINGS]]
    more = len(named) - len(kept)
    return [*kept, f"({more} more in the job's config)"] if more else kept


def _counts(path: Path) -> str:
    if not path.is_file():
        return "a folder" if path.is_dir() else "missing"
    size = f"{path.stat().st_size} bytes"
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        about = pq.read_metadata(path)
        size = f"{about.num_rows} rows, {about.num_columns} columns, {size}"
    return f"{size}, sha256 {digest_of(path)[:12]}"
