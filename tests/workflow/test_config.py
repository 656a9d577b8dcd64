"""Composition and its checks: every experiment is valid, every file complete, every
mistake named before a job starts.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from railx.performance.decoder import parameter_count
from railx.settings import SettingsError, load, to_dict
from tests.builders import choice
from tests.commands import loaded, python
from tests.loops import for_every
from workflow import config, mounts
from workflow.cache_keys import cache_key
from workflow.config import CONF, choices, compose_experiment, compose_stage
from workflow.experiment import checked_experiment, overrides_from
from workflow.settings import CHOSEN, LISTED, Experiment

ROOT = CONF.parent
EXPERIMENTS = choices("experiment")


def with_quick(*overrides: str) -> Experiment:
    return compose_experiment(["experiment=quick", *overrides])


#: Composed in half a minute, and by whoever runs it.
LARGE = {"pipelines"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in EXPERIMENTS],
)
def test_every_experiment_composes_under_its_own_name(name: str) -> None:
    experiment = compose_experiment([f"experiment={name}"])
    assert experiment.name == name
    assert load(Experiment, to_dict(experiment)) == experiment


@for_every(
    "choice",
    sorted(
        f"{group}={name}"
        for group in (
            "topology",
            "traffic",
            "network",
            "collective",
            "economics",
            "cluster",
            "model",
            "cost_model",
            "planner",
            "batch",
            "fabric",
            "training",
            "tracking",
        )
        for name in choices(group)
    ),
)
def test_every_choice_is_valid(choice: str) -> None:
    group = choice.split("=")[0]
    # What only a user can say.
    own = ["traffic.path=shares.csv"] if choice == "traffic=matrix" else []
    assert compose_stage([choice, *own], [group])[group] is not None


def test_overrides_come_from_snakemakes_config() -> None:
    config = {"experiment": "quick", "tracking": "off", "seed": 3, "hydra": "a.b=1 'c.d=[1, 2]'"}
    assert overrides_from(config) == [
        "experiment=quick",
        "tracking=off",
        "seed=3",
        "a.b=1",
        "c.d=[1, 2]",
    ]
    assert overrides_from({"hydra": ["a.b=1"], "x": [1, {"y": True}], "z": None}) == [
        "a.b=1",
        "x=[1,{y:true}]",
        "z=null",
    ]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "topologies.railx_hyperx.mm=3",
            "topologies.railx_hyperx.mm: unknown key; allowed: family, port_gbps, node, m, n",
        ),
        ("topologies.railx_hyperx.m=0", "topologies.railx_hyperx.m: got 0; allowed: at least 1"),
        ("topologies.railx_hyperx.ocs_radix=4", "topologies.railx_hyperx.ocs_radix"),
        (
            "topologies.railx_hyperx.n=200",
            "topologies.railx_hyperx.n: the topology would need 258,568,008 directed links",
        ),
        (
            "topologies.fat_tree_1152_nodes.populated_chips=1000",
            "topologies.fat_tree_1152_nodes.populated_chips: got 1000; allowed: null or 1152",
        ),
        (
            "economics.networks.fat_tree_full.topology.switch_radix=64",
            "economics.networks.fat_tree_full.topology.populated_chips: got 200704; allowed: at",
        ),
        (
            "experiment=fast",
            "experiment: got 'fast'; allowed: rails, planners, ",
        ),
        ("sed=3", "sed: unknown key; allowed: seed, "),
        (
            "plans.flexsp_stdlib.corpus=books",
            "plans.flexsp_stdlib.corpus: got 'books'; allowed: stdlib, wikipedia",
        ),
        (
            "runs.flexsp_stdlib.plan=none",
            "runs.flexsp_stdlib.plan: got 'none'; allowed: static_7b_192k_wikipedia",
        ),
        (
            "runs.flexsp_stdlib.training.precision=float8",
            "runs.flexsp_stdlib.training.precision: got 'float8'; allowed: float32",
        ),
        (
            "runs.flexsp_stdlib.fabric.port=70000",
            "runs.flexsp_stdlib.fabric.port: got 70000; allowed: from 0 to 65535",
        ),
        ("seed=2147483648", "seed: got 2147483648; allowed: from 0 to 2147483647"),
        ("name=a/b", "name: got 'a/b'; allowed: letters, digits and underscores"),
        ("figures.cost.dpi=10", "figures.cost.dpi: got 10; allowed: from 50 to 600"),
        ("~topologies.nope", "topologies: got 'nope'; allowed: railx_hyperx, "),
    ],
)
def test_a_mistake_is_named_in_one_line(override: str, expected: str) -> None:
    overrides = [override] if override.startswith("experiment") else ["experiment=quick", override]
    with pytest.raises(SettingsError) as caught:
        compose_experiment(overrides)
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


@pytest.mark.system
def test_snakemake_ends_before_any_job_with_that_line(tmp_path: Path) -> None:
    result = python(
        "-m",
        "snakemake",
        *("--snakefile", ROOT / "Snakefile", "--directory", tmp_path, "--cores", "1"),
        *("--config", "experiment=quick", "hydra=topologies.torus_2d.n=none"),
    )
    assert result.returncode != 0
    lines = [line for line in (result.stdout + result.stderr).splitlines() if "torus_2d" in line]
    assert lines == ["error: topologies.torus_2d.n: got 'none'; allowed: an integer"]
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "results").exists()


def test_a_checked_experiment_is_kept_and_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = to_dict(compose_experiment(["experiment=quick", "seed=3"]))
    assert checked_experiment(["experiment=quick", "seed=3"]) == json.loads(json.dumps(wanted))

    def fail(*_: object) -> None:
        raise AssertionError("checked again")

    monkeypatch.setattr("workflow.config.compose_experiment", fail)
    assert checked_experiment(["experiment=quick", "seed=3"])["seed"] == 3
    with pytest.raises(AssertionError, match="checked again"):
        checked_experiment(["experiment=quick", "seed=4"])


def test_the_keys_of_experiment_files_are_those_of_the_schema() -> None:
    fields = {field.name for field in dataclasses.fields(Experiment)}
    assert fields == {"name", "seed", *LISTED, *CHOSEN}
    for group in (*LISTED.values(), *CHOSEN, *mounts.EVERY):
        assert choices(group)
        assert not any(name.startswith("base") for name in choices(group))


def test_a_group_that_nobody_chooses_is_its_default_file() -> None:
    config, rest = mounts.primary_config(["experiment=quick"], CHOSEN)
    assert {"/tracking": "default"} in config["defaults"]
    assert {"/mapping": "pair"} in config["defaults"]
    chosen, _ = mounts.primary_config(["experiment=quick", "tracking=off"], CHOSEN)
    assert [one for one in chosen["defaults"] if "/tracking" in one] == [{"/tracking": "off"}]
    assert rest == []


def test_a_variant_has_what_it_inherits_and_its_own() -> None:
    small, large = (choice("topology", name) for name in ("railx_hyperx", "railx_hyperx_m4n2_w1"))
    assert small["family"] == "railx_hyperx"
    assert large == small | {"m": 4, "internal_width": 1.0}
    quick = with_quick()
    assert to_dict(quick.topologies["railx_hyperx"]) == small
    balanced, least = (
        to_dict(quick.sweeps[f"railx_hyperx_{routing}"]) for routing in ("balanced", "min")
    )
    assert balanced == least | {"network": least["network"] | {"routing": "balanced"}}


def seed_leaves(node: Any, path: str = "") -> dict[str, int]:
    """Every value under a key ``seed``, by its path, but for those of random graphs."""
    found = {}
    for key, value in node.items() if isinstance(node, dict) else ():
        found |= {f"{path}{key}": value} if key == "seed" and "family" not in node else {}
        found |= seed_leaves(value, f"{path}{key}.")
    return found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in {*LARGE, "end_to_end"} else [])
        for name in EXPERIMENTS
    ],
)
def test_a_seed_on_the_command_line_reaches_every_seed(name: str) -> None:
    seeds = {
        seed: seed_leaves(to_dict(compose_experiment([f"experiment={name}", f"seed={seed}"])))
        for seed in (7, 8)
    }
    plain = to_dict(compose_experiment([f"experiment={name}"]))
    for seed, leaves in seeds.items():
        assert set(leaves.values()) == {seed}
    entries = {f"{group}.{one}.seed" for group in ("plans", "runs", "live") for one in plain[group]}
    entries |= {"design.seed", "arena.point.seed"}
    assert set(seeds[7]) == set(seed_leaves(plain)) == {"seed", *entries}


def test_settings_import_no_simulator_and_no_solver() -> None:
    heavy = "numba", "scipy", "torch"
    code = f"import sys, workflow.settings; print([m for m in {heavy} if m in sys.modules])"
    done = python("-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, "[]")


def test_a_seed_of_an_entrys_own_stays(mine: Callable[..., Experiment]) -> None:
    own = "defaults: [quick]\nplans: {flexsp_stdlib: {seed: 3}}\n"
    changed = mine(own, "seed=7", "runs.pipeline_stdlib.seed=4")
    assert {name: plan.seed for name, plan in changed.plans.items()} == {
        name: 3 if name == "flexsp_stdlib" else 7 for name in changed.plans
    }
    assert [run.seed for run in changed.runs.values()] == [7, 7, 4]


@pytest.mark.parametrize("override", ["seed=7", "seed=8"])
def test_a_seed_reaches_the_stages_run_by_hand(override: str) -> None:
    assert compose_stage([override], ["seed"]) == {"seed": int(override[-1])}


def test_an_experiment_holds_its_lists_in_order() -> None:
    quick = with_quick()
    assert list(quick.topologies)[:3] == ["railx_hyperx", "railx_hyperx_m4n2", "railx_hyperx_full"]
    assert list(quick.runs) == ["static_stdlib", "flexsp_stdlib", "pipeline_stdlib"]
    assert list(quick.figures)[-3:] == ["cluster_time", "design_front", "arena"]


def test_gpu_trains_a_billion_parameters_in_micro_batches_of_sixteen_thousand_tokens() -> None:
    gpu = compose_experiment(["experiment=gpu"])
    assert [name.removesuffix("_gpu") for name in gpu.runs] == [
        *("alone", "static", "flexsp", "pipeline", "stages"),
    ]
    for name, run in gpu.runs.items():
        plan = gpu.plans[name]
        assert (run.training.device, run.training.precision) == ("cuda", "bfloat16")
        assert parameter_count(plan.model, 8192) > 1e9
        assert plan.cluster.tokens_per_device * plan.cluster.devices == 16384
    plans = list(gpu.plans.values())
    # The same sequences in every plan.
    assert all(plan.batch == plans[0].batch for plan in plans)


def test_a_later_layer_wins(mine: Callable[..., Experiment]) -> None:
    own = """
