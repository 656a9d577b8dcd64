"""The soak run sees what it is there to see, and runs."""

from __future__ import annotations

import json
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from railx.fabric import Configuration, Layout
from railx.fabric.protocol import TOKEN
from scripts.soak.checker import Checker, Span
from scripts.soak.cli import Soak, options_of
from tests.commands import ROOT, python

LEFT = Configuration("ring", (0, 1))
RIGHT = Configuration("ring", (1, 2))
LIGHT = [[0, 1], [1, 0]]
SECOND_NS = 10**9


def judged(
    folder: Path,
    lines: list[tuple[int, str, dict[str, Any]]],
    *spans: tuple[int, int, Configuration],
) -> list[str]:
    log = folder / "log"
    log.write_text(
        "".join(
            json.dumps({"at_ns": at_ns, "what": what, "circuits": [], **more}) + "\n"
            for at_ns, what, more in lines
        )
    )
    checker = Checker(Layout(1), log)
    checker.judge(Span(begin, end, item.name, item) for begin, end, item in spans)
    return checker.broken


LIT = (1, "lit", {"circuits": LIGHT})


def test_work_with_light_is_right(tmp_path: Path) -> None:
    """Light before the first, a drop after the last, and light again."""
    right = [[1, 2], [2, 1]]
    lines = [LIT, (8, "drop", {"circuits": LIGHT}), (9, "lit", {"circuits": right})]
    assert judged(tmp_path, lines, (2, 4, LEFT), (3, 8, LEFT), (9, 12, RIGHT)) == []


@pytest.mark.parametrize(
    ("lines", "spans", "what"),
    [
        ([], [(2, 4, LEFT)], "ring 0,1 began without light on Circuit(right=0, left=1)"),
        ([LIT, (3, "drop", {"circuits": LIGHT})], [(2, 4, LEFT)], "was torn down while ring 0,1"),
        ([LIT, (2, "drop", {"circuits": LIGHT})], [(3, 4, LEFT)], "(dropped, 0.0 ms)"),
        ([LIT, (2, "start", {"circuits": []})], [(3, 4, LEFT)], "began without light"),
        ([LIT], [(2, 9, LEFT), (3, 4, RIGHT)], "at once"),
        ([LIT, (2, "lit", {"circuits": [[0, 2]]})], [], "came up, but Port(gpu=0, side='right')"),
        ([(1, "lost", {"ports": [[0, "left"]]}), (2, *LIT[1:])], [], "which is lost"),
    ],
)
def test_every_mistake_is_seen(
    tmp_path: Path,
    lines: list[tuple[int, str, dict[str, Any]]],
    spans: list[tuple[int, int, Configuration]],
    what: str,
) -> None:
    assert any(what in line for line in judged(tmp_path, lines, *spans))


def test_the_loss_of_a_port_is_nobodys_mistake_until_it_is_known(tmp_path: Path) -> None:
    lines = [LIT, (5, "lost", {"ports": [[0, "left"]]})]
    assert judged(tmp_path, lines, (2, 9, LEFT), (7, 9, LEFT)) == []
    assert judged(tmp_path, lines, (5 * SECOND_NS, 6 * SECOND_NS, LEFT)) != []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux lets two bind it")
@pytest.mark.filterwarnings("ignore:.*:ResourceWarning")
def test_nobody_takes_the_port_of_a_killed_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "")
    soak = Soak(options_of([]), tmp_path)
    soak.controller.send_signal(signal.SIGKILL)
    soak.controller.wait()
    host, port = soak.address.split(":")
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((host, int(port)))
    soak.start()
    assert soak.close() > 0


def test_too_few_ranks_are_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        options_of(["--ranks", "3"])
    assert "--ranks: got 3; allowed: at least 4" in capsys.readouterr().err


@pytest.mark.slow
def test_a_short_run(tmp_path: Path) -> None:
    done = python(ROOT / "scripts/soak", "--seconds", "15", "--seed", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "invariants broken: 0" in done.stdout
    for title in ("done and suffered:", "judged:", "messages:", "refusals that ranks saw:"):
        assert title in done.stdout
