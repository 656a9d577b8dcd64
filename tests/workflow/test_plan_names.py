"""Plans as a product of planners, settings and corpora."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from railx.settings import SettingsError
from workflow.config import CONF, compose_experiment
from workflow.plan_names import PlanNames, PlanParts, crossed
from workflow.renamed import new_name
from workflow.settings import Experiment

NAMES = PlanNames(CONF)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("flexsp_7b_192k_wikipedia", ("flexsp", "7b_192k", "wikipedia")),
        ("flexsp_milp_code_7b_192k_commoncrawl", ("flexsp_milp_code", "7b_192k", "commoncrawl")),
        ("static_7b_128k_16_commoncrawl", ("static", "7b_128k_16", "commoncrawl")),
        ("deepspeed_a800_13b_192k_github", ("deepspeed", "a800_13b_192k", "github")),
        ("flexsp_7b_192k_stdlib", ("flexsp", "7b_192k", "stdlib")),
    ],
)
def test_a_name_says_planner_setting_and_corpus(name: str, parts: tuple[str, str, str]) -> None:
    assert NAMES.parts(name) == PlanParts(*parts)


@pytest.mark.parametrize(
    "name", ["flexsp_stdlib", "flexsp_wikipedia", "best_7b_192k_github", "flexsp_7b_192k_books"]
)
def test_other_names_are_no_product(name: str) -> None:
    assert NAMES.parts(name) is None


def test_a_cross_has_every_plan_but_those_left_out() -> None:
    cross = {
        "setting": ["7b_64k", "7b_128k"],
        "corpus": "github",
        "planner": ["static", "megatron"],
    }
    assert crossed({"cross": cross, "except": ["megatron_7b_64k_*"]}) == [
        "static_7b_64k_github",
        "static_7b_128k_github",
        "megatron_7b_128k_github",
    ]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"cross": {"planner": "flexsp"}}, "plans: got cross: {'planner': 'flexsp'}; allowed: a"),
        ({"cross": {"planner": 1, "setting": "a", "corpus": "b"}}, "plans: got cross: {'planner'"),
        (
            {"cross": {"planner": "a", "setting": "b", "corpus": "c"}, "except": ["d_*"]},
            "plans: got except: d_*; allowed: a_b_c",
        ),
        ({"cross": {"planner": "a", "setting": "b", "corpus": "c"}, "but": 1}, "plans: got {"),
        ({"cross": {"planner": "a", "setting": "b", "corpus": "c"}, "with": 40}, "plans: got {"),
    ],
)
def test_a_cross_that_cannot_be_is_refused(item: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        crossed(item)
    assert str(refused.value).startswith(message)


def test_what_a_setting_says_of_a_planner_counts_in_its_plans_alone() -> None:
    planner = "planner"
    names = {
        "static_7b_192k_wikipedia": (planner, "degree", 64),
        "static_7b_192k_github": (planner, "degree", None),
        "deepspeed_a800_7b_48k_github": (planner, "degree", 16),
        "deepspeed_a800_30b_48k_github": (planner, "degree", 32),
        "pipeline_a800_7b_48k_github": (planner, "stages", 4),
        "pipeline_7b_192k_github": (planner, "stages", 8),
        "flexsp_a800_30b_48k_github": ("cost_model", "checkpoint_layers", 36),
        "pipeline_a800_30b_48k_github": ("cost_model", "checkpoint_layers", 0),
    }
    listed = ",".join(names)
    plans = compose_experiment(["experiment=end_to_end", f"plans=[{listed}]", "figures=[]"]).plans
    assert list(plans) == list(names)
    for name, (group, key, value) in names.items():
        assert getattr(getattr(plans[name], group), key) == value, name
        assert plans[name].corpus == {"github": "github_like"}.get(name.split("_")[-1], "wikipedia")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("flexsp_wikipedia", "flexsp_7b_192k_wikipedia"),
        ("pipeline_github_like", "pipeline_7b_192k_github"),
        ("flexsp_wikipedia_railx", "flexsp_7b_192k_railx_wikipedia"),
        ("flexsp_7b_128k_commoncrawl_16", "flexsp_7b_128k_16_commoncrawl"),
        ("pipeline_a800_7b_48k_commoncrawl_40g", "pipeline_a800_7b_48k_40g_commoncrawl"),
        ("flexsp_7b_192k_wikipedia", None),
        ("flexsp_a800_7b_48k_commoncrawl", None),
        ("flexsp_stdlib", None),
    ],
)
def test_old_names_have_one_new_name_each(old: str, new: str | None) -> None:
    assert new_name("plan", old) == new


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "plans=[flexsp_wikipedia]",
            "plans: got 'flexsp_wikipedia'; renamed: flexsp_7b_192k_wikipedia",
        ),
        (
            "plans.flexsp_wikipedia.planner.effort=2",
            "plans: got 'flexsp_wikipedia'; renamed: flexsp_7b_192k_wikipedia",
        ),
        (
            "runs.flexsp_stdlib.plan=flexsp_wikipedia",
            "runs.flexsp_stdlib.plan: got 'flexsp_wikipedia'; renamed: flexsp_7b_192k_wikipedia",
        ),
        ("plans=[flexsp_7b_9k_wikipedia]", "plans: got 'flexsp_7b_9k_wikipedia'; allowed (conf/p"),
    ],
)
def test_a_name_that_is_no_plan_is_refused(override: str, message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        compose_experiment(["experiment=quick", override])
    assert str(refused.value).startswith(message)


def test_overrides_reach_the_plans_of_a_product() -> None:
    plans = compose_experiment(
        [
            "experiment=quick",
            "plans.flexsp_7b_192k_wikipedia.planner.effort=2",
            "plans.mine=static_7b_384k_wikipedia",
            "planner@plans.static_7b_192k_wikipedia.planner=megatron",
            "~plans.pipeline_stdlib",
            "~runs.pipeline_stdlib",
            "figures=[cost]",
        ]
    ).plans
    assert plans["flexsp_7b_192k_wikipedia"].planner.effort == 2  # type: ignore[attr-defined]
    assert plans["mine"].batch.max_length_tokens == 384000
    assert plans["static_7b_192k_wikipedia"].planner.planner == "megatron"
    assert "pipeline_stdlib" not in plans


def test_an_heir_crosses_further_plans(mine: Callable[..., Experiment]) -> None:
    added = (
        "{cross: {planner: [wlb, static], setting: 7b_64k, corpus: wikipedia}, except: [static_*]}"
    )
    plans = mine(f"defaults: [quick]\nplans: {added}\n").plans
    inherited = compose_experiment(["experiment=quick"]).plans
    assert list(plans) == [*inherited, "wlb_7b_64k_wikipedia"]


@pytest.mark.parametrize("plans", ["[{cross}, static_7b_64k_github]", "{cross}"])
def test_keys_of_a_cross_are_keys_of_all_its_plans(
    mine: Callable[..., Experiment], plans: str
) -> None:
    cross = (
        "{cross: {planner: [wlb, static], setting: 7b_64k, corpus: wikipedia},"
        " with: {batch: {batches: 40}}}"
    )
    text = f"defaults: [planners]\nfigures: []\nplans: {plans.replace('{cross}', cross)}\n"
    composed = mine(text).plans
    batches = {name: plan.batch.batches for name, plan in composed.items()}
    assert batches["wlb_7b_64k_wikipedia"] == batches["static_7b_64k_wikipedia"] == 40
    inherited = set(batches) - {"wlb_7b_64k_wikipedia", "static_7b_64k_wikipedia"}
    assert inherited
    assert 40 not in {batches[name] for name in inherited}
