"""Seeds of a packet sweep in several jobs: the same bytes as from one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from railx.io import read_json, write_json, write_table
from railx.network.packets import shard_of
from railx.network.packets.seed_sweeps import read_sweeps
from railx.settings import SettingsError, to_dict
from tests.builders import checked
from workflow.config import compose_experiment
from workflow.stages import STAGES, files_of, inputs_of

SWEEP = "sweeps.railx_hyperx_min"


def experiment(shards: int) -> dict[str, Any]:
    plain: dict[str, Any] = to_dict(
        compose_experiment(
            [
                "experiment=quick",
                "topologies.railx_hyperx.n=1",
                "transitions=[]",
                f"{SWEEP}.loads=[0.5,4.0]",
                f"{SWEEP}.precision=0.5",
                f"{SWEEP}.repeats=4",
                f"{SWEEP}.shards={shards}",
                # in so short a window at so low a load nothing may arrive
                *(f"{SWEEP}.network.{key}" for key in ("warmup_cycles=20", "measured_cycles=60")),
            ]
        )
    )
    return plain


def make(plain: dict[str, Any], name: str, item: str) -> dict[str, bytes]:
    """Make an item of a stage where it belongs; the bytes of its files."""
    stage = STAGES[name]
    outputs = {key: files_of(plain, f"{name}.{key}", [item])[item] for key in stage.outputs}
    stage.make(
        stage.settings(plain, item),
        item=item,
        inputs=inputs_of(stage, plain, item),
        outputs=outputs,
    )
    return {key: path.read_bytes() for key, path in outputs.items()}


def test_any_number_of_shards_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = {}
    for shards in (1, 2, 4):
        plain = experiment(shards)
        make(plain, "topology", "railx_hyperx")
        for shard in STAGES["seeds"].items(plain):
            make(plain, "seeds", shard)
        made[shards] = make(plain, "packets", "railx_hyperx_min")
    for key in ("points", "summary"):
        assert made[1][key] == made[2][key] == made[4][key], key
    # What a machine took stands where it was taken.
    taken = [read_json(path)["runs"] for path in sorted(Path().rglob("seeds/*-*/speed.json"))]
    assert [len(runs) > 0 for runs in taken] == [True] * 4
    assert json.loads(made[4]["speed"])["runs"] == []


def test_seeds_that_are_alike_keep_their_rows_apart(tmp_path: Path) -> None:
    write_table(tmp_path / "rows.parquet", [{"seed": 1, "load": load} for load in (0.5, 1.0, 2.0)])
    write_json(tmp_path / "summaries.json", [{"seed": 1, "runs": runs} for runs in (2, 1)])
    read = read_sweeps(tmp_path / "rows.parquet", tmp_path / "summaries.json")
    assert [[row["load"] for row in one.rows] for one in read] == [[0.5, 1.0], [2.0]]


def test_each_shard_is_a_job_and_a_sweep_in_one_piece_has_none() -> None:
    plain = experiment(2)
    shards = ("railx_hyperx_min-1", "railx_hyperx_min-2")
    assert STAGES["seeds"].items(plain) == shards
    files = files_of(plain, "seeds.rows", shards)
    inputs = inputs_of(STAGES["packets"], plain, "railx_hyperx_min")
    assert inputs["rows"] == list(files.values())
    # Nothing that depends on a machine.
    assert set(inputs) == {"topology", "rows", "summaries"}
    assert STAGES["seeds"].items(experiment(1)) == ()
    assert "rows" not in inputs_of(STAGES["packets"], experiment(1), "railx_hyperx_min")


def test_shards_hold_every_seed_once_in_order() -> None:
    for seeds in range(1, 9):
        for shards in range(1, seeds + 1):
            parts = [shard_of(range(seeds), place, shards) for place in range(shards)]
            assert [one for part in parts for one in part] == list(range(seeds))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_more_shards_than_seeds_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"shards: got 4; allowed: 1 to 3, the seeds"):
        checked("sweep", "railx_hyperx_min", shards=4)
