"""What the settings of different stages ask of one another is refused before any
job.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from railx.performance.decoder import parameter_count
from railx.planning.planners import check_plan
from railx.settings import SettingsError, to_dict
from tests.builders import ROOT, checked
from tests.commands import python
from workflow.config import compose_experiment, compose_stage
from workflow.resources import all_claims

MISFITS = {
    "topologies.railx_hyperx.m=4": (
        "transitions.hyperx_to_torus: topologies.railx_hyperx and topologies.railx_torus: m: 4"
        " before and 2 after; allowed: two settings of the same hardware (or leave it out:"
        " ~transitions.hyperx_to_torus)"
    ),
    "topologies.railx_torus.x_scale=4": "transitions.hyperx_to_torus: topologies.railx_hyperx and",
    "transitions.hyperx_to_torus.after=fat_tree": (
        "transitions.hyperx_to_torus: topologies.railx_hyperx and topologies.fat_tree: fat_tree has"
        " no optical switches; allowed: topologies that have some"
    ),
    "sweeps.railx_hyperx_min.network.routing=valiant": (
        "sweeps.railx_hyperx_min.network.routing: got 'valiant'; allowed on railx_hyperx: min,"
    ),
    "mapping.topologies.fat_tree_1152_nodes.routings=[valiant]": (
        "mapping.topologies.fat_tree_1152_nodes.routings: got 'valiant'; allowed on"
        " fat_tree_1152_nodes: min,"
    ),
    "traffic@sweeps.railx_hyperx_min.traffic=hot_spot"
    " sweeps.railx_hyperx_min.traffic.hot_chips=101": (
        "sweeps.railx_hyperx_min.traffic.hot_chips: on railx_hyperx: got 101; allowed: 1 to 100"
    ),
    "agreement.traffics.hot_spot.hot_chips=500": (
        "agreement.traffics.hot_spot.hot_chips: on railx_hyperx: got 500; allowed: 1 to 100"
    ),
    "agreement.traffics.tornado.permutation=transpose topologies.torus_2d.x_scale=7": (
        "agreement.traffics.tornado.permutation: on torus_2d: transpose needs a square grid"
    ),
    "agreement.topologies=[railx_hyperx_full]": (
        "agreement.topologies: got 'railx_hyperx_full', which is too large; allowed: topologies of"
        " at most 4,096 chips"
    ),
    "model@plans.flexsp_stdlib.model=gpt_7b plans.flexsp_stdlib.model.max_positions=0": (
        "plans.flexsp_stdlib.model.max_positions: got 0; allowed for training with learned"
    ),
    "plans.flexsp_stdlib.model.vocabulary=256": (
        "plans.flexsp_stdlib.model.vocabulary: got 256; allowed: at least 257, the token ids of"
        " corpora.stdlib (run flexsp_stdlib)"
    ),
    "planner@plans.static_stdlib.planner=megatron": (
        "plans.static_stdlib.planner: got a plan of megatron, which is simulated only: its tensor"
    ),
    "plans.pipeline_stdlib.planner.schedule=zero_bubble": (
        "plans.pipeline_stdlib.planner.schedule: got zero_bubble, which is simulated only; allowed:"
        " 1f1b, searched, gpipe, best_trained (run pipeline_stdlib)"
    ),
    "runs.static_stdlib.training.allow_sharding_mismatch=false": (
        "runs.static_stdlib.training.sharding: got none, but the plan was priced with ZeRO stage 3;"
        " allowed: zero3, any with training.allow_sharding_mismatch=true"
    ),
    "corpora.stdlib.tokenizer=byte_pair corpora.stdlib.vocabulary=4096": (
        "plans.static_stdlib.model.vocabulary: got 257; allowed: at least 4096, the token ids of"
    ),
    "figures.channel_loads.only=[ring]": (
        "figures.channel_loads.only: got 'ring'; allowed: railx_hyperx, railx_hyperx_m4n2"
    ),
    "figures.cost.only=[railx_hyperx]": "figures.cost.only: got 'railx_hyperx'; allowed: railx_hy",
    "figures.cost.reference=ring": "figures.cost.reference: got 'ring'; allowed: ",
    "replay.compute=profile replay.profile=tiny": (
        "replay.profile: got 'tiny'; allowed: none here, the profiles of tiny (run static_stdlib)"
    ),
    "figures=[pipeline_schedule] ~plans.pipeline_stdlib ~runs.pipeline_stdlib": (
        "figures.pipeline_schedule: nothing to show, as the experiment has no plan of its kind;"
        " allowed: at least one (or leave the figure out: ~figures.pipeline_schedule)"
    ),
    "plans.pipeline_stdlib.cluster.devices=8": "plans.pipeline_stdlib.planner: got stages",
    "plans.flexsp_stdlib.cluster.devices=16": (
        "plans.flexsp_stdlib.cluster.all_to_all_gb_s: got bandwidths of degrees up to "
    ),
    "economics.price_set=nope": "economics.price_set: got 'nope'; allowed: ",
    "mapping.price_set=nope": "mapping.price_set: got 'nope'; allowed: ",
    "underlay.price_set=nope": "underlay.price_set: got 'nope'; allowed: ",
    "corpora.wikipedia.quantiles=nowhere.csv": (
        "corpora.wikipedia.quantiles: got 'nowhere.csv', which is not there; allowed: a CSV table"
    ),
    # What takes no time takes memory; the repeats of a study count.
    "corpora.wikipedia.sequences=2e9": "corpora.wikipedia.sequences: got 2,000,000,000; allowed: ",
    "tenancy.stream.samples=100000000": "tenancy.stream.arrivals: got ",
    "sweeps.railx_hyperx_min.topology=railx_hyperx_full"
    " sweeps.railx_hyperx_min.network.routing=adaptive": (
        "sweeps.railx_hyperx_min.topology: got railx_hyperx_full of 200,704 chips and switches;"
        " allowed: fewer, as the routing table of adaptive would take about 150 GiB of memory"
        " (limits.memory_gib: 64, as this machine has), or routing min or balanced"
    ),
    "sweeps.railx_hyperx_min.topology=railx_hyperx_full topologies.railx_hyperx_full.n=16"
    " topologies.railx_hyperx_full.ocs_radix=null": (
        "sweeps.railx_hyperx_min.topology: got railx_hyperx_full of 625,681 chips and switches;"
        " allowed: fewer, as the routing table of min would take about 74.6 GiB of memory"
    ),
    "+topology@topologies.torus_2d_1296=torus_2d_1296"
    " sweeps.railx_hyperx_min.topology=torus_2d_1296"
    " topologies.torus_2d_1296.x_scale=100000 topologies.torus_2d_1296.y_scale=4": (
        "sweeps.railx_hyperx_min.topology: got torus_2d_1296 of 400,000 chips and switches;"
        " allowed: fewer, as the routing table of min would take about 4,284 GiB of memory"
    ),
    "sweeps.railx_hyperx_min.repeats=400000": (
        "sweeps.railx_hyperx_min.repeats: got 400,000; allowed: at most "
    ),
    "topologies.torus_2d.latency_ns=1e18": (
        "topologies.torus_2d.latency_ns: got 1e+18; allowed: at most 2.86e+10, as this would take"
        " about "
    ),
    "traffic@sweeps.railx_hyperx_min.traffic=neighbour"
    " sweeps.railx_hyperx_min.topology=railx_hyperx_full": (
        "sweeps.railx_hyperx_min.traffic.pattern: got 'neighbour' on railx_hyperx_full; allowed:"
        " uniform, or a topology of at most 4,096 chips"
    ),
    "plans.flexsp_stdlib.batch.batch_size=100000": (
        "plans.flexsp_stdlib.batch.batch_size: got 100000; allowed: at most "
    ),
    "plans.flexsp_stdlib.batch.max_length_tokens=1": (
        "plans.flexsp_stdlib.batch.max_length_tokens: got 1; allowed: at least 2, the shortest"
    ),
    "corpora.stdlib.sequences=1": (
        "plans.static_stdlib.batch.batch_size: got 16; allowed: at most 1, the sequences"
    ),
    "figures=[latency_load] sweeps=[]": (
        "figures.latency_load: nothing to show, as the experiment has no packets of its kind"
    ),
}


def test_packets_on_200_704_chips_are_not_refused_for_their_routing_table() -> None:
    compose_experiment(["experiment=quick", "sweeps.railx_hyperx_min.topology=railx_hyperx_full"])


def test_no_other_routing_is_named_where_none_fits() -> None:
    full = "topologies.railx_hyperx_full"
    with pytest.raises(
        SettingsError, match=r"adaptive would take about 1,458 GiB of memory \(limits\.\w+: 64, as"
    ):
        compose_experiment(
            [
                "experiment=quick",
                "sweeps.railx_hyperx_min.topology=railx_hyperx_full",
                "sweeps.railx_hyperx_min.network.routing=adaptive",
                *(f"{full}.n=16", f"{full}.ocs_radix=null"),
            ]
        )


@pytest.mark.parametrize("overrides", MISFITS)
def test_a_misfit_is_named_in_one_line(overrides: str) -> None:
    with pytest.raises(SettingsError) as caught:
        compose_experiment(["experiment=quick", *overrides.split()])
    assert str(caught.value).startswith(MISFITS[overrides])
    assert "\n" not in str(caught.value)


#: Files of a user that are no corpus, by name and content, and what is said of them.
NO_CORPUS: dict[str, tuple[bytes | None, str]] = {
    "bin.json": (b"\xff\xfe\0", "byte 0 is no text; allowed: a JSON list, text, CSV or Parquet"),
    "nowhere.json": (None, "no such file; allowed: a JSON list, text, CSV or Parquet file"),
    "words.csv": (b"length_tokens\nword\n", "sequence 0 is 'word'; allowed: a whole number"),
    ".": (None, "a folder; allowed: a JSON list, text, CSV or Parquet file of lengths"),
}


@pytest.mark.parametrize("name", NO_CORPUS)
def test_a_file_that_is_no_corpus_is_named_before_any_job(tmp_path: Path, name: str) -> None:
    content, said = NO_CORPUS[name]
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        compose_experiment(["experiment=quick", *_own("file", path)])
    assert str(caught.value).startswith(f"corpora.mine.path: got {path}: {said}")


@pytest.mark.parametrize("cells", ["kind,key\nsummary,count\n", "kind,key,value\nsummary,x,1\n"])
def test_a_table_without_quantiles_is_named_before_any_job(tmp_path: Path, cells: str) -> None:
    path = tmp_path / "quantiles.csv"
    path.write_text(cells)
    with pytest.raises(SettingsError, match=r"^corpora.wikipedia.quantiles: got .*; allowed: the"):
        compose_experiment(["experiment=quick", f"corpora.wikipedia.quantiles={path}"])


def test_a_folder_without_text_is_named_before_any_job(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(SettingsError, match=r"^corpora.mine.path: got .*: all 1 files that match"):
        compose_experiment(["experiment=quick", *_own("folder", tmp_path)])


def test_a_batch_is_held_against_the_lengths_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(str([100] * 15 + [1537] * 5))
    own = ("experiment=quick", *_own("file", path))
    with pytest.raises(SettingsError) as caught:
        compose_experiment([*own, "plans.flexsp_stdlib.corpus=mine"])
    assert str(caught.value) == (
        "plans.flexsp_stdlib.batch.batch_size: got 16; allowed: at most 15, the sequences of at"
        " most 1536 tokens in the corpus"
    )
    with pytest.raises(SettingsError, match=r"^batch.batch_size: got 99; allowed: at most 15,"):
        compose_stage(
            ["corpus=file", f"corpus.path={path}", "batch=small", "batch.batch_size=99"],
            ("seed", "corpus", "batch"),
        )


def test_a_batch_is_held_against_lengths_that_are_drawn() -> None:
    with pytest.raises(SettingsError, match=r"^batch.batch_size: got 16; allowed: at most 9, the"):
        compose_stage(
            [
                *("corpus=wikipedia", "corpus.sequences=9"),
                *("batch=small", "batch.overlong=truncate"),
            ],
            ("seed", "corpus", "batch"),
        )


def _own(kind: str, path: Path) -> tuple[str, ...]:
    return f"corpora.mine={kind}", f"corpora.mine.path={path}"


#: Overrides that fit, and all that they change: key, what was there, what is there.
FITTING = {
    "topologies.railx_hyperx.m=4 ~transitions.hyperx_to_torus": {
        "topologies.railx_hyperx.m": (2, 4),
        "transitions.hyperx_to_torus.before": ("railx_hyperx", None),
        "transitions.hyperx_to_torus.after": ("railx_torus", None),
    },
    "topologies.torus_2d.n=3": {"topologies.torus_2d.n": (2, 3)},
    "plans.flexsp_stdlib.cluster.topology=fat_tree": {
        "plans.flexsp_stdlib.cluster.topology": (None, "fat_tree")
    },
    "traffic@sweeps.railx_hyperx_min.traffic=hot_spot": {
        "sweeps.railx_hyperx_min.traffic.pattern": ("uniform", "hot_spot"),
        "sweeps.railx_hyperx_min.traffic.load": (1.0, 0.5),
        "sweeps.railx_hyperx_min.traffic.hot_chips": (None, 4),
        "sweeps.railx_hyperx_min.traffic.hot_share": (None, 0.2),
    },
}


@pytest.mark.parametrize("overrides", FITTING)
def test_what_fits_is_taken(overrides: str) -> None:
    """What was asked for is there, and nothing else has changed."""
    before = flat(to_dict(compose_experiment(["experiment=quick"])))
    after = flat(to_dict(compose_experiment(["experiment=quick", *overrides.split()])))
    changed = {
        key: (before.get(key), after.get(key))
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    }
    assert changed == FITTING[overrides]


def flat(settings: Any, key: str = "") -> dict[str, Any]:
    """Every value of nested settings by its dotted key."""
    if not isinstance(settings, dict):
        return {key: settings}
    return {
        name: value
        for own, inner in settings.items()
        for name, value in flat(inner, f"{key}.{own}" if key else own).items()
    }


def test_bandwidths_are_asked_for_up_to_the_largest_degree_that_is_used() -> None:
    """A model of 64 heads has no use for groups of 128 on any number of devices."""

    def check(planner: str, heads: int, table: dict[str, float]) -> None:
        cluster = checked("cluster", "a100_64", devices=1024, all_to_all_gb_s=table)
        model = checked("model", "gpt_7b", heads=heads, kv_heads=heads, hidden=64 * heads)
        check_plan(checked("planner", planner), cluster, model)

    to_64 = {"2": 100.0, "64": 5.0}
    check("flexsp", 64, to_64)
    check("flexsp", 192, to_64)
    check("static", 1, {})
    with pytest.raises(SettingsError, match=r"all_to_all_gb_s: got .* one for degree 128"):
        check("flexsp", 128, to_64)
    with pytest.raises(SettingsError, match=r"got an empty table for 1024 .* one for degree 2 too"):
        check("flexsp", 6, {})
    # Ring attention takes any number of ranks.
    with pytest.raises(SettingsError, match=r"one for degree 1024 too"):
        check("any_degree", 64, to_64)


def test_the_convergence_experiment_is_large_enough_for_its_claims() -> None:
    """As many steps and parameters as claims require, each step with its own batch."""
    experiment = compose_experiment(["experiment=convergence"])
    wanted = {"steps": 50.0, "parameters": 10e6}
    claims = [
        claim.settings for claim in all_claims() if "steps" in (claim.settings.requires or {})
    ]
    assert [claim.requires for claim in claims] == [wanted] * len(claims) != []
    batches = set()
    for name, run in experiment.runs.items():
        plan = experiment.plans[run.plan]
        assert run.training.iterations >= wanted["steps"], name
        assert parameter_count(plan.model, 1) >= wanted["parameters"], name
        assert plan.batch.batches >= run.training.warmup_iterations + run.training.iterations
        assert not {*run.training.on_demand_latencies_ms, *run.training.provisioned_latencies_ms}
        batches.add((plan.corpus, plan.batch, plan.seed))
    assert len(experiment.runs) == 3
    assert len(batches) == 1


def test_large_topologies_are_told_apart_without_their_graphs() -> None:
    with pytest.raises(
        SettingsError, match=r"^transitions\.hyperx_to_split_full: .*: m: 6 before and 7"
    ):
        compose_experiment(["experiment=paper", "topologies.railx_hyperx_full.m=6"])


@pytest.mark.system
def test_a_dry_run_ends_with_that_line() -> None:
    done = python(
        *("-m", "snakemake", "-n", "--snakefile", ROOT / "Snakefile", "--cores", "1"),
        *("--config", "experiment=quick", "hydra=topologies.railx_hyperx.m=4"),
    )
    assert done.returncode != 0
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "hyperx_to_torus" in line]
    assert lines == [f"error: {MISFITS['topologies.railx_hyperx.m=4']}"]


def test_named_limits_lift_what_an_estimate_refuses() -> None:
    long = ("experiment=quick", "corpora.wikipedia.sequences=2e9")
    with pytest.raises(SettingsError, match=r"GiB of memory \(limits\.memory_gib: 64, as this"):
        compose_experiment(long)
    lifted = compose_experiment([*long, "limits.memory_gib=1000"])
    assert lifted.corpora["wikipedia"].sequences == 2_000_000_000  # type: ignore[union-attr]
    by_hand = ["tenancy.stream.samples=100000000"]
    with pytest.raises(SettingsError, match=r"on one core \(limits\.core_days\)$"):
        compose_stage(by_hand, ["tenancy"])
    compose_stage([*by_hand, "limits.core_days=1e9"], ["tenancy"])


@pytest.mark.parametrize("key", ["timeout_s", "heartbeat_s"])
def test_a_wait_is_no_work(key: str) -> None:
    year = 365 * 86_400.0
    fabric = compose_stage([f"fabric.{key}={year}"], ["fabric"])["fabric"]
    assert getattr(fabric, key) == year
    with pytest.raises(SettingsError, match=rf"^fabric.{key}: got .*allowed: .*from 0 to 1000000"):
        compose_stage([f"fabric.{key}=1e12"], ["fabric"])
