"""Plans of sequences in the words of other programs, and as plain groups.

* ``megatron``: options of Megatron-LM. Groups of one degree are context parallelism by
  all-to-all; those of several are its hybrid context parallelism, which gives each
  sequence the least power of two of ranks that holds it.
* ``deepspeed``: keys of a configuration of DeepSpeed, which knows one Ulysses degree.
* ``groups``: JSON that any trainer can read, ``resources/schemas/groups.schema.json``.

No option says which sequences a group processes; such losses are printed line by line,
and the groups are written beside the options. ``PROGRAMS`` names the commits whose
options these are; tests hold them against the stored lists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from railx.exchange.wires import Exported
from railx.performance.decoder import ModelSettings
from railx.performance.exports import megatron_options
from railx.performance.plans import Plan as Degrees
from railx.planning.format.parts import Group, PlanError
from railx.planning.format.plan import Plan, priced_zero_stage
from railx.settings import load

GROUPS_SCHEMA = "railx.groups/1"
PLAN_FORMATS = ("megatron", "deepspeed", "groups")
#: Where the options of a program were read: repository and commit.
PROGRAMS = {
    "megatron": ("NVIDIA/Megatron-LM", "d98e8a64ddf34856e74b24714e3bedb2f5a39553"),
    "deepspeed": ("deepspeedai/DeepSpeed", "edaa7221267243c7be7fb49c5d5f5c4fb97b4641"),
}
_SHARDINGS: dict[int, Any] = {1: "optimizer", 2: "gradients", 3: "parameters"}


def exported_plan(plan: Plan, form: str) -> Exported:
    """A plan in one of ``PLAN_FORMATS``.

    Raises :class:`railx.planning.format.parts.PlanError` for a plan that the format
    cannot hold at all.
    """
    if form == "groups":
        return Exported(_json(groups_file(plan)))
    if plan.kind == "pipeline":
        if form == "deepspeed":
            raise PlanError(
                "--format: got deepspeed for pipelines, which are code there (PipelineModule);"
                " allowed: megatron"
            )
        return _pipeline_options(plan)
    exported = _megatron(plan) if form == "megatron" else _deepspeed(plan)
    return replace(exported, beside=((".groups.json", _json(groups_file(plan))),))


def groups_file(plan: Plan) -> dict[str, Any]:
    """The groups of a sequence-parallel plan as plain data.

    Sequences are rows of the corpus, lengths their tokens. PlanError for a pipeline.
    """
    if plan.kind == "pipeline":
        raise PlanError(
            "--format: got groups for pipelines; allowed: megatron, or the plan itself (--out)"
        )
    return {
        "schema": GROUPS_SCHEMA,
        "planner": plan.planner,
        "ranks": plan.devices,
        "batches": [
            {
                "iteration": batch.iteration,
                "tokens": batch.tokens,
                "micro_batches": [
                    {"groups": [_group(group) for group in micro_batch.groups]}
                    for micro_batch in batch.micro_batches
                ],
            }
            for batch in plan.sequence_parallel_batches()
        ],
    }


def _group(group: Group) -> dict[str, Any]:
    return {
        "ranks": list(group.ranks),
        "degree": group.degree,
        "sequences": list(group.sequences),
        "lengths": list(group.lengths),
    }


def _json(data: Mapping[str, Any]) -> str:
    text = json.dumps(data, indent=1)
    # A list of numbers is one line.
    return re.sub(r"\[[\d,\s]+\]", lambda found: " ".join(found[0].split()), text) + "\n"


def _all_groups(plan: Plan) -> list[Group]:
    return [
        group
        for batch in plan.sequence_parallel_batches()
        for micro_batch in batch.micro_batches
        for group in micro_batch.groups
    ]


def _rank_tokens(plan: Plan) -> int:
    """Tokens of a rank: the plan's limit, or the most that it gives to one."""
    if plan.tokens_per_device is not None:
        return plan.tokens_per_device
    return max(ceil(group.tokens / group.degree) for group in _all_groups(plan))