defaults: [quick]
tracking: {project: own}
topologies: {torus_2d: {n: 3}}
figures:
  - cost
  - all_to_all_bandwidth: {only: [torus_2d]}
"""
    quick = with_quick()
    assert (quick.topologies["torus_2d"].n, quick.tracking.project) == (2, "railx-lab")
    changed = mine(own)
    assert (changed.name, changed.seed, changed.tracking.project) == ("mine", 1, "own")
    assert changed.topologies["torus_2d"] == dataclasses.replace(quick.topologies["torus_2d"], n=3)
    assert list(changed.topologies) == list(quick.topologies)
    assert list(changed.figures) == ["cost", "all_to_all_bandwidth"]
    assert changed.figures["all_to_all_bandwidth"].only == ("torus_2d",)
    over = mine(own, "topologies.torus_2d.n=4", "name=other", "seed=7", "tracking=off")
    assert (over.name, over.seed, over.topologies["torus_2d"].n) == ("other", 7, 4)
    assert (over.tracking.mlflow, over.tracking.project) == (False, "own")


def test_an_heir_changes_the_lists_of_what_it_inherits(mine: Callable[..., Experiment]) -> None:
    quick = with_quick()
    changed = mine(
        """
defaults: [quick]
topologies: {grid: torus_2d, railx_hyperx_full: null, fat_tree_1152_nodes: {switch_radix: 40}}
sweeps: [railx_hyperx_balanced, low: railx_hyperx_min]
"""
    )
    assert changed.topologies["grid"] == quick.topologies["torus_2d"]
    kept = [name for name in quick.topologies if name != "railx_hyperx_full"]
    assert list(changed.topologies) == [*kept, "grid"]
    assert changed.topologies["fat_tree_1152_nodes"].switch_radix == 40
    assert list(changed.sweeps) == ["railx_hyperx_balanced", "low"]
    assert changed.sweeps["low"] == quick.sweeps["railx_hyperx_min"]


def test_a_list_keeps_what_an_inherited_experiment_said_of_a_name(
    mine: Callable[..., Experiment],
) -> None:
    paper = compose_experiment(["experiment=paper"])
    changed = mine("defaults: [paper]\nfigures: [latency_load, cost]\n")
    assert len(changed.figures["latency_load"].only) == 12
    assert changed.figures == {name: paper.figures[name] for name in ("latency_load", "cost")}


@pytest.mark.parametrize(
    ("override", "names", "same_as"),
    [
        ("topologies.mine=torus_2d", "added", "torus_2d"),
        ("+topology@topologies.mine=torus_2d", "added", "torus_2d"),
        ("topologies.railx_hyperx_full=torus_2d", "kept", "torus_2d"),
        ("topology@topologies.railx_hyperx_full=torus_2d", "kept", "torus_2d"),
        ("~topologies.railx_hyperx_full", "removed", None),
        ("topologies.railx_hyperx_full=null", "removed", None),
    ],
)
def test_the_command_line_mounts_too(override: str, names: str, same_as: str | None) -> None:
    quick, changed = with_quick(), with_quick(override)
    before, after = list(quick.topologies), list(changed.topologies)
    if names == "added":
        assert after == [*before, "mine"]
        assert changed.topologies["mine"] == quick.topologies["torus_2d"]
    elif names == "removed":
        assert after == [name for name in before if name != "railx_hyperx_full"]
    else:
        assert after == before
        assert changed.topologies["railx_hyperx_full"] == quick.topologies["torus_2d"]


def test_the_command_line_chooses_trainings_of_all_runs_or_of_one() -> None:
    shared = with_quick("training=cpu_4_sweep", "runs.flexsp_stdlib.training.iterations=2")
    iterations = {name: run.training.iterations for name, run in shared.runs.items()}
    assert iterations == {"static_stdlib": 5, "flexsp_stdlib": 2, "pipeline_stdlib": 5}
    one = with_quick("training@runs.flexsp_stdlib.training=gpu")
    devices = {name: run.training.device for name, run in one.runs.items()}
    assert devices == {"static_stdlib": "auto", "flexsp_stdlib": "cuda", "pipeline_stdlib": "auto"}


def test_the_command_line_takes_lists_and_single_choices() -> None:
    quick, changed = with_quick(), with_quick("figures=[cost,agreement]", "collective=all")
    assert changed.figures == {name: quick.figures[name] for name in ("cost", "agreement")}
    assert len(changed.collective.collectives) == 5
    assert list(with_quick("sweeps=[]", "~figures.latency_load").sweeps) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "topologies: [torus_9d]",
            "topologies: got 'torus_9d'; allowed (conf/topology): ",
        ),
        (
            "topologies: [railx_hyperx, mine: base]",
            "topologies: got 'base'; allowed (conf/topology): ",
        ),
        (
            "topologies: {mine: torus_9d}",
            "topologies: got 'torus_9d'; allowed (conf/topology): ",
        ),
        (
            "figures: [cost, agreement, cost]",
            "figures: got 'cost' twice; allowed: each name once",
        ),
        (
            "figures: [{cost: cost, agreement: agreement}]",
            "figures: got {'cost': 'cost', 'agreement': 'agreement'}; allowed: a name, or",
        ),
        ("figures: cost", "figures: got 'cost'; allowed: a list of names, or a mapping of names"),
        ("figures: {costs: null}", "figures: got 'costs'; allowed: cost, "),
        ("figures: [a/b: cost]", "figures.a/b: not a name; allowed: letters, digits and undersc"),
        ("tenancy: tiny", "tenancy: got 'tiny'; allowed (conf/tenancy): full_scale, small"),
        ("training: tpu", "training: got 'tpu'; allowed (conf/training): convergence, cpu_4, "),
        (
            "topologys: [torus_2d]",
            "topologys: unknown key in conf/experiment/mine.yaml; allowed: topologies, ",
        ),
        (
            "defaults: [slow]",
            "experiment: got 'slow'; allowed: ",
        ),
        ("defaults: quick", "defaults: got 'quick' in conf/experiment/mine.yaml; allowed: a list"),
        ("defaults: [mine]", "defaults: conf/experiment/mine.yaml inherits itself: mine"),
        ("# defaults: [quick]", "conf/experiment/mine.yaml: is empty; allowed: choices, or defau"),
        ("- cost", "conf/experiment/mine.yaml: got list; allowed: a mapping of keys to settings"),
        ("figures: [cost", "conf/experiment/mine.yaml: no YAML: line 3: while parsing a flow"),
        ("topologies: {torus_2d: {k: 1}}", "topologies.torus_2d.k: unknown key; allowed: family,"),
    ],
)
def test_a_mistake_in_an_experiment_is_named_in_one_line(
    mine: Callable[..., Experiment], content: str, message: str
) -> None:
    inherits = "" if content.startswith(("defaults", "-", "#")) else "defaults: [quick]\n"
    with pytest.raises(SettingsError) as caught:
        mine(inherits + content)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["defaults: [quik]", "topologies: [torus_9d]", "training: tp"])
def test_a_wrong_name_in_an_inherited_experiment_names_that_file(
    conf: Path, mine: Callable[..., Experiment], content: str
) -> None:
    (conf / "experiment" / "parent.yaml").write_text(f"{content}\n")
    with pytest.raises(SettingsError, match=r" \(in conf/experiment/parent\.yaml\)$"):
        mine("defaults: [parent]\n")
    # On the command line no file is to blame.
    with pytest.raises(SettingsError) as caught:
        mine("defaults: [quick]\n", "topologies=[torus_9d]")
    assert ".yaml" not in str(caught.value)


class Counted:
    """How often something was really composed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        compose = config._anew

        def counted(*arguments: Any) -> dict[str, Any]:
            self.times += 1
            return compose(*arguments)

        monkeypatch.setattr(config, "_anew", counted)


