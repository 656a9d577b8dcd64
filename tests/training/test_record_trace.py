"""examples/record_trace.py, unmodified: two ranks on gloo leave a trace to replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from railx.exchange.graph_files import read_graphs
from railx.replay.graphs import NODE_KINDS
from tests.commands import ROOT, python
from workflow import cli

pytestmark = pytest.mark.system


def test_a_step_is_recorded_and_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prefix = tmp_path / "traces" / "job"
    program = (str(ROOT / "examples" / "record_trace.py"), "--layers", "1", "--out", str(prefix))
    done = python("-m", "torch.distributed.run", "--nproc-per-node", "2", *program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    graphs = read_graphs(prefix).graphs
    assert graphs.groups == ((0, 1),)
    reduces = graphs.columns["kind"] == NODE_KINDS.index("all_reduce")
    # The gradients of a layer of 256 x 256 with its biases, and the loss.
    assert graphs.columns["bytes"][reduces].tolist() == [4 * (256 * 256 + 256), 4] * 2
    assert (graphs.columns["duration_ns"][reduces] > 0).all()
    assert cli.main(["replay", str(prefix), "--network", "opus_rails", "--server", "1"]) == 0
