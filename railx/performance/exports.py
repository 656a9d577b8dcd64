"""Plans in the words of other programs: options of Megatron-LM, TOML of torchtitan."""

from __future__ import annotations

from collections.abc import Mapping

from railx.performance.models import Model
from railx.performance.plans import AXES, Plan

#: Placements of Megatron-LM and their flags (megatron/training/initialize.py).
_MEGATRON_ORDERS: dict[tuple[str, ...], list[str]] = {
    AXES: [],
    ("tensor", "context", "pipeline", "data"): ["use-tp-pp-dp-mapping"],
}


#: Options of Megatron-LM for a precision, beside bf16 where there is none for it.
_MEGATRON_PRECISIONS = {"fp8": {"fp8-format": "hybrid"}, "fp4": {"fp4-format": "e2m1"}}
#: Converters of torchtitan for a precision.
_TORCHTITAN_PRECISIONS = {"bf16": "", "fp8": '[model]\nconverters = ["quantize.linear.float8"]\n\n'}


def megatron_options(
    model: Model, plan: Plan, more: Mapping[str, object] | None = None, precision: str = "bf16"
) -> str:
    """Command-line options of Megatron-LM (megatron/training/arguments.py).

    Where the layers do not divide by the stages, each stage's are laid out one by one.
    ``more``: further options by name; one without a value is a flag.
    """
    options: dict[str, object] = {
        "num-layers": model.layers,
        "hidden-size": model.hidden,
        "ffn-hidden-size": model.feed_forward,
        "num-attention-heads": model.heads,
        "seq-length": plan.sequence_tokens,
        "max-position-embeddings": max(plan.sequence_tokens, model.learned_positions),
        "tensor-model-parallel-size": plan.tensor,
        "pipeline-model-parallel-size": plan.pipeline,
        "context-parallel-size": plan.context,
        "micro-batch-size": plan.micro_batch,
        "global-batch-size": plan.global_batch,
    }
    flags = list(_MEGATRON_ORDERS.get(plan.order, []))
    if model.kv_heads != model.heads:
        options["num-query-groups"] = model.kv_heads
        flags.append("group-query-attention")
    if model.kv_rank:
        flags.append("multi-latent-attention")
        options |= {
            "kv-lora-rank": model.kv_rank,
            "qk-head-dim": model.head_width - model.rope_width,
            "qk-pos-emb-head-dim": model.rope_width,
            "v-head-dim": model.value_width or model.head_width,
        }
        if model.query_rank:
            options["q-lora-rank"] = model.query_rank
    elif model.head_width:
        options["kv-channels"] = model.head_width
    if model.window_layers:
        full = model.layers - model.window_layers
        evenly = full and model.layers // (model.layers // full) == full
        # A window is what a query sees before itself. A number: the last of so many
        # layers has none; a list where they do not alternate.
        options["window-size"] = f"{model.window_tokens - 1},0"
        options["window-attn-skip-freq"] = (
            model.layers // full if evenly else f'"[1]*{model.window_layers}+[0]*{full}"'
        )
    if model.experts:
        options |= {
            "num-experts": model.experts,
            "moe-router-topk": model.experts_per_token,
            "moe-ffn-hidden-size": model.expert_feed_forward,
            "expert-model-parallel-size": plan.expert,
            "moe-token-dispatcher-type": "alltoall",
        }
        if model.shared_feed_forward:
            options["moe-shared-expert-intermediate-size"] = model.shared_feed_forward
        if model.dense_layers:
            sparse = model.layers - model.dense_layers
            options["moe-layer-freq"] = f'"[0]*{model.dense_layers}+[1]*{sparse}"'
    if plan.virtual > 1:
        options["num-layers-per-virtual-pipeline-stage"] = model.layers // (
            plan.pipeline * plan.virtual
        )
    few, left = divmod(model.layers, plan.pipeline)
    if left:
        layers = "|".join("t" * (few + (stage < left)) for stage in range(plan.pipeline))
        options["pipeline-model-parallel-layout"] = f'"E{layers}L"'
    if model.norm == "rms":
        options["normalization"] = "RMSNorm"
    flags += _megatron_flags(model)
    if plan.sequence_parallel:
        flags.append("sequence-parallel")
    if not model.learned_positions:
        options["position-embedding-type"] = "rope"
    if plan.sharding == "parameters":
        # Megatron-LM refuses FSDP2 without these two, and beside its own optimizer.
        flags += ["use-torch-fsdp2", "no-gradient-accumulation-fusion"]
        options["ckpt-format"] = "torch_dist"
    elif plan.sharding != "replicated":
        flags.append("use-distributed-optimizer")
    if plan.recompute != "none":
        options["recompute-granularity"] = plan.recompute
        if plan.recompute == "full":
            options["recompute-method"] = "uniform"
            options["recompute-num-layers"] = 1
    options |= _MEGATRON_PRECISIONS.get(precision, {})
    flags.append("fp16" if precision == "fp16" else "bf16")
    for name, value in (more or {}).items():
        if value is None:
            flags.append(name)
        else:
            options[name] = value
    lines = [f"--{name} {value}" for name, value in options.items()]
    text = " \\\n".join(lines + [f"--{flag}" for flag in flags])
    notes = _note_on_order(plan, plan.order in _MEGATRON_ORDERS)
    return notes + _megatron_refusals(model, plan) + text


