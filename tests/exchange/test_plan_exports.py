"""Plans for other programs: each option is one that a named commit of the program has,
their numbers fit the program's rules, and the groups are those of the plan.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.exchange.plans import PLAN_FORMATS, PROGRAMS, exported_plan, groups_file
from railx.performance.decoder import ModelSettings
from railx.performance.exports import megatron_options
from railx.performance.models import model_named
from railx.performance.plans import Plan as Degrees
from railx.planning.format.parts import Pipeline, PlanError
from railx.planning.format.plan import Plan
from railx.settings import to_dict
from tests.builders import ROOT
from tests.plans import chunk, micro_batch, pipeline_plan, sequence_parallel_plan
from workflow.stages.plan import STAGE

STORED = json.loads((ROOT / "tests/exchange/data/program_options.json").read_text())
SCHEMA = json.loads((ROOT / "resources/schemas/groups.schema.json").read_text())
MODEL = ModelSettings("small", 4, 64, 8, 8, 128, 100, max_positions=0)


def with_model(plan: Plan, **changes: Any) -> Plan:
    settings = {"model": to_dict(MODEL), "max_length_tokens": 900}
    return replace(plan, settings=settings, **changes)


def mixed(tokens_per_device: int | None = 100) -> Plan:
    """Groups of degree 4, 2 and 1 on 8 ranks; ranks 6 and 7 wait at first."""
    first = micro_batch(((0, 1, 2, 3), {0: 350}), ((4, 5), {1: 90, 2: 80}))
    second = micro_batch(((0,), {3: 60}), ((2, 3), {4: 150}))
    plan = sequence_parallel_plan(8, [first, second])
    return with_model(plan, tokens_per_device=tokens_per_device)


def uniform(degree: int = 4) -> Plan:
    """Groups of one degree on 8 ranks, two micro-batches."""
    ranks = tuple(tuple(range(first, first + degree)) for first in range(0, 8, degree))
    first = micro_batch(*((group, {index: 101}) for index, group in enumerate(ranks)))
    second = micro_batch((ranks[0], {90: 30, 91: 40}))
    return with_model(sequence_parallel_plan(8, [first, second]))


def pipelines() -> Plan:
    """Two replicas of two stages of two ranks; a sequence cut over two chunks."""
    cut = Pipeline(2, 0, (chunk((0, 0, 30, 50)), chunk((0, 30, 50, 50))), degree=2)
    whole = Pipeline(2, 1, (chunk((1, 0, 40, 40)),), degree=2)
    return with_model(pipeline_plan(8, [cut, whole]))


def options_of(text: str) -> dict[str, str | None]:
    """Options of a command line and their values; flags have none."""
    bare = "".join(line for line in text.splitlines(True) if not line.startswith("#"))
    words = shlex.split(bare.replace("\\\n", " "))
    found: dict[str, str | None] = {}
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            assert word not in found, "an option twice"
            found[word] = None if after.startswith("--") else after
    return found


def megatron(plan: Plan) -> dict[str, str | None]:
    return options_of(exported_plan(plan, "megatron").text)


PLANS = {"mixed": mixed, "uniform": uniform, "alone": lambda: uniform(1), "pipelines": pipelines}


def test_the_lists_are_those_of_the_commits_that_are_named() -> None:
    for program, named in PROGRAMS.items():
        assert (STORED[program]["repository"], STORED[program]["commit"]) == named
        assert STORED[program]["licence"]
    assert len(STORED["megatron"]["options"]) > 800


@pytest.mark.parametrize("name", PLANS)
def test_megatron_has_every_option(name: str) -> None:
    exported = exported_plan(PLANS[name](), "megatron")
    found = options_of(exported.text)
    assert found.keys() <= set(STORED["megatron"]["options"])
    assert PROGRAMS["megatron"][1][:12] in exported.text.splitlines()[0]
    said = [line for line in exported.text.splitlines() if "no option says" in line]
    assert [line.partition("says: ")[2] for line in said] == list(exported.lost)


@pytest.mark.parametrize(
    "degrees",
    [
        Degrees(data=4, sharding="parameters", recompute="full"),
        Degrees(pipeline=4, virtual=2, schedule="interleaved", sharding="optimizer"),
        Degrees(pipeline=5, order=("tensor", "context", "pipeline", "data")),
        Degrees(data=8, expert=8, tensor=2, sequence_parallel=True, recompute="selective"),
    ],
)
@pytest.mark.parametrize(
    "model", ["llama3_8b", "mixtral_8x22b", "gpt3_175b", "deepseek_v3", "gpt_oss_120b"]
)
def test_megatron_has_every_option_of_advice(model: str, degrees: Degrees) -> None:
    found = options_of(megatron_options(model_named(model), degrees))
    assert found.keys() <= set(STORED["megatron"]["options"])
    # Megatron-LM refuses FSDP2 beside its own optimizer, and with fused accumulation.
    assert ("--use-torch-fsdp2" in found) == (degrees.sharding == "parameters")
    assert not {"--use-torch-fsdp2", "--use-distributed-optimizer"} <= found.keys()
    assert ("--no-gradient-accumulation-fusion" in found) == ("--use-torch-fsdp2" in found)
    rotary = not model_named(model).learned_positions
    assert found.get("--position-embedding-type") == ("rope" if rotary else None)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            "deepseek_v3",
            {
                "--multi-latent-attention": None,
                "--q-lora-rank": "1536",
                "--kv-lora-rank": "512",
                "--qk-head-dim": "128",
                "--qk-pos-emb-head-dim": "64",
                "--v-head-dim": "128",
                "--moe-shared-expert-intermediate-size": "2048",
                "--moe-layer-freq": "[0]*3+[1]*58",
            },
        ),
        ("gpt_oss_120b", {"--window-size": "127,0", "--window-attn-skip-freq": "2"}),
        ("llama3_8b", {}),
    ],
)
def test_megatron_trains_the_model_of_the_advice(
    model: str, expected: dict[str, str | None]
) -> None:
    """Latent attention, shared experts, dense layers and windows are in its options."""
    found = options_of(megatron_options(model_named(model), Degrees()))
    parts = ("latent", "lora", "head-dim", "shared", "layer-freq", "window")
    assert {key: found[key] for key in found if any(part in key for part in parts)} == expected


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("llama3_8b", {"--normalization", "--disable-bias-linear"}),
        ("mixtral_8x22b", {"--normalization", "--disable-bias-linear"}),
        ("qwen3_32b", {"--normalization", "--disable-bias-linear", "--qk-layernorm"}),
        ("qwen3_235b_a22b", {"--normalization", "--disable-bias-linear", "--qk-layernorm"}),
        ("deepseek_v3", {"--normalization", "--disable-bias-linear", "--qk-layernorm"}),
        ("gpt_oss_120b", {"--normalization"}),
        ("gpt3_175b", set()),
        ("turing_530b", set()),
        ("mpt_7b", set()),
    ],
)
def test_norms_and_biases_are_those_of_the_model(model: str, expected: set[str]) -> None:
    found = options_of(megatron_options(model_named(model), Degrees()))
    assert {key for key in found if "norm" in key or "bias" in key} == expected
    assert found.get("--normalization", "RMSNorm") == "RMSNorm"
    qwen2 = replace(model_named(model), qkv_biases=True)
    assert "--add-qkv-bias" in options_of(megatron_options(qwen2, Degrees()))


@pytest.mark.parametrize(("biases", "norm"), [(False, "RMSNorm"), (True, None)])
def test_norms_of_a_plan_are_those_of_the_trainer(biases: bool, norm: str | None) -> None:
    shape = replace(MODEL, biases=biases).shape()
    assert options_of(megatron_options(shape, Degrees())).get("--normalization") == norm


@pytest.mark.parametrize(
    ("model", "degrees", "note"),
    [
        (
            "gpt3_175b",
            Degrees(data=2, sharding="parameters"),
            "# Megatron-LM refuses FSDP2 beside tied",
        ),
        (
            "mixtral_8x22b",
            Degrees(data=2, expert=2, sharding="parameters"),
            "# Megatron-LM refuses FSDP2 beside expert",
        ),
        ("gpt_oss_120b", Degrees(tensor=2), "# Megatron-LM refuses biases of experts"),
        ("llama3_8b", Degrees(data=2, sharding="parameters"), "--num-layers"),
        ("gpt_oss_120b", Degrees(data=2, expert=2), "--num-layers"),
        ("mixtral_8x22b", Degrees(tensor=2), "--num-layers"),
    ],
)
def test_what_megatron_refuses_is_said(model: str, degrees: Degrees, note: str) -> None:
    assert megatron_options(model_named(model), degrees).startswith(note)


@pytest.mark.parametrize("name", PLANS)
def test_numbers_fit_the_rules_of_megatron(name: str) -> None:
    plan = PLANS[name]()
    found = megatron(plan)
    ranks = [
        int(found[f"--{word}-parallel-size"] or 0)
        for word in ("tensor-model", "pipeline-model", "context")
    ]
    inside = ranks[0] * ranks[1] * ranks[2]
    replicas, rest = divmod(plan.devices, inside)
    assert rest == 0
    assert (
        int(found["--global-batch-size"] or 0) % (int(found["--micro-batch-size"] or 0) * replicas)
        == 0
    )
    assert int(found["--seq-length"] or 0) % (2 * ranks[2]) == 0
    if "--hybrid-context-parallel" in found:
        assert "--calculate-per-token-loss" in found
        assert (found["--dataloader-type"], ranks[1]) == ("single", 1)


def test_several_degrees_are_hybrid_context_parallelism() -> None:
    exported = exported_plan(mixed(), "megatron")
    found = options_of(exported.text)
    assert found["--max-seqlen-per-dp-cp-rank"] == "100"
    assert found["--context-parallel-size"] == "1"
    assert found["--seq-length"] == "350"
    # 350 tokens take 4 ranks, 150 two, 90 and 80 one each (two in the plan), 60 one.
    assert "the degree of 2 of 5 sequences: the least that holds it is taken" in exported.lost
    assert "5 sequences a step: taken as 8, a multiple of 8 replicas" in exported.lost
    assert "ranks without a group in 2 micro-batches" in exported.lost
    # Where the plan has no limit, the most tokens that it gives to a rank.
    assert megatron(mixed(None))["--max-seqlen-per-dp-cp-rank"] == "88"


@pytest.mark.parametrize(("degree", "tokens"), [(1, "102"), (2, "104"), (4, "104"), (8, "112")])
def test_one_degree_is_context_parallelism_by_all_to_all(degree: int, tokens: str) -> None:
    found = megatron(uniform(degree))
    assert found["--context-parallel-size"] == str(degree)
    assert found.get("--cp-comm-type") == ("a2a" if degree > 1 else None)
    assert found["--seq-length"] == tokens
    assert found["--global-batch-size"] == str(2 * 8 // degree)
    assert "--hybrid-context-parallel" not in found


def test_a_shape_of_tensor_and_context_ranks_keeps_both() -> None:
    plan = uniform(8)
    account = {"tensor": 4, "context": 2, "exchange": "ring"}
    shaped = replace(plan, batches=tuple(replace(b, solver=account) for b in plan.batches))
    found = megatron(shaped)
    assert found["--tensor-model-parallel-size"] == "4"
    assert (found["--context-parallel-size"], found["--cp-comm-type"]) == ("2", "p2p")
    assert {"--sequence-parallel", "--use-distributed-optimizer"} <= found.keys()


def test_pipelines_keep_their_stages_and_say_what_is_lost() -> None:
    exported = exported_plan(pipelines(), "megatron")
    found = options_of(exported.text)
    assert found["--pipeline-model-parallel-size"] == "2"
    assert found["--context-parallel-size"] == "2"
    assert found["--global-batch-size"] == "4"
    assert [line.split(",")[0] for line in exported.lost] == [
        "which slices of sequences a chunk has",
        "sequences cut over several chunks",
    ]
    assert exported.beside == ()


def keys_of(config: Mapping[str, Any]) -> set[tuple[str, str]]:
    nested = {
        (key, name) for key, value in config.items() if isinstance(value, dict) for name in value
    }
    return nested | {("", key) for key in config}


@pytest.mark.parametrize("make", [mixed, uniform, lambda: uniform(1)])
def test_deepspeed_has_every_key_and_its_batch_adds_up(make: Any) -> None:
    config = json.loads(exported_plan(make(), "deepspeed").text)
    stored = STORED["deepspeed"]["options"]
    assert keys_of(config) <= {(group, key) for group, keys in stored.items() for key in keys}
    assert config["train_batch_size"] == (
        config["train_micro_batch_size_per_gpu"]
        * config["gradient_accumulation_steps"]
        * config["data_parallel_size"]
    )
    assert config["data_parallel_size"] * config["sequence_parallel_size"] == 8


def test_deepspeed_takes_the_smallest_degree_that_holds_the_longest_sequence() -> None:
    exported = exported_plan(mixed(), "deepspeed")
    config = json.loads(exported.text)
    assert config["sequence_parallel_size"] == 4
    assert config["train_batch_size"] == 6
    assert "the degree of 4 of 5 sequences: 4 is taken for all" in exported.lost
    with pytest.raises(PlanError, match="allowed with deepspeed: what a power of two"):
        exported_plan(mixed(40), "deepspeed")


@given(st.lists(st.integers(1, 400), min_size=1, max_size=6), st.integers(1, 64))
def test_megatrons_degree_is_its_own_formula(lengths: list[int], held: int) -> None:
    """``gpus_needed`` of hybrid_cp_schedule.py, by trying every power of two."""
    from railx.exchange.plans import _smallest_degree

    for length in lengths:
        assert _smallest_degree(length, held) == next(
            2**power for power in range(20) if 2**power * held >= length
        )


@pytest.mark.parametrize("make", [mixed, uniform])
def test_groups_are_those_of_the_plan(make: Any) -> None:
    plan = make()
    written = json.loads(exported_plan(plan, "groups").text)
    jsonschema.validate(written, SCHEMA, cls=jsonschema.Draft202012Validator)
    assert written == groups_file(plan)
    batches = plan.sequence_parallel_batches()
    for batch, plain in zip(batches, written["batches"], strict=True):
        assert plain["tokens"] == sum(batch.lengths)
        for micro, plain_micro in zip(batch.micro_batches, plain["micro_batches"], strict=True):
            assert [
                (tuple(g["ranks"]), tuple(g["sequences"]), tuple(g["lengths"]))
                for g in plain_micro["groups"]
            ] == [(g.ranks, g.sequences, g.lengths) for g in micro.groups]
            assert all(g["degree"] == len(g["ranks"]) for g in plain_micro["groups"])
    # What no option says stands beside the options.
    for form in ("megatron", "deepspeed"):
        ((ending, text),) = exported_plan(plan, form).beside
        assert (ending, json.loads(text)) == (".groups.json", written)


@pytest.mark.parametrize("form", ["deepspeed", "groups"])
def test_pipelines_are_refused_where_a_program_has_no_words_for_them(form: str) -> None:
    with pytest.raises(PlanError, match=f"--format: got {form} for pipelines"):
        exported_plan(pipelines(), form)


def test_a_plan_that_cannot_be_said_is_refused() -> None:
    with pytest.raises(PlanError, match=r"settings\.model: is missing"):
        exported_plan(replace(mixed(), settings={}), "megatron")
    odd = replace(mixed(), devices=9)
    with pytest.raises(PlanError, match="an even number of ranks"):
        exported_plan(odd, "megatron")


def test_the_command_has_the_formats() -> None:
    assert STAGE.by_hand is not None
    assert STAGE.by_hand.formats == PLAN_FORMATS