def _batch_rows(plan: Plan, replicas: int) -> tuple[int, list[str]]:
    """Sequences of a step as a multiple of the replicas, and what that changes."""
    counts = [len(batch.sequences) for batch in plan.batches]
    rows = ceil(max(counts) / replicas) * replicas
    if set(counts) == {rows}:
        return rows, []
    given = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else str(counts[0])
    return rows, [f"{given} sequences a step: taken as {rows}, a multiple of {replicas} replicas"]


def _lost_everywhere(plan: Plan) -> list[str]:
    lost = ["which sequences form a micro-batch, and the ranks of each group"]
    idle = sum(
        plan.devices > sum(group.degree for group in micro_batch.groups)
        for batch in plan.sequence_parallel_batches()
        for micro_batch in batch.micro_batches
    )
    if idle:
        lost.append(f"ranks without a group in {idle} micro-batches")
    return lost


def _megatron(plan: Plan) -> Exported:
    groups = _all_groups(plan)
    degrees = {group.degree for group in groups}
    more: dict[str, object]
    lost: list[str] = []
    tensor, exchange = _shape(plan)
    if len(degrees) == 1:
        context = degrees.pop() // tensor
        # Rows of packed sequences, cut in two parts a rank.
        part = 2 * context
        tokens = ceil(max(group.tokens for group in groups) / part) * part
        replicas = plan.devices // (tensor * context)
        micro_batches = max(len(b.micro_batches) for b in plan.sequence_parallel_batches())
        rows = replicas * micro_batches
        more = {"sft": None}
        if context > 1:
            more["cp-comm-type"] = exchange
        lost.append(f"lengths: sequences are packed into rows of {tokens} tokens by the loader")
    else:
        if plan.devices % 2:
            raise PlanError(
                f"--format: got several degrees on {plan.devices} ranks; allowed with megatron: an"
                " even number of ranks, or one degree"
            )
        context, rank_tokens = 1, _rank_tokens(plan)
        longest = max(length for group in groups for length in group.lengths)
        tokens = ceil(longest / 2) * 2
        rows, lost = _batch_rows(plan, plan.devices)
        more = {
            "hybrid-context-parallel": None,
            "max-seqlen-per-dp-cp-rank": rank_tokens,
            "calculate-per-token-loss": None,
            "dataloader-type": "single",
            "sft": None,
        }
        lost += _other_degrees(groups, rank_tokens)
    split = Degrees(
        data=plan.devices // (tensor * context),
        tensor=tensor,
        context=context,
        sequence_tokens=tokens,
        micro_batches=rows * tensor * context // plan.devices,
        # Tensor parallelism comes with ZeRO-1 (railx.planning.rivals.megatron).
        sharding="optimizer" if tensor > 1 else _SHARDINGS[priced_zero_stage(plan) or 3],
        sequence_parallel=tensor > 1,
    )
    lost += _lost_everywhere(plan)
    return Exported(_options(plan, split, more, lost), tuple(lost))


def _other_degrees(groups: list[Group], rank_tokens: int) -> list[str]:
    """How many sequences get another degree where the least one is taken."""
    sequences = [(length, group.degree) for group in groups for length in group.lengths]
    others = sum(_smallest_degree(length, rank_tokens) != degree for length, degree in sequences)
    text = f"the degree of {others} of {len(sequences)} sequences: the least that holds it is taken"
    return [text] if others else []


def _smallest_degree(length: int, rank_tokens: int) -> int:
    """Megatron-LM's degree: the least power of two of ranks that holds a sequence."""
    return 1 << (ceil(length / rank_tokens) - 1).bit_length()


def _shape(plan: Plan) -> tuple[int, str]:
    """Tensor degree and exchange of groups that Megatron's own planner made."""
    shapes = {
        (int(batch.solver.get("tensor", 1)), batch.solver.get("exchange", "all_to_all"))
        for batch in plan.batches
    }
    if len(shapes) > 1:
        raise PlanError(f"--format: got shapes {sorted(shapes)} in one plan; allowed: one shape")
    ((tensor, exchange),) = shapes
    return tensor, "p2p" if exchange == "ring" else "a2a"


