"""The command: real launches with files as results, on a node that has torch, numpy and
pyarrow only, and errors in one line.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing.connection
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from railx.io import read_json, read_rows, read_table, write_json
from railx.performance.decoder import ModelSettings
from railx.planning.format.files import write_plan
from railx.planning.format.parts import Pipeline
from railx.planning.format.plan import Plan
from tests.builders import write_corpus
from tests.commands import environment, python
from tests.plans import chunk, micro_batch, pipeline_plan, sequence_parallel_plan
from tests.training import sharding_program
from training import ranks
from training import run as command
from training.data import plan_lengths, read_sequences
from training.settings import fabric_rounds, load_run_settings

pytestmark = pytest.mark.system

LENGTHS = [90, 61, 40, 33, 17]

#: What torch, numpy and pyarrow need themselves; anything else from outside the
#: standard library is missing on a bare node.
BARE = """
import sys
ALLOWED = {
    *sys.stdlib_module_names, "torch", "torchgen", "functorch", "numpy", "pyarrow", "railx",
    "railx_torch", "training", "nvidia", "cuda", "triton", "typing_extensions", "sympy", "mpmath",
    "networkx", "jinja2", "markupsafe", "filelock", "fsspec", "setuptools",
}
class Bare:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in ALLOWED or top.startswith("_sysconfigdata"):
            return self.finder.find_spec(name, path, target)
        return None
