"""What goes wrong in a long run is one line, and the next run goes on."""

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from railx.provenance.jobs import check_intact, digest_of
from tests.commands import environment, python
from tests.workflow.conftest import PipelineCopy
from tests.workflow.running import PATIENCE_S, jobs_of, living, until

pytestmark = pytest.mark.system

CORPUS = "results/quick/corpus/stdlib/sequences.parquet"
PLAN = "results/quick/plan/static_stdlib/plan.json"
TRAINING = "results/quick/training/static_stdlib/result.json"
_RUN = "runs.static_stdlib.training"
SHORT = (
    f"hydra={_RUN}.iterations=1 {_RUN}.on_demand_latencies_ms=[0,50,250]"
    f" {_RUN}.provisioned_latencies_ms=[]"
)


def logged(log: Path, body: str, watched: str = "") -> subprocess.CompletedProcess[str]:
    """A program whose ``body`` runs under a job's log, and under a watcher if named."""
    watch = f"from workflow.watch import watched; watched({watched!r}, {str(log)!r})"
    code = [
        "import os, signal, sys",
        *([watch] if watched else []),
        "from workflow.job import logged",
        f"with logged({str(log)!r}) as log:",
        f"    {body}",
    ]
    return python("-c", "\n".join(code))


def test_a_log_says_what_was_read_made_and_how_it_ended(tmp_path: Path) -> None:
    read, made, log = tmp_path / "read", tmp_path / "made", tmp_path / "log"
    read.write_text("four")
    body = (
        f"log.begins('stage', 'item', {{'a': {{'b': 2}}, 'c': None}}, {{'x': [{str(read)!r}]}});"
        f" print('own words'); os.system('echo of a child');"
        f" open({str(made)!r}, 'w').write('12'); log.ends({{'y': {str(made)!r}}})"
    )
    done = logged(log, body)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    lines = [re.sub(r"^\S+T\S+ ", "", line) for line in log.read_text().splitlines()]
    assert lines[0] == "begins: stage item"
    assert lines[1:3] == ["setting a_b = 2", "setting c = null"]
    assert lines[3] == f"reads x: {read}, 4 bytes, sha256 {digest_of(read)[:12]}"
    assert {"own words", "of a child"} < set(lines)
    assert lines[-2] == f"made y: {made}, 2 bytes, sha256 {digest_of(made)[:12]}"
    assert re.fullmatch(r"ends: \d+ s \(\d+\.\d s\)", lines[-1])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise UserError('a\\n b')", "error: a b"),
        ("open('/nowhere/at/all')", "error: /nowhere/at/all: No such file or directory"),
        ("raise MemoryError", "error: out of memory"),
        ("{}['x']", "error: KeyError: 'x'; its traceback is in LOG"),
        (
            "import numpy as np; np.ones(2) + np.ones(3)",
            (
                "error: ValueError: operands could not be broadcast together with shapes (2,)"
                " (3,); its traceback is in LOG"
            ),
        ),
        ("raise OSError('no thrift')", "error: OSError: no thrift; its traceback is in LOG"),
    ],
)
def test_a_failure_is_one_line_and_a_bug_leaves_its_traceback(
    body: str, said: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    done = logged(log, f"from railx.errors import UserError; {body}")
    assert ("Traceback (most recent call last)" in log.read_text()) == ("traceback" in said)
    assert done.returncode == 1
    assert done.stderr == said.replace("LOG", str(log)) + "\n"
    assert re.search(r"ends: failed after \d+ s", log.read_text().splitlines()[-1])


def test_a_file_that_may_not_grow_is_one_line(tmp_path: Path) -> None:
    body = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000));"
        " signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f" from railx.io import write_text; write_text({str(tmp_path / 'made')!r}, 'x' * 100000)"
    )
    done = logged(tmp_path / "log", body)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "the file may not grow" in line
    assert "the next run goes on from here" in line
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_an_interrupted_job_says_so_without_a_traceback(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = logged(log, "os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(60)")
    assert (done.returncode, done.stderr) == (130, "")
    (line,) = log.read_text().splitlines()
    assert "ends: interrupted after" in line


@pytest.mark.parametrize(
    ("number", "said"),
    [
        ("SIGKILL", "error: a job: was killed (SIGKILL, as for want of memory);"),
        ("SIGSEGV", "error: a job: was killed (SIGSEGV);"),
        ("SIGTERM", "a job: ended by SIGTERM;"),
    ],
)
def test_a_killed_job_is_one_line(number: str, said: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = logged(log, f"os.kill(os.getpid(), signal.{number})", watched="a job")
    assert done.returncode == 1
    line = f"{said} the next run makes it anew"
    assert done.stderr == f"{line}\n"
    assert log.read_text() == f"{line}\n"


def test_a_job_that_does_not_end_on_sigterm_is_killed(tmp_path: Path) -> None:
    again = "os.kill(os.getppid(), signal.SIGTERM);"
    body = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {again} {again} signal.pause()"
    done = logged(tmp_path / "log", body, watched="a job")
    assert done.stderr == "a job: ended by SIGTERM; the next run makes it anew\n"


def test_a_terminated_job_and_its_program_clear_up(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    program = "with told('a program'): os.kill(os.getppid(), signal.SIGTERM); signal.pause()"
    needs = "import os, signal, sys; from railx.progress import told; from workflow.watch import *"
    code = f"{needs}\nwith told('a job'): run_program([sys.executable, '-c', sys.argv[1]], 'it')"
    done = python("-c", code, f"{needs}\n{program}", env=environment(TMPDIR=str(own)))
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")
    assert list(own.iterdir()) == []


def test_the_watcher_ends_as_the_job_does(tmp_path: Path) -> None:
    assert logged(tmp_path / "log", "sys.exit(7)", watched="a job").returncode == 7
    assert logged(tmp_path / "log", "pass", watched="a job").returncode == 0


def test_a_job_does_not_outlive_its_watcher(tmp_path: Path) -> None:
    body = "os.kill(os.getppid(), signal.SIGKILL); signal.pause()"
    done = logged(tmp_path / "log", body, watched="a job")
    # Its output is read to the end: nobody holds it any longer.
    assert done.returncode == -signal.SIGKILL


def test_before_there_is_a_log_an_interrupted_job_is_one_line(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    code = f"from workflow.watch import watched; watched('a job', {log!r}); import os, signal;"
    done = python("-c", f"{code} os.kill(os.getpid(), signal.SIGINT); signal.pause()")
    assert done.returncode == 1
    assert done.stderr == "a job: ended by SIGINT; the next run makes it anew\n"


@pytest.mark.parametrize("name", ["corpus.json", "corpus/one.json"])
def test_a_damaged_result_is_set_aside_and_named(name: str, tmp_path: Path) -> None:
    result = tmp_path / "corpus" / "one" / "table"
    result.parent.mkdir(parents=True)
    result.write_bytes(b"as made")
    record = tmp_path / "provenance" / name
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"outputs": {result.as_posix(): digest_of(result)}}))
    check_intact([result], tmp_path)
    result.write_bytes(b"as mad!")
    with pytest.raises(ValueError, match=f"{result}: is damaged: 7 bytes with sha256") as caught:
        check_intact([result], tmp_path)
    assert "\n" not in str(caught.value)
    assert not result.exists()
    assert result.with_name("table.damaged").read_bytes() == b"as mad!"


def test_what_has_no_record_is_taken_as_it_is(tmp_path: Path) -> None:
    result = tmp_path / "corpus" / "one"
    result.parent.mkdir()
    result.write_bytes(b"by hand")
    for text in ("", "{}", '{"outputs": []}', '{"outputs": {"other": "0"}}'):
        record = tmp_path / "provenance" / "corpus.json"
        record.parent.mkdir(exist_ok=True)
        record.write_text(text)
        check_intact([result, tmp_path / "corpus" / "absent", Path("/etc/hosts")], tmp_path)
    assert result.exists()


def ended(process: subprocess.Popen[str], code: int) -> list[str]:
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, said
    return said.splitlines()


@pytest.mark.slow
class TestPipeline:
    """The same with the real pipeline, one after another in one folder."""

    def test_a_killed_worker(self, pipeline_copy: PipelineCopy) -> None:
        running = pipeline_copy.start(CORPUS)
        until(lambda: jobs_of(pipeline_copy.folder))
        (worker,) = jobs_of(pipeline_copy.folder)
        os.kill(worker, signal.SIGKILL)
        said = ended(running, 1)
        line = "error: corpus stdlib: was killed (SIGKILL, as for want of memory);"
        assert f"{line} the next run makes it anew" in said
        assert not any("Traceback" in line for line in said)
        pipeline_copy.snakemake(CORPUS)

    def test_a_damaged_result(self, pipeline_copy: PipelineCopy) -> None:
        table = pipeline_copy.folder / CORPUS
        whole = bytearray(table.read_bytes())
        whole[len(whole) // 2] ^= 1
        table.write_bytes(whole)
        said = ended(pipeline_copy.start(PLAN), 1)
        assert any(line.startswith(f"error: {CORPUS}: is damaged") for line in said)
        assert not any("Traceback" in line for line in said)
        pipeline_copy.snakemake(PLAN)
        assert table.read_bytes() != whole

    def test_a_full_disk(self, pipeline_copy: PipelineCopy, tmp_path: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("a small disk wants root")
        results = pipeline_copy.folder / "results"
        aside = results.rename(tmp_path / "aside")
        results.mkdir()
        with small_disk(results, "64k"):
            said = ended(pipeline_copy.start(CORPUS), 1)
            assert any("the disk is full" in line and line.startswith("error:") for line in said)
            assert not any("Traceback" in line for line in said)
            assert not list(results.rglob("*.part"))
            subprocess.run(["mount", "-o", "remount,size=64m", str(results)], check=True)
            pipeline_copy.snakemake(CORPUS)
            assert digest_of(pipeline_copy.folder / CORPUS) == digest_of(
                aside / Path(CORPUS).relative_to("results")
            )
        results.rmdir()
        aside.rename(results)

    def test_an_interrupted_run(self, pipeline_copy: PipelineCopy) -> None:
        running = pipeline_copy.start(TRAINING, SHORT)
        kept = pipeline_copy.folder / Path(TRAINING).parent / "unfinished"
        until(lambda: kept.exists() or running.poll() is not None)
        os.killpg(running.pid, signal.SIGINT)
        said = ended(running, 1)
        assert [line for line in said if "Traceback" in line] == [], "\n".join(said)
        until(lambda: not living(pipeline_copy.folder))
        log = pipeline_copy.folder / "results/quick/logs/training/static_stdlib.log"
        assert "training.run: error: interrupted" in log.read_text()
        pipeline_copy.snakemake(TRAINING, SHORT)
        assert not list((pipeline_copy.folder / "results").rglob("*.part"))


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)
