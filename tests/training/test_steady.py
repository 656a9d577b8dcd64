"""`make steady`: what it trains, what it compares, and the processes beside it."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest

from tests.builders import ROOT


@pytest.fixture(scope="module")
def steady() -> ModuleType:
    spec = importlib.util.spec_from_file_location("steady", ROOT / "scripts/steady.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["steady"] = module
    spec.loader.exec_module(module)
    return module


def rows(*verdicts: str) -> list[dict[str, Any]]:
    return [
        {
            "claim": f"claim_{number}",
            "verdict": verdict,
            "ours": 1.5 if verdict in ("reproduced", "direction only", "not reproduced") else None,
            "low": 1.25,
            "high": 2.0,
            "set_aside": number,
        }
        for number, verdict in enumerate(verdicts)
    ]


@pytest.mark.parametrize(
    ("idle", "busy", "found"),
    [
        (("reproduced", "direction only"), ("reproduced", "direction only"), []),
        (("reproduced", "reproduced"), ("reproduced", "undecided"), []),
        (
            ("reproduced", "not reproduced"),
            ("reproduced", "reproduced"),
            ["claim_1: not reproduced idle, reproduced busy"],
        ),
        (
            ("reproduced", "reproduced", "undecided"),
            ("reproduced", "undecided", "not here"),
            ["busy: only 1 of 3 claims are decided"],
        ),
        (
            ("undecided",),
            ("undecided",),
            ["idle: only 0 of 1 claims are decided", "busy: only 0 of 1 claims are decided"],
        ),
    ],
)
def test_what_counts_as_unsteady(
    steady: ModuleType, idle: tuple[str, ...], busy: tuple[str, ...], found: list[str]
) -> None:
    assert steady.complaints(rows(*idle), rows(*busy)) == found


def test_the_table_shows_both_verdicts_and_intervals(steady: ModuleType) -> None:
    head, first, second = steady.table(
        rows("reproduced", "direction only"), rows("reproduced", "undecided")
    )
    assert head.split() == [
        *("claim", "idle", "busy", "ours", "idle", "ours", "busy", "set", "aside", "idle", "busy"),
    ]
    assert first.split()[:3] == ["claim_0", "reproduced", "reproduced"]
    assert "1.5 (1.25 to 2)" in first
    assert second.split()[-3:] == ["-", "1", "1"]


def test_the_busy_processes_end_with_the_block_and_with_their_parent(steady: ModuleType) -> None:
    with steady.restless(2) as processes:
        assert all(process.poll() is None for process in processes)
        orphan = processes[0]
        orphan.stdin.close()
        assert orphan.wait(timeout=60) == 0
        orphan.stdin = None
    assert all(process.poll() is not None for process in processes)


def test_an_experiment_that_trains_nothing_of_the_claims(
    steady: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert steady.main(["--experiment", "virtual_channels"]) == 2
    assert (
        "error: experiment: got virtual_channels, which trains nothing that a claim is about"
        in capsys.readouterr().err
    )