sys.meta_path[:] = [Bare(finder) for finder in sys.meta_path]
"""


def sequence_parallel() -> Plan:
    """Degrees 2 and 1 on two ranks, two different batches."""
    together = micro_batch(((0, 1), {0: 90, 1: 61}))
    apart = micro_batch(((0,), {2: 40}), ((1,), {3: 33, 4: 17}))
    return sequence_parallel_plan(2, [together, apart], [apart])


def pipeline(degree: int = 1) -> Plan:
    """Two stages, a sequence in two slices, its tail in a hybrid chunk."""
    chunks = (chunk((0, 0, 50, 90)), chunk((0, 50, 90, 90), (4, 0, 10, 10)), chunk((1, 0, 61, 61)))
    return pipeline_plan(2 * degree, [Pipeline(2, 0, chunks, degree)])


def prepared(folder: Path, made: Plan, **changes: Any) -> dict[str, Any]:
    """The corpus, the plan and the settings of a small run; ``changes`` replace
    settings by dotted key.
    """
    generator = np.random.default_rng(5)
    texts = [generator.integers(0, 60, length, dtype=np.uint8).tobytes() for length in LENGTHS]
    write_corpus(folder / "corpus.parquet", texts, name="random")
    write_plan(folder / "plan.json", made)
    settings: dict[str, Any] = {
        "name": "run",
        "seed": 3,
        "plan_name": "by_hand",
        "plan": str(folder / "plan.json"),
        "corpus": str(folder / "corpus.parquet"),
        "model": {
            "name": "test",
            "layers": 2,
            "hidden": 32,
            "heads": 4,
            "kv_heads": 2,
            "feed_forward": 48,
            "vocabulary": 60,
        },
        "fabric": {
            "gpus_per_server": 1,
            "host": "127.0.0.1",
            "port": 0,
            "timeout_s": 60.0,
        },
        "training": {
            "device": "cpu",
            "precision": "float32",
            "attention": "auto",
            "sharding": "none",
            "compile": False,
            "loss_chunk_tokens": 16,
            "optimizer": {
                "learning_rate": 1e-2,
                "beta1": 0.9,
                "beta2": 0.95,
                "epsilon": 1e-8,
                "weight_decay": 0.1,
                "clip_norm": None,
                "schedule": "constant",
                "warmup_steps": 0,
                "decay_steps": 0,
                "final_share": 0.1,
            },
            "warmup_iterations": 1,
            "iterations": 2,
            "repeats": 1,
            "disturbed_share": 1.0,
            "most_extra_repeats": 0,
            "threads_per_rank": 1,
            "on_demand_latencies_ms": [5],
            "provisioned_latencies_ms": [5],
            "loss_tolerance": 1e-6,
            "checkpoint_every": 0,
            "timeout_s": 60.0,
            "planning": "file",
        },
    }
    for key, value in changes.items():
        place = settings
        *above, last = key.split(".")
        for name in above:
            place = place[name]
        place[last] = value
    return settings


def written(folder: Path, settings: dict[str, Any]) -> list[str]:
    write_json(folder / "config.json", settings)
    return ["--config", str(folder / "config.json"), "--out", str(folder / "out")]


def one_process() -> sharding_program.Case:
    """The run of :func:`bare_run` for one process."""
    model = ModelSettings("test", 2, 32, 4, 2, 48, 60)
    return sharding_program.Case("run", sequence_parallel(), model, "zero3")


@pytest.fixture(scope="module")
def bare_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sharded sequence-parallel run launched plainly where only torch, numpy and
    pyarrow can be imported.
    """
    folder = tmp_path_factory.mktemp("bare")
    (folder / "sitecustomize.py").write_text(BARE)
    refused = python("-c", "import pandas", env=environment(folder))
    assert "No module named 'pandas'" in refused.stderr
    settings = prepared(
        folder,
        sequence_parallel(),
        **{
            "seed": 1,
            "training.sharding": "zero3",
            "training.optimizer": vars(sharding_program.settings(one_process()).training.optimizer),
            "training.checkpoint_every": 2,
        },
    )
    arguments = written(folder, settings)
    done = python("-m", "training.run", *arguments, cwd=folder, env=environment(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ms per iteration, loss") == 3
    assert "losses of all settings agree" in done.stdout
    return folder / "out"


def test_a_bare_node_writes_all_files(bare_run: Path) -> None:
    assert sorted(path.name for path in bare_run.iterdir()) == [
        "checkpoint",
        "iterations.parquet",
        "passes.parquet",
        "result.json",
        "trace.json",
        "trace.parquet",
    ]


def test_iterations_have_a_row_for_each_setting_iteration_and_rank(bare_run: Path) -> None:
    rows = read_rows(bare_run / "iterations.parquet")
    modes = [("electrical", 0.0), ("on_demand", 5.0), ("provisioned", 5.0)]
    assert [
        (row["mode"], row["reconfiguration_latency_ms"], row["iteration"], row["rank"])
        for row in rows
    ] == [(*mode, iteration, rank) for mode in modes for iteration in (1, 2) for rank in (0, 1)]
    assert {(row["run"], row["plan"]) for row in rows} == {("run", "by_hand")}
    assert list(rows[0]) == [
        *(
            "run",
            "plan",
            "parallelism",
            "device",
            "mode",
            "reconfiguration_latency_ms",
            "iteration",
            "repeat",
            "rank",
            "iteration_ms",
        ),
        *(
            "stall_ms",
            "wait_ms",
            "requests",
            "held",
            "reconfigurations",
            "loss",
            "gradient_norm",
            "tokens",
            "peak_memory_bytes",
            "planning_ms",
            "planning_wait_ms",
            "load_share",
            "disturbed",
            "fidelity",
        ),
    ]
    assert {row["fidelity"] for row in rows if row["mode"] == "electrical"} == {"measured_cpu"}
    assert {row["fidelity"] for row in rows if row["mode"] != "electrical"} == {"emulated"}
    assert {(row["iteration"], row["tokens"]) for row in rows} == {(1, 90), (2, 241)}
    # Four units are gathered forward and the two layers once more backward, and four
    # are summed, in each of a batch's micro-batches; in one of degree 2 there are four
    # all-to-alls a layer; and the norm. Two ranks share one circuit, and hold it.
    switched = [row for row in rows if row["mode"] != "electrical"]
    assert {(row["iteration"], row["requests"] + row["held"]) for row in switched} == {
        (1, 10 + 1),
        (2, 2 * 10 + 8 + 1),
    }
    assert {row["requests"] for row in switched} == {0}
    assert all(
        row["requests"] == row["stall_ms"] == 0 for row in rows if row["mode"] == "electrical"
    )


def test_every_setting_trains_the_same_model(bare_run: Path) -> None:
    result = read_json(bare_run / "result.json")
    assert result["losses_agree"] is True
    assert result["loss_difference"] <= 1e-6
    assert (result["parallelism"], result["ranks"], result["backend"], result["attention"]) == (
        "sequence_parallel",
        2,
        "gloo",
        "sdpa",
    )
    losses = [setting["losses"] for setting in result["settings"]]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert losses[0][0] == pytest.approx(np.log(60), rel=0.1)


def test_losses_and_norms_are_those_of_one_process(bare_run: Path) -> None:
    """Single against double precision; the first step of the run warms up."""
    case = one_process()
    sequences = read_sequences(bare_run.parent / "corpus.parquet", plan_lengths(case.plan), 60)
    whole = sharding_program.reference(case, sequences)
    for setting in read_json(bare_run / "result.json")["settings"]:
        assert setting["losses"] == pytest.approx(whole.losses[1:], rel=1e-5)
        assert setting["gradient_norms"] == pytest.approx(whole.norms[1:], rel=1e-4)


def test_the_trace_has_every_rank_and_setting(bare_run: Path) -> None:
    trace = read_table(bare_run / "trace.parquet").to_pylist()
    assert {(row["rank"], row["mode"]) for row in trace} == {
        (r, m) for r in (0, 1) for m in ("electrical", "on_demand", "provisioned")
    }
    assert {row["phase"] for row in trace if row["kind"] == "compute"} == {
        "forward",
        "backward",
        "optimizer",
    }
    kinds = {"all_gather", "reduce_scatter", "all_to_all", "all_reduce", "reconfiguration"}
    assert kinds <= {row["kind"] for row in trace}
    assert all(row["end_ns"] >= row["start_ns"] for row in trace)
    assert json.loads((bare_run / "trace.json").read_text())["traceEvents"]


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two repeats beside a process that never rests, where any load disturbs."""
    folder = tmp_path_factory.mktemp("repeated")
    settings = prepared(
        folder,
        pipeline(),
        **{
            "training.repeats": 2,
            "training.disturbed_share": 0.0,
            "training.most_extra_repeats": 2,
        },
    )
    with restless():
        done = python("-m", "training.run", *written(folder, settings))
    assert done.returncode == 0, done.stderr
    assert "set aside as disturbed: 8 of 8 blocks" in done.stdout
    return folder / "out"


def test_repeats_go_round_all_settings(repeated: Path) -> None:
    """In the order that the seed draws, electrical first; what was disturbed follows at
    the end of its repeat, as often as is allowed.
    """
    blocks = read_json(repeated / "result.json")["blocks"]
    planned = fabric_rounds(load_run_settings(prepared_again(repeated)))
    modes = [[fabric.mode for fabric in order] for order in planned]
    assert [(block["repeat"], block["mode"]) for block in blocks] == [
        *((0, mode) for mode in modes[0] + modes[0][:2]),
        *((1, mode) for mode in modes[1]),
    ]


def test_disturbed_blocks_are_kept_and_marked(repeated: Path) -> None:
    rows = read_rows(repeated / "iterations.parquet")
    again = [row["mode"] for row in rows if (row["repeat"], row["rank"]) == (0, 0)]
    # Two iterations a block; two of the three blocks ran twice.
    assert sorted(again.count(mode) for mode in set(again)) == [2, 4, 4]
    if all(row["load_share"] is not None for row in rows):
        assert all(row["disturbed"] and 0 < row["load_share"] <= 1 for row in rows)
    result = read_json(repeated / "result.json")
    assert result["set_aside"] == 8
    assert sorted((one["repeats"], one["set_aside"]) for one in result["settings"]) == [
        (0, 2), (0, 3), (0, 3),
    ]  # fmt: skip


def test_losses_agree_over_repeats(repeated: Path) -> None:
    losses: dict[int, set[float]] = {}
    for row in read_rows(repeated / "iterations.parquet"):
        losses.setdefault(row["iteration"], set()).add(row["loss"])
    assert all(max(some) - min(some) <= 1e-6 * max(some) for some in losses.values())
    assert read_json(repeated / "result.json")["losses_agree"] is True


def test_the_window_of_every_block_is_counted(repeated: Path) -> None:
    blocks = read_json(repeated / "result.json")["blocks"]
    assert all(block["peak_live_chunks"] == [3, 2] for block in blocks)


def test_only_the_first_repeat_is_traced(repeated: Path) -> None:
    """Each setting once, though two ran again."""
    trace = read_rows(repeated / "trace.parquet")
    steps = [
        (row["mode"], row["iteration"])
        for row in trace
        if (row["kind"], row["phase"], row["rank"]) == ("compute", "optimizer", 0)
    ]
    assert len(steps) == len(set(steps)) == 3 * 3


@pytest.fixture(scope="module")
def piped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages of two ranks each, under torchrun."""
    folder = tmp_path_factory.mktemp("piped")
    arguments = written(folder, prepared(folder, pipeline(2)))
    program = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
    done = python(*program, "-m", "training.run", *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_torchrun_runs_a_pipeline(piped: Path) -> None:
    result = read_json(piped / "result.json")
    assert result["losses_agree"] is True
    assert result["peak_live_chunks"] == result["planned_peak_live_chunks"] == [3, 3, 2, 2]


def test_messages_of_stages_and_exchanges_of_groups_switch_in_one_run(piped: Path) -> None:
    """Every rank has a server of its own: both kinds want circuits of the rails, and
    the losses are those of electrical switching.
    """
    trace = read_rows(piped / "trace.parquet")
    for mode in ("on_demand", "provisioned"):
        own = [row for row in trace if row["mode"] == mode]
        switched = [row for row in own if row["kind"] == "reconfiguration"]
        assert {row["group"] for row in switched} >= {"0,1", "2,3"}
        groups = {(row["kind"], row["group"]) for row in own}
        assert {("all_to_all", "0,1"), ("all_to_all", "2,3")} <= groups
        between = {group for kind, group in groups if kind in ("send", "recv")}
        assert {frozenset(group.split(",")) for group in between} == {
            frozenset("02"), frozenset("13"),
        }  # fmt: skip
        assert any(set(row["group"].split(",")) in ({"0", "2"}, {"1", "3"}) for row in switched)


def test_passes_say_what_was_alive_and_what_was_expected(piped: Path) -> None:
    rows = read_rows(piped / "passes.parquet")
    window = [[1, 2, 3, 2, 1, 0], [1, 2, 1, 2, 1, 0]]
    assert {(row["fidelity"], row["iteration"]) for row in rows} == {("measured_cpu", 0)}
    for rank in range(4):
        own = [row for row in rows if row["rank"] == rank]
        assert [row["position"] for row in own] == list(range(6))
        assert all((row["stage"], row["place"]) == divmod(rank, 2) for row in own)
        live = [row["live_chunks"] for row in own]
        assert live == [row["predicted_live_chunks"] for row in own] == window[rank // 2]
        # What has been sent may still be on its way.
        sent = 0
        for row in own:
            sent += 4 * 32 * 31
            assert row["predicted_held_bytes"] <= 1.02 * row["held_bytes"]
            assert row["held_bytes"] <= 1.02 * row["predicted_held_bytes"] + sent
            assert row["held_bytes"] <= row["peak_bytes"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training.warmup": 1}, "training.warmup: unknown key; allowed: "),
        (
            {"model.heads": 1, "model.kv_heads": 1},
            "model.heads: got 1; allowed: a multiple of 2, a degree of the plan",
        ),
        (
            {"model.vocabulary": 50},
            "corpus.parquet: token id 59; allowed: below model.vocabulary, which is 50",
        ),
        ({"plan": "missing.json"}, "missing.json"),
        ({"training.attention": "varlen"}, "training.attention: got varlen, which cannot run here"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    changes: dict[str, Any], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert (
        refused(prepared(tmp_path, sequence_parallel(), **changes), tmp_path, capfd).count(message)
        == 1
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_a_demanded_gpu_that_is_missing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = refused(
        prepared(tmp_path, sequence_parallel(), **{"training.device": "cuda"}), tmp_path, capfd
    )
    assert (
        line
        == "training.run: error: training.device: got cuda, but no CUDA device is there; allowed"
        " here: auto, cpu\n"
    )


def test_a_port_already_taken(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused(
            prepared(tmp_path, sequence_parallel(), **{"fabric.port": port}), tmp_path, capfd
        )
    assert line.startswith(f"training.run: error: fabric.port: got {port}, ")


def test_a_plan_for_another_corpus(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = prepared(tmp_path, sequence_parallel())
    write_corpus(tmp_path / "corpus.parquet", [b"abc"])
    assert "sequence 0 has 3 tokens, 3 by its length, and the plan wants 90" in refused(
        settings, tmp_path, capfd
    )


def test_more_ranks_than_the_plan_has_devices(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    line = refused(prepared(tmp_path, sequence_parallel()), tmp_path, capfd)
    assert (
        line
        == "training.run: error: ranks: got 3; allowed: 2, the number of devices that the plan was"
        " made for\n"
    )


@pytest.fixture
def two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two hosts, each of which has its own name on its loopback."""
    launch = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "10.0.0.1"}
    for name, value in launch.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")


@pytest.mark.usefixtures("two_hosts")
def test_addresses_that_other_hosts_do_not_reach(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for host in ("127.0.0.1", "unix:/tmp/controller"):
        assert refused(
            prepared(tmp_path, sequence_parallel(), **{"fabric.host": host}), tmp_path, capfd
        ) == (
            f"training.run: error: fabric.host: got {host}, which other hosts do not reach;"
            " allowed: an address of the first host\n"
        )
    settings = prepared(tmp_path, sequence_parallel(), **{"fabric.host": "10.0.0.1"})
    missing = (
        "training.run: error: GLOO_SOCKET_IFNAME: is missing, and localhost is a loopback"
        " address here, which other hosts do not reach; allowed: the network interface to them,"
        " e.g. eth0\n"
    )
    assert refused(settings, tmp_path, capfd) == missing
    # Without switches there is no controller to reach.
    apart = {"training.on_demand_latencies_ms": [], "training.provisioned_latencies_ms": []}
    electrical = prepared(tmp_path, sequence_parallel(), **apart)
    assert refused(electrical, tmp_path, capfd) == missing


@pytest.mark.usefixtures("two_hosts")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0"),
        # Agents on one machine.
        ("MASTER_ADDR", "localhost"),
        ("LOCAL_WORLD_SIZE", "2"),
    ],
)
def test_addresses_that_all_ranks_reach(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(command, "run_rank", lambda *run: None)
    settings = prepared(tmp_path, sequence_parallel(), **{"fabric.host": "10.0.0.1"})
    assert command.main(written(tmp_path, settings)) == 0


def test_a_folder_that_cannot_be_made(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = prepared(tmp_path, sequence_parallel())
    words = written(tmp_path, settings)
    (tmp_path / "out").write_text("a file")
    # Root may write to /proc by its permissions, and makes no file there.
    for out in (words[-1], "/proc/out"):
        assert command.main([*words[:-1], out]) == 2
        message = f"--out: got {out}; allowed: a place that can be written, unlike "
        assert message in capfd.readouterr().err


def refused(settings: dict[str, Any], folder: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """The one line on standard error; nothing is written."""
    assert command.main(written(folder, settings)) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert not (folder / "out").exists()
    return error


def test_a_run_killed_between_blocks_keeps_those(tmp_path: Path) -> None:
    settings = prepared(tmp_path, sequence_parallel(), **{"training.repeats": 100_000})
    launcher = subprocess.Popen(
        [sys.executable, "-m", "training.run", *written(tmp_path, settings)],
        env=environment(),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    try:
        while "repeat 2/" not in (line := launcher.stdout.readline()):
            assert line
    finally:
        launcher.kill()
        launcher.wait()
        launcher.stdout.close()
    # Three of the first round, at least.
    kept = sorted(path.parent.name for path in (tmp_path / "out").glob("unfinished/*/block.json"))
    assert kept[:3] == ["block_000", "block_001", "block_002"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["unfinished"]


def test_ranks_end_with_a_killed_launcher(tmp_path: Path) -> None:
    arguments = written(
        tmp_path, prepared(tmp_path, sequence_parallel(), **{"training.iterations": 100_000})
    )
    launcher = subprocess.Popen(
        [sys.executable, "-m", "training.run", *arguments],
        env=environment(),
        cwd=tmp_path,
        start_new_session=True,
    )
    try:
        wait_until(lambda: len(members(launcher.pid)) >= 4, 200)
        launcher.kill()
        launcher.wait()
        wait_until(lambda: not members(launcher.pid), 200)
    finally:
        for process in members(launcher.pid):
            os.kill(process, signal.SIGKILL)
    assert not (tmp_path / "out").exists()


def prepared_again(out: Path) -> dict[str, Any]:
    """The settings that wrote ``out``."""
    settings: dict[str, Any] = read_json(out.parent / "config.json")
    return settings


@contextlib.contextmanager
def restless() -> Iterator[int]:
    """A process that computes until the block ends."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def members(session: int) -> list[int]:
    """The processes of a session that have not ended: launcher, fork server, resource
    tracker, ranks, controller.
    """
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


def wait_until(condition: Any, limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


LONG = """
from training.ranks import launch_ranks

def fail():
    raise RuntimeError("x" * 1_000_000)

if __name__ == "__main__":
    failure = launch_ranks(fail, 2, (), expected_errors={})
    assert failure.message.startswith("rank ") and failure.code == 1
    assert len(failure.message) == 1000 and len(failure.trace) == 10_000
"""


class Ending:
    """A rank's process; ``report`` is what its launcher's wait makes readable."""

    def __init__(self, exitcode: int, pid: int) -> None:
        self.exitcode, self.pid = exitcode, pid
        self.sentinel, self.report = os.pipe()

    def join(self) -> None:
        """It has ended."""


def test_a_killed_rank_is_named_however_late_it_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        # Not waited for: it stays in the system's table.
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        failed, killed, runs = Ending(1, ended.pid), Ending(-9, ended.pid), Ending(0, os.getpid())
        os.close(failed.report)
        waits = multiprocessing.connection.wait

        def wait(sentinels: list[int], *limit_s: float | None) -> Any:
            if failed.sentinel not in sentinels:
                if limit_s:
                    return []
                os.close(killed.report)
            return waits(sentinels)

        monkeypatch.setattr(multiprocessing.connection, "wait", wait)
        found: Any = ranks._wait([failed, killed, runs])  # type: ignore[list-item]
        assert found is killed
    for one in (failed, killed, runs):
        os.close(one.sentinel)
    os.close(runs.report)


def test_an_error_of_any_length_ends_a_launch(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(LONG)
    done = python(tmp_path / "long.py")
    assert done.returncode == 0, done.stderr


def test_a_loss_that_is_not_finite_ends_the_run_in_one_line(tmp_path: Path) -> None:
    changes = {"training.optimizer.learning_rate": 1e18}
    settings = prepared(tmp_path, pipeline(), **changes)
    done = python("-m", "training.run", *written(tmp_path, settings))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "training.run: error: training.optimizer: got loss nan and gradient norm nan in step 2;"
        " allowed: settings with which both stay finite, as a lower learning_rate"
    )