def _pipeline_options(plan: Plan) -> Exported:
    """Pipelines: their stages and degrees; chunks have no option."""
    batches = plan.pipeline_batches()
    first = batches[0].pipelines[0]
    replicas = plan.devices // (first.stages * first.degree)
    chunks = [chunk for batch in batches for p in batch.pipelines for chunk in p.chunks]
    part = 2 * first.degree
    tokens = ceil(max(chunk.tokens for chunk in chunks) / part) * part
    rows = max(
        sum(len(p.chunks) for p in batch.pipelines if p.replica == replica)
        for batch in batches
        for replica in range(replicas)
    )
    lost = ["which slices of sequences a chunk has, and the layers that it computes again"]
    explicit = any(p.order for batch in batches for p in batch.pipelines)
    if explicit or first.schedule not in ("1f1b", "interleaved"):
        order = "an explicit one" if explicit else first.schedule
        lost.append(f"the order of passes, {order}: 1F1B is taken")
    if any(not part.is_uncut for chunk in chunks for part in chunk.slices):
        lost.append("sequences cut over several chunks, whose keys and values stay")
    virtual = first.virtual_stages if first.schedule == "interleaved" else 1
    degrees = Degrees(
        data=replicas,
        context=first.degree,
        pipeline=first.stages,
        virtual=virtual,
        schedule="interleaved" if virtual > 1 else "1f1b",
        sequence_tokens=tokens,
        micro_batches=rows,
        sharding="optimizer",
    )
    more: dict[str, object] = {"sft": None}
    if first.degree > 1:
        more["cp-comm-type"] = "a2a"
    return Exported(_options(plan, degrees, more, lost), tuple(lost))


def _options(plan: Plan, degrees: Degrees, more: Mapping[str, object], lost: list[str]) -> str:
    """Megatron-LM's options below what they cannot say."""
    if "model" not in plan.settings:
        raise PlanError("settings.model: is missing; allowed: a plan that names its model")
    model: ModelSettings = load(ModelSettings, plan.settings["model"], "settings.model")
    positions = int(plan.settings.get("max_length_tokens", degrees.sequence_tokens))
    repository, commit = PROGRAMS["megatron"]
    head = [
        f"# options of {repository} at {commit[:12]}",
        *(f"# no option says: {x}" for x in lost),
    ]
    return "\n".join([*head, megatron_options(model.shape(positions), degrees, more), ""])


def _deepspeed(plan: Plan) -> Exported:
    groups = _all_groups(plan)
    rank_tokens = _rank_tokens(plan)
    longest = max(length for group in groups for length in group.lengths)
    powers = [1 << exponent for exponent in range(plan.devices.bit_length())]
    degree = next((d for d in powers if longest <= rank_tokens * d and plan.devices % d == 0), None)
    if degree is None:
        raise PlanError(
            f"--format: got a sequence of {longest} tokens on {plan.devices} ranks of"
            f" {rank_tokens}; allowed with deepspeed: what a power of two that divides the"
            " ranks holds"
        )
    replicas = plan.devices // degree
    rows, lost = _batch_rows(plan, replicas)
    others = sum(len(group.sequences) for group in groups if group.degree != degree)
    if others:
        count = sum(len(group.sequences) for group in groups)
        lost.append(f"the degree of {others} of {count} sequences: {degree} is taken for all")
    lost.append("packing: a row is one sequence, padded to the longest of its micro-batch")
    config = {
        "train_batch_size": rows,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": rows // replicas,
        "sequence_parallel_size": degree,
        "data_parallel_size": replicas,
        "zero_optimization": {"stage": priced_zero_stage(plan) or 3},
        "bf16": {"enabled": True},
    }
    return Exported(_json(config), (*lost, *_lost_everywhere(plan)))