@pytest.fixture
def composing(conf: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def test_what_was_composed_is_kept_until_something_changes(conf: Path, composing: Counted) -> None:
    first = with_quick()
    assert with_quick() == first
    assert composing.times == 1
    with_quick("seed=2")
    assert composing.times == 2
    file = conf / "topology" / "torus_2d.yaml"
    text = file.read_text()
    file.write_text(text.replace("choices:", "n: 3\nchoices:"))
    assert with_quick().topologies["torus_2d"].n == 3
    assert composing.times == 3
    file.write_text(text)
    assert with_quick() == first
    assert composing.times == 3
    (conf / "topology" / "one_more.yaml").write_text("family: torus_2d\n")
    with_quick()
    assert composing.times == 4


def test_another_version_of_hydra_composes_anew(
    composing: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_quick()
    monkeypatch.setattr("workflow.cache_keys._versions", lambda: ["another"])
    with_quick()
    assert composing.times == 2


def test_a_copy_of_the_checkout_has_the_same_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(checkout: Path, file: str) -> str:
        monkeypatch.setattr("railx.places.SHIPPED", checkout)
        (checkout / file).parent.mkdir(parents=True, exist_ok=True)
        (checkout / file).write_text("a: 1\n")
        return cache_key(["asked"], [checkout / file])

    keys = [key(tmp_path / name, "conf/a.yaml") for name in ("here", "there")]
    assert keys[0] == keys[1] != key(tmp_path / "there", "conf/b.yaml")


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "text"])
def test_a_damaged_file_counts_as_none(composing: Counted, damage: str) -> None:
    first = with_quick()
    (kept,) = config.KEPT.iterdir()
    content = kept.read_bytes()
    kept.write_bytes(
        {
            "empty": b"",
            "cut": content[: len(content) // 2],
            "changed": content.replace(b'"m": 2', b'"m": 3'),
            "text": b"not what was kept",
        }[damage]
    )
    assert with_quick() == first
    assert composing.times == 2
    assert kept.read_bytes() == content


def test_a_folder_that_cannot_be_written_is_done_without(
    conf: Path, composing: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = conf.parent / "file"
    blocked.write_text("in the way")
    monkeypatch.setattr(config, "KEPT", blocked)
    assert with_quick() == with_quick()
    assert composing.times == 2


def test_kept_configs_are_bounded(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("railx.file_cache.LIMIT", 2)
    for seed in range(4):
        compose_stage([f"seed={seed}"], ["seed"])
    assert len(list(config.KEPT.iterdir())) == 2


def test_what_is_kept_is_still_checked(composing: Counted) -> None:
    for _ in range(2):
        with pytest.raises(SettingsError, match=r"topologies\.torus_2d\.n: got 0; allowed"):
            with_quick("topologies.torus_2d.n=0")
    assert composing.times == 1


def test_a_kept_config_needs_no_hydra(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from workflow import config
config.KEPT = Path({str(tmp_path)!r})
config.compose_experiment(["experiment=quick", "seed=3"])
"""
    libraries = {"hydra", "omegaconf", "antlr4"}
    assert [loaded(code, libraries) for _ in range(2)] == [libraries, set()]