def _megatron_flags(model: Model) -> list[str]:
    """Flags without a value of what the model's layers have."""
    kinds = {
        "swiglu": model.activation == "swiglu",
        "untie-embeddings-and-output-weights": not model.tied_embeddings,
        "disable-bias-linear": not model.biases,
        "add-qkv-bias": model.qkv_biases,
        # The same flag adds the norms of latent attention's compressions.
        "qk-layernorm": model.qk_norms or model.kv_rank,
    }
    return [flag for flag, has in kinds.items() if has]


def _megatron_refusals(model: Model, plan: Plan) -> str:
    """Lines of comment on what Megatron-LM refuses beside each other."""
    sharded = plan.sharding == "parameters"
    refused = {
        "FSDP2 beside tied embeddings": sharded and model.tied_embeddings,
        "FSDP2 beside expert parallelism": sharded and plan.expert > 1,
        "biases of experts beside tensor parallelism": (
            model.experts and model.biases and plan.tensor > 1
        ),
    }
    return "".join(f"# Megatron-LM refuses {what}\n" for what, is_so in refused.items() if is_so)


def torchtitan_toml(model: Model, plan: Plan, precision: str = "bf16") -> str:
    """Sections of a torchtitan job file (torchtitan/config/job_config.py).

    Sharding of less than the parameters is FSDP that gathers them once a step: DDP
    shards nothing, and experts lie over the ranks that shard.
    """
    sharded = plan.sharding != "replicated"
    # Its default gathers once a step where there are stages.
    reshard = "always" if plan.sharding == "parameters" else "never"
    schedule = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B", "gpipe": "GPipe"}[plan.schedule]
    # torchtitan's local batch is that of all micro-batches of a pipeline; without one,
    # gradients are accumulated until the global batch is full.
    local = plan.micro_batch * (plan.micro_batches if plan.pipeline > 1 else 1)
    # It has two virtual stages of each rank unless their layers are given, and by
    # default a layer fewer in the first and in the last stage.
    layers = -(-model.layers // (plan.pipeline * plan.virtual))
    virtual = f"pipeline_parallel_layers_per_stage = {layers}\n" if plan.virtual > 1 else ""
    unknown = "" if precision in _TORCHTITAN_PRECISIONS else f"# no option for {precision}\n"
    return f"""\
# {model.name}
{_note_on_order(plan, plan.order == AXES)}{unknown}\
{_TORCHTITAN_PRECISIONS.get(precision, "")}[training]
local_batch_size = {local}
global_batch_size = {plan.global_batch}
seq_len = {plan.sequence_tokens}

[parallelism]
data_parallel_replicate_degree = {1 if sharded else plan.data}
data_parallel_shard_degree = {plan.data if sharded else 1}
fsdp_reshard_after_forward = "{reshard}"
tensor_parallel_degree = {plan.tensor}
context_parallel_degree = {plan.context}
pipeline_parallel_degree = {plan.pipeline}
pipeline_parallel_schedule = "{schedule}"
{virtual}pipeline_parallel_first_stage_less_layers = 0
pipeline_parallel_last_stage_less_layers = 0
pipeline_parallel_microbatch_size = {plan.micro_batch}
expert_parallel_degree = {plan.expert}
expert_tensor_parallel_degree = {plan.tensor}

[activation_checkpoint]
mode = "{plan.recompute}"
selective_ac_option = "op"
"""


def _note_on_order(plan: Plan, offered: bool) -> str:
    """A line of comment where a program has no option for the placement of a plan."""
    return "" if offered else f"# no option for the placement {', '.join(plan.order)}\n"
