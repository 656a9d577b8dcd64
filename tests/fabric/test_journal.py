"""The journal: replayed, it gives what the controller did, whatever happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from railx.fabric.circuits import Circuit, Configuration, Layout, Port
from railx.fabric.core import ControllerCore
from railx.fabric.decisions.state import Action, GrantAction, SwitchAction
from railx.fabric.holdings import Presentation, Report
from railx.fabric.journal import (
    EVENTS,
    ROTATED,
    Journal,
    JournalError,
    journaled,
    replay_journal,
)
from tests.builders import ROOT
from tests.commands import environment

RANKS = 6
#: Names of channels that could be taken for something else.
CHANNELS = ("g", "@", "set", "Ärger\n\u2028", '"')


class Run:
    """Random events into a core, sensible ones and nonsense; what it did is kept."""

    def __init__(self, core: ControllerCore, seed: int) -> None:
        self.core = core
        self.draw = Random(seed)
        self.now = 0
        self.actions: list[list[Action]] = []
        self.commands: list[int] = []
        self.holds: list[GrantAction] = []
        self.numbers = dict.fromkeys(CHANNELS, 0)
        self.incarnation = 0

    def configuration(self) -> Configuration:
        size = self.draw.choice((2, 2, 2, 3, RANKS))
        members = tuple(sorted(self.draw.sample(range(RANKS), size)))
        return Configuration("pair" if size == 2 and self.draw.random() < 0.5 else "ring", members)

    def key(self) -> tuple[str, int]:
        channel = self.draw.choice(CHANNELS)
        self.numbers[channel] += self.draw.random() < 0.3
        return channel, self.numbers[channel]

    def ports(self) -> list[Port]:
        ports = [Port(g, side) for g in range(RANKS) for side in ("left", "right")]  # type: ignore[arg-type]
        return self.draw.sample(ports, self.draw.randint(1, 3))

    def report(self) -> tuple[Configuration, Report]:
        grant = self.draw.choice(self.holds)
        assert grant.hold is not None
        key = self.key()
        return grant.configuration, Report(grant.hold, {key[0]: key[1]}, frozenset({key}), 2)

    def step(self) -> None:
        draw, core, rank = self.draw, self.core, self.draw.randrange(RANKS)
        self.now += draw.randint(0, 1000)
        event = draw.choice((*EVENTS, "ask", "ask", "ask", "switched", "together", "together"))
        result: Any = []
        if event == "together":
            configuration, key = self.configuration(), self.key()
            for member in configuration.members:
                arguments = (member, draw.randrange(9), key, configuration, self.now)
                self.keep(core.ask(*arguments, can_hold=draw.random() < 0.7))
            return
        if event == "register":
            self.incarnation += 1
            result = core.register(rank, self.incarnation, returning=draw.random() < 0.1)
        elif event == "present":
            begun = {draw.choice(CHANNELS): (self.configuration(), draw.randrange(3))}
            result = core.present(rank, Presentation(begun, frozenset({self.key()}), 1), self.now)
        elif event == "end_recovery":
            result = core.end_recovery(self.now) if draw.random() < 0.2 else []
        elif event == "leave":
            result = core.leave(rank, "has left", self.now) if draw.random() < 0.2 else []
        elif event == "ask":
            result = core.ask(rank, 1, self.key(), self.configuration(), self.now)
        elif event == "recall":
            result = core.recall(self.configuration(), self.now)
        elif event in ("release", "abandon"):
            result = getattr(core, event)(rank, self.key(), self.now)
        elif event == "recalled" and self.holds:
            result = core.recalled(rank, *self.report(), self.now)
        elif event == "hint":
            result = core.hint(rank, self.configuration(), self.now)
        elif event == "switched" and self.commands:
            result = core.switched(self.commands.pop(0), self.now)
        elif event == "switch_failed" and self.commands:
            result = core.switch_failed(self.commands.pop(), "stuck", self.now)
        elif event == "ports_lost":
            # The driver's frozenset, and what can be gone through once.
            ports = self.ports()
            given = frozenset(ports) if draw.random() < 0.5 else iter(ports)
            result = core.ports_lost(given, "dust", self.now)
        elif event == "ports_back":
            result = core.ports_back(frozenset(self.ports()), self.now)
        self.keep(result)

    def keep(self, result: list[Action] | None) -> None:
        actions = result if isinstance(result, list) else []
        self.actions.append(actions)
        self.commands += [item.command for item in actions if isinstance(item, SwitchAction)]
        self.holds += [
            item for item in actions if isinstance(item, GrantAction) and item.hold is not None
        ]


@settings(max_examples=40)
@example(seed=14012, steps=66, restarted=True)  # presented as under way, begun by nobody
@given(seed=st.integers(0, 2**32), steps=st.integers(0, 150), restarted=st.booleans())
def test_a_replayed_journal_gives_the_same_actions(
    tmp_path_factory: pytest.TempPathFactory, seed: int, steps: int, restarted: bool
) -> None:
    path = tmp_path_factory.mktemp("journal") / "events.jsonl"
    active = (Circuit(0, 1), Circuit(1, 0)) if restarted else ()
    core = ControllerCore(Layout(1), RANKS, active=active, recovering=restarted)
    journal = Journal(path)
    run = Run(journaled(core, journal), seed)
    for _ in range(steps):
        run.step()
    journal.close()
    replayed = replay_journal(path)
    assert replayed.different == []
    assert [item for item in replayed.actions if item] == [item for item in run.actions if item]
    assert replayed.core.statistics() == core.statistics()
    assert replayed.core.snapshot() == core.snapshot()
    assert (replayed.torn, replayed.ended) == (False, None)
    assert replayed.events.total() == journal.events


def test_a_journal_is_replayed_alike_in_another_process(tmp_path: Path) -> None:
    """Nothing hangs on the order of sets, which differs between processes."""
    for seed in range(6):
        journal = Journal(tmp_path / str(seed))
        run = Run(journaled(ControllerCore(Layout(1), RANKS), journal), seed)
        for _ in range(250):
            run.step()
        journal.close()
    code = (
        "import sys; from railx.fabric.journal import replay_journal\n"
        "print([replay_journal(path).different for path in sys.argv[1:]])"
    )
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code, *paths],
            env=environment() | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f"{[[] for _ in paths]}\n"


def short_run(path: Path, limit_bytes: int = 1 << 20, steps: int = 30) -> Run:
    journal = Journal(path, limit_bytes)
    run = Run(journaled(ControllerCore(Layout(2), RANKS), journal), 1)
    for _ in range(steps):
        run.step()
    journal.close()
    return run


def test_every_event_of_the_core_is_known_to_the_journal() -> None:
    quiet = {"statistics", "snapshot", "gone"}
    methods = {
        name
        for name in dir(ControllerCore)
        if not name.startswith("_") and callable(getattr(ControllerCore, name))
    }
    assert methods - quiet == set(EVENTS)


def test_a_changed_answer_is_found_and_named(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    short_run(path)
    lines = path.read_text().splitlines()
    changed = next(n for n, line in enumerate(lines) if json.loads(line).get("answer", [0])[0])
    line = json.loads(lines[changed])
    line["answer"][1] ^= 1
    path.write_text("\n".join([*lines[:changed], json.dumps(line), *lines[changed + 1 :]]) + "\n")
    assert replay_journal(path).different == [line["n"]]


def test_half_a_line_at_the_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    short_run(path)
    whole = path.read_bytes()
    last = len(whole.splitlines()[-1]) + 1
    for cut in range(1, last):
        path.write_bytes(whole[:-cut])
        replayed = replay_journal(path)
        assert replayed.torn
        assert replayed.different == []
        assert replayed.events.total() == len(whole.splitlines()) - 2


def test_the_journal_ends_at_its_limit_and_the_controller_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.jsonl"
    run = short_run(path, limit_bytes=2000, steps=200)
    assert 1500 < path.stat().st_size <= 2000 + 60
    assert capfd.readouterr().err == f"journal {path} has ended: it has reached 2000 bytes\n"
    replayed = replay_journal(path)
    assert replayed.ended == "it has reached 2000 bytes"
    assert replayed.different == []
    assert sum(map(len, run.actions)) > sum(map(len, replayed.actions)) > 0


def test_a_full_disk_ends_the_journal_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    journal = Journal(tmp_path / "events.jsonl")
    os.dup2(os.open(full, os.O_WRONLY), journal._file)
    core = journaled(ControllerCore(Layout(1), 2), journal)
    assert core.register(0, 1) is None
    assert journal.stopped == "No space left on device"
    assert capfd.readouterr().err.count("\n") == 1


def test_journals_of_earlier_starts_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "events.jsonl"
    for steps in range(ROTATED + 3):
        short_run(path, steps=steps)
    names = {f"events.jsonl.{number}" for number in range(1, ROTATED + 1)} | {"events.jsonl"}
    assert {item.name for item in path.parent.iterdir()} == names
    counts = [
        replay_journal(item).events.total()
        for item in [path, *(path.with_name(f"{path.name}.{n}") for n in range(1, ROTATED + 1))]
    ]
    assert counts == sorted(counts, reverse=True)
    assert (path.stat().st_mode & 0o777) == 0o600


def test_an_event_that_breaks_the_core_is_in_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    journal = Journal(path)
    core = journaled(ControllerCore(Layout(1), 2), journal)
    with pytest.raises(AttributeError):
        core.ask(0, 1, None, None, 0)  # type: ignore[arg-type]
    journal.close()
    assert "raised" in json.loads(path.read_text().splitlines()[-1])
    assert replay_journal(path).different == []


def test_a_killed_process_leaves_a_journal_that_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from tests.fabric.test_journal import *\n"
        "run = Run(journaled(ControllerCore(Layout(1), RANKS), Journal(Path(sys.argv[1]))), 3)\n"
        "while True:\n"
        "    run.step()\n"
        "    if len(run.actions) in range(500, 510): print('many', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(ROOT)],
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"many\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    replayed = replay_journal(path)
    assert replayed.different == []
    assert replayed.events.total() >= 300


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "no journal of a controller"),
        ("{}\n", "'journal' is missing"),
        ("[1]\n", "line 1: no line of a journal"),
        ('{"journal":9}\n', "version 9; allowed: 2"),
        ("HEADER\nnonsense\n", "line 2: no line of a journal"),
        ('HEADER\n{"n":1,"event":"release","args":[0,1]}\n', "line 2: no event (event 1, 0 was"),
        ('HEADER\n{"n":0,"event":"__init__","args":[]}\n', "line 2: no event (event '__init__')"),
        ('HEADER\n{"n":0,"event":"hint","args":[0,{"@":"os"},1]}\n', "line 2: no event ('os' is"),
    ],
)
def test_what_is_no_journal_is_one_line(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "events.jsonl"
    short_run(path, steps=0)
    header = path.read_text().splitlines()[0]
    path.write_text(content.replace("HEADER", header))
    with pytest.raises(JournalError) as error:
        replay_journal(path)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_a_journal_has_one_controller_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    first = Journal(path)
    with pytest.raises(JournalError, match=r"a controller is writing the journal .*; allowed: ano"):
        Journal(path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    first.close()
    Journal(path).close()
    assert {each.name for each in tmp_path.iterdir()} == {path.name, f"{path.name}.1"}


def test_a_journal_that_cannot_be_written_or_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot write the journal"):
        Journal(tmp_path / "file" / "events.jsonl")
    with pytest.raises(JournalError, match="cannot read the journal"):
        replay_journal(tmp_path / "nowhere")
