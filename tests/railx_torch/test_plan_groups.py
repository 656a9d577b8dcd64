"""The groups of a plan in torch: the sampler gives its micro-batches exactly, and the
example of plain torch trains on them as one process does.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from railx.errors import UserError
from railx_torch.batches import PlanBatchSampler
from tests.builders import ROOT
from tests.commands import environment, python
from workflow import cli

RANKS = 4
EXAMPLE = ROOT / "examples" / "flexsp_fsdp2.py"
#: Groups of 4, 2 and 1 ranks; a rank waits in three of the four micro-batches.
BY_HAND = [
    [
        [((0, 1, 2, 3), {0: 37, 1: 5})],
        [((0, 1), {2: 21}), ((2,), {3: 9, 4: 2})],
    ],
    [
        [((2, 3), {5: 30, 6: 3}), ((1,), {7: 12})],
        [((0,), {8: 1}), ((3,), {9: 14})],
    ],
]


def by_hand() -> dict[str, Any]:
    batches = [
        {
            "iteration": iteration,
            "tokens": sum(sum(cut.values()) for groups in micro_batches for _, cut in groups),
            "micro_batches": [
                {
                    "groups": [
                        {
                            "ranks": list(ranks),
                            "degree": len(ranks),
                            "sequences": list(cut),
                            "lengths": list(cut.values()),
                        }
                        for ranks, cut in groups
                    ]
                }
                for groups in micro_batches
            ],
        }
        for iteration, micro_batches in enumerate(BY_HAND)
    ]
    return {"schema": "railx.groups/1", "planner": "hand", "ranks": RANKS, "batches": batches}


def planned(folder: Path) -> Path:
    """Groups of the planner for a user's own lengths, as its command writes them."""
    lengths = [1300, 700, 610, 300, *(40 + 37 * number % 300 for number in range(36))]
    (folder / "lengths.json").write_text(json.dumps(lengths))
    words = ("cluster=cpu_4", "model=tiny", "cost_model=analytic", "corpus=file")
    given = (*words, f"corpus.path={folder / 'lengths.json'}", "planner=flexsp")
    out = folder / "groups.json"
    assert cli.main(["plan", *given, "--format", "groups", "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The planner's iterations, then those by hand: one launch trains both."""
    path = planned(tmp_path_factory.mktemp("groups"))
    plan, then = json.loads(path.read_text()), by_hand()["batches"]
    assert plan["ranks"] == RANKS
    for batches in (plan["batches"], then):
        degrees = {
            group["degree"]
            for batch in batches
            for micro_batch in batch["micro_batches"]
            for group in micro_batch["groups"]
        }
        assert degrees == {1, 2, 4}, "else there is less to hold"
    for batch in then:
        batch["iteration"] += len(plan["batches"])
    plan["batches"] += then
    path.write_text(json.dumps(plan))
    return path


def torchrun(ranks: int, *words: str | Path) -> str:
    done = python(
        *("-m", "torch.distributed.run", "--nproc-per-node", str(ranks)),
        *("--master-port", "0", "--standalone", *words),
        env=environment(OMP_NUM_THREADS="1"),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.system
def test_loaders_of_four_ranks_give_the_micro_batches_of_the_plan(
    groups: Path, tmp_path: Path
) -> None:
    torchrun(RANKS, Path(__file__).with_name("sampler_program.py"), groups, tmp_path)
    loaded = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]
    plan = json.loads(groups.read_text())
    micro_batches = [part["groups"] for batch in plan["batches"] for part in batch["micro_batches"]]
    for rank, of_rank in enumerate(loaded):
        expected: list[list[int]] = [[] for _ in micro_batches]
        for index, of_micro_batch in enumerate(micro_batches):
            for group in of_micro_batch:
                if rank in group["ranks"]:
                    expected[index] += [10 * sequence for sequence in group["sequences"]]
        assert of_rank == {"0": expected, "2": expected}


@pytest.mark.system
def test_the_example_trains_the_plan_as_one_process(groups: Path) -> None:
    alone, together = (json.loads(torchrun(ranks, EXAMPLE, groups)) for ranks in (1, RANKS))
    assert (alone["ranks"], together["ranks"]) == (1, RANKS)
    assert together["losses"] == pytest.approx(alone["losses"], rel=1e-12)
    assert len(set(alone["losses"])) == len(json.loads(groups.read_text())["batches"])


def test_the_example_imports_nothing_of_this_project() -> None:
    imported = set(re.findall(r"^(?:from|import) (\w+)", EXAMPLE.read_text(), re.MULTILINE))
    assert imported <= {"__future__", "json", "pathlib", "sys", "torch", "typing"}


def test_shares_say_whose_tokens_they_are_and_when_a_step_ends() -> None:
    sampler = PlanBatchSampler(by_hand(), 3, RANKS)
    assert [list(batch) for batch in sampler] == [[0, 1], [], [5, 6], [9]]
    assert len(sampler) == 4
    assert [(share.iteration, share.last) for share in sampler.shares] == [
        *((0, False), (0, True), (1, False), (1, True)),
    ]
    assert [share.ranks for share in sampler.shares] == [(0, 1, 2, 3), (), (2, 3), (3,)]
    assert [share.lengths for share in sampler.shares] == [(37, 5), (), (30, 3), (14,)]


def test_other_ranks_and_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ranks: got 8; allowed: 4, those of the plan"):
        PlanBatchSampler(by_hand(), 0, 8)
    with pytest.raises(UserError, match="rank: got 4; allowed: 0 to 3"):
        PlanBatchSampler(by_hand(), 4, RANKS)
    with pytest.raises(UserError, match=r"groups: got no groups; allowed: railx\.groups/1"):
        PlanBatchSampler({"schema": "railx.plan/3"}, 0, RANKS)
    for content, name in ((None, "nowhere.json"), ("{", "broken.json")):
        if content is not None:
            (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=f"{name}: .*; allowed: a file of groups"):
            PlanBatchSampler(tmp_path / name, 0, RANKS)
