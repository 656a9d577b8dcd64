"""Any schedule trains the model that one process trains: pipelines, orders and
checkpointing that hypothesis draws, on real ranks, in double precision.
"""

from __future__ import annotations

import json
import pickle
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.planning.format.files import validate_plan
from railx.planning.format.parts import Chunk, Pipeline
from railx.planning.format.schedule import ordered, shape_of, stage_layers
from tests.commands import ROOT, environment
from tests.plans import chunk, pipeline_plan
from tests.training import drawn_program
from tests.training.drawn_program import MODEL, Drawn

pytestmark = pytest.mark.system

#: Stages and ranks of each, by the ranks of the world; what is left are replicas.
SHAPES = {2: [(2, 1)], 3: [(3, 1)], 4: [(4, 1), (2, 2), (2, 1)]}


#: A world that has not answered by then hangs.
WAIT_S = 60


class Worlds:
    """The program with its worlds, started again after a failure."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, drawn: Drawn) -> list[dict[str, Any]]:
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, drawn_program.__file__],
                cwd=ROOT,
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pickle.dump(drawn, self.process.stdin)
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], WAIT_S)
        line = self.process.stdout.readline() if ready else b""
        answers: list[dict[str, Any]] = json.loads(line) if line else [{"error": "no answer"}]
        if any("error" in answer for answer in answers):
            self.end()
        return answers

    def end(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    found = Worlds()
    yield found
    found.end()


@st.composite
def chunks(draw: st.DrawFn, first: int, stages: int) -> tuple[Chunk, ...]:
    """Runs of slices, the last of a run with whole sequences beside it, and chunks of
    whole sequences; sequences from ``first`` on.
    """
    layers = [len(held) for held in stage_layers(MODEL.layers, stages)]
    made: list[Chunk] = []
    tokens, few = st.integers(1, 6), st.lists(st.integers(1, 5), max_size=2)
    for slices in draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)):
        # A batch without a label anywhere has no gradients.
        cuts = [0]
        for size in draw(st.lists(tokens, min_size=slices, max_size=slices)):
            cuts.append(cuts[-1] + size + (len(cuts) == 1))
        parts = [[(first, cuts[n], cuts[n + 1], cuts[-1])] for n in range(slices)]
        first += 1
        for length in draw(few):
            parts[-1].insert(draw(st.integers(0, 1)), (first, 0, length, length))
            first += 1
        for part in parts:
            recomputed = draw(st.sampled_from([(), *_recomputed(layers)]))
            made.append(chunk(*part, checkpoint_layers=recomputed))
    return tuple(made)


def _recomputed(layers: list[int]) -> list[tuple[int, ...]]:
    """All layers of a stage, one where there are several, another on each stage."""
    return [
        tuple(layers),
        tuple(n // 2 for n in layers),
        tuple(n * (p % 2) for p, n in enumerate(layers)),
    ]


def drawn_order(pipeline: Pipeline, random: Random) -> tuple[tuple[str, ...], ...]:
    """One of all orders that can be run: any pass that has what it needs comes next."""
    ends = [end for end, run in _ends(pipeline)]
    starts = [end - run for end, run in _ends(pipeline)]
    last = pipeline.stages - 1
    done: set[tuple[str, int, int]] = set()
    found: list[list[str]] = [[] for _ in range(pipeline.stages)]
    wanted = 2 * len(pipeline.chunks) * pipeline.stages

    def ready(kind: str, number: int, stage: int) -> bool:
        if kind == "F":
            earlier = number == starts[number] or ("F", number - 1, stage) in done
            return earlier and (stage == 0 or ("F", number, stage - 1) in done)
        later = number == ends[number] - 1 or ("B", number + 1, stage) in done
        source = ("F", number, stage) if stage == last else ("B", number, stage + 1)
        return later and source in done and ("F", number, stage) in done

    while len(done) < wanted:
        possible = [
            one
            for kind in "FB"
            for number in range(len(pipeline.chunks))
            for stage in range(pipeline.stages)
            if (one := (kind, number, stage)) not in done and ready(*one)
        ]
        kind, number, stage = random.choice(possible)
        done.add((kind, number, stage))
        found[stage].append(f"{kind}{number}")
    return tuple(map(tuple, found))


def _ends(pipeline: Pipeline) -> list[tuple[int, int]]:
    """Of each chunk, where its run of chunks ends and how long that is."""
    found: list[tuple[int, int]] = []
    for run in shape_of(pipeline).runs:
        found += [(len(found) + run, run)] * run
    return found


@st.composite
def drawn_plans(draw: st.DrawFn) -> Drawn:
    ranks = draw(st.sampled_from(sorted(SHAPES)))
    stages, degree = draw(st.sampled_from(SHAPES[ranks]))
    pipelines: list[Pipeline] = []
    for replica in range(ranks // (stages * degree)):
        # A replica may have nothing to do.
        for _ in range(draw(st.integers(0 if pipelines else 1, 2))):
            own = draw(chunks(20 * len(pipelines), stages))
            schedule = draw(st.sampled_from(["1f1b", "gpipe", "own"]))
            made = Pipeline(stages, replica, own, degree)
            if schedule == "own":
                made = replace(
                    made, order=drawn_order(made, draw(st.randoms(use_true_random=False)))
                )
            else:
                made = replace(made, schedule=schedule)
            pipelines.append(made)
    return Drawn(pipeline_plan(ranks, pipelines), draw(st.sampled_from(["none", "zero3"])))


@settings(max_examples=15, deadline=None)
@given(drawn_plans())
def test_a_drawn_schedule_has_the_gradients_of_one_process(worlds: Worlds, drawn: Drawn) -> None:
    validate_plan(drawn.plan)
    answers = worlds.run(drawn)
    assert [answer["error"] for answer in answers if "error" in answer] == []
    for answer in answers:
        assert answer["loss"] < 1e-13
        assert answer["norm"] < 1e-12
        assert answer["gradient"] < 1e-12
        assert answer["ran"]
        assert answer["left"] == 0


def test_stages_may_send_in_another_order_than_is_needed(worlds: Worlds) -> None:
    """The second stage needs last what comes first, forward and backward."""
    three = tuple(chunk((number, 0, 3 + number, 3 + number)) for number in range(3))
    made = Pipeline(2, 0, three)
    order = ("F0", "F1", "F2", "B0", "B1", "B2"), ("F2", "F1", "F0", "B2", "B1", "B0")
    plan = pipeline_plan(2, [replace(made, order=order)])
    validate_plan(plan)
    assert ordered(plan.pipeline_batches()[0].pipelines[0]) == order
    for answer in worlds.run(Drawn(plan, "none")):
        assert answer["gradient"] < 1e-12
        assert answer["ran"]
