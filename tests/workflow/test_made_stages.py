"""Stages made by hand. Seeds of a packet sweep in several jobs: the same bytes as from
one. Underlay: a row for each plan, rate and degree. Report: which files it reads, other
experiments' among them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from railx.io import read_json, read_rows, write_json, write_table
from railx.network.packets import shard_of
from railx.network.packets.seed_sweeps import read_sweeps
from railx.settings import SettingsError, to_dict
from tests.builders import ROOT, checked, topology_settings
from workflow.config import compose_experiment
from workflow.experiment import checked_experiment
from workflow.stages import STAGES, files_of, inputs_of

SWEEP = "sweeps.railx_hyperx_min"


def sweep_experiment(shards: int) -> dict[str, Any]:
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
        plain = sweep_experiment(shards)
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
    plain = sweep_experiment(2)
    shards = ("railx_hyperx_min-1", "railx_hyperx_min-2")
    assert STAGES["seeds"].items(plain) == shards
    files = files_of(plain, "seeds.rows", shards)
    inputs = inputs_of(STAGES["packets"], plain, "railx_hyperx_min")
    assert inputs["rows"] == list(files.values())
    # Nothing that depends on a machine.
    assert set(inputs) == {"topology", "traffic", "rows", "summaries"}
    assert STAGES["seeds"].items(sweep_experiment(1)) == ()
    assert "rows" not in inputs_of(STAGES["packets"], sweep_experiment(1), "railx_hyperx_min")


def test_shards_hold_every_seed_once_in_order() -> None:
    for seeds in range(1, 9):
        for shards in range(1, seeds + 1):
            parts = [shard_of(range(seeds), place, shards) for place in range(shards)]
            assert [one for part in parts for one in part] == list(range(seeds))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_more_shards_than_seeds_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"shards: got 4; allowed: 1 to 3, the seeds"):
        checked("sweep", "railx_hyperx_min", shards=4)


def small() -> dict[str, Any]:
    """Two plans for four devices, on servers of two and as the cluster lists."""
    chosen = ["plans=[static_stdlib,flexsp_stdlib]", "runs=[static_stdlib]", "figures=[]"]
    plain: dict[str, Any] = to_dict(
        compose_experiment(["experiment=quick", "corpora=[stdlib]", *chosen])
    )
    servers = topology_settings("rail_only", chips_per_server=2, servers=2, switch_radix=2)
    listed = {"label": "Listed", "topology": None, "routing": "min", "groups": {}}
    listed |= {"switch_ms": 0.0, "priced": None}
    priced = to_dict(topology_settings("rail_only_1280"))
    rails = listed | {"label": "Rails", "topology": to_dict(servers), "priced": priced}
    plain["underlay"] |= {
        "plans": list(plain["plans"]),
        "networks": {"rails": rails, "listed": listed},
        "outside_gb_s": [0.05, 500.0],
        "inside_gb_s": 500.0,
        "reference": "rails",
        "ranks": 4,
    }
    return plain


def test_plans_are_priced_and_made_anew_on_every_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = small()
    (tmp_path / "resources").symlink_to(ROOT / "resources")
    monkeypatch.chdir(tmp_path)
    for name in ("corpus", "plan", "underlay"):
        stage = STAGES[name]
        for item in stage.items(experiment):
            stage.make(
                stage.settings(experiment, item),
                item=item,
                inputs=inputs_of(stage, experiment, item),
                outputs={
                    key: files_of(experiment, f"{name}.{key}", [item])[item]
                    for key in stage.outputs
                },
            )
    mix = files_of(experiment, "underlay.mix")
    rails, listed = (read_rows(mix[name]) for name in ("rails", "listed"))
    made = {"cluster", "network"}
    assert {(row["basis"], row["outside_gb_s"], row["made_for"]) for row in rails} == {
        *(("equal_rate", rate, of) for rate in (0.05, 500.0) for of in made),
        *(("equal_cost", 0.05, of) for of in made),
    }
    assert {(row["basis"], row["made_for"]) for row in listed} == {("own", "cluster")}
    assert {row["plan"] for row in rails} == set(experiment["underlay"]["plans"])

    def total(of: str, rate: float) -> float:
        found = {
            row["iteration"]: row["iteration_ms"]
            for row in rails
            if (row["plan"], row["made_for"], row["outside_gb_s"], row["basis"])
            == ("static_stdlib", of, rate, "equal_rate")
        }
        return sum(found.values())

    assert total("cluster", 500.0) < total("cluster", 0.05), "the ports bind"
    rates = read_rows(files_of(experiment, "underlay.bandwidths")["rails"])
    first = {row["group_size"]: row["gb_s"] for row in rates if row["outside_gb_s"] == 0.05}
    assert first == pytest.approx({2: 1000.0, 4: 0.1})
    assert read_rows(files_of(experiment, "underlay.bandwidths")["listed"]) == []


def test_plans_that_are_not_there_are_named() -> None:
    with pytest.raises(SettingsError, match=r"^underlay\.plans: got 'x'; allowed: static_7b"):
        compose_experiment(["experiment=quick", "underlay.plans=[x]"])


@pytest.fixture(scope="module")
def quick() -> dict[str, Any]:
    return checked_experiment(["experiment=quick"])


def test_verdicts_of_other_experiments_are_read_where_they_are_there(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "resources" / "published").mkdir(parents=True)
    (tmp_path / "railx" / "report" / "templates").mkdir(parents=True)
    assert inputs_of(STAGES["report"], quick)["others"] == []
    for name in ("quick", "paper", "recorded/gpus/large", "broken"):
        (tmp_path / "results" / name).mkdir(parents=True)
    for name in ("quick", "paper", "recorded/gpus/large"):
        claims = tmp_path / "results" / name / "evidence" / "claims.parquet"
        claims.parent.mkdir()
        claims.touch()
    (tmp_path / "results" / "paper" / "provenance.json").touch()
    read = inputs_of(STAGES["report"], quick)
    assert read["others"] == [
        Path("results/paper/evidence/claims.parquet"),
        Path("results/recorded/gpus/large/evidence/claims.parquet"),
    ]
    assert read["others_provenance"] == [Path("results/paper/provenance.json")]
