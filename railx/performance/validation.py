"""The model held against measured runs: sets of rows, errors, fits.

A measured set is a CSV whose columns say what ran and how long it took. Its reader
turns rows into cases: a model, a plan, a device. The same readers take a user's file
with the columns of one of the given ones.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from railx.errors import UserError
from railx.performance.closed import step_times
from railx.performance.devices import device_named
from railx.performance.layers import Setting
from railx.performance.memory import step_memory
from railx.performance.models import Model, model_named
from railx.performance.networks import TwoLevelRing
from railx.performance.plans import Array, Plan, Plans
from railx.performance.programs import Constants, default_constants, program_named
from railx.performance.search import Job, candidates, search
from railx.settings import load

_T = TypeVar("_T")
_GIB = 2**30
#: The largest number of a row, and the inverse of the least that it measures.
_MOST = 1e9


@dataclass(frozen=True)
class Case:
    """A measured run: what ran, and what was measured (None: not printed)."""

    model: Model
    plan: Plan
    device: str
    precision: str
    recipe: str = ""
    seconds: float | None = None
    memory_gib: float | None = None
    activations_only: bool = False
    slow_gb_s: float | None = None
    """Bandwidth of a device between nodes; None: that of the device."""
    asynchronous_tensor: bool = False
    program: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Device and precision as the file says them, for groups of errors."""


@dataclass(frozen=True)
class MeasuredSet:
    """Rows of one kind: the columns that its files have and how a row is read."""

    name: str
    program: str
    columns: tuple[str, ...]
    read: Callable[[Mapping[str, str]], Case | None]


@dataclass(frozen=True)
class GroupError:
    """Errors of the cases of a group: relative, ours against measured."""

    group: str
    rows: int
    mean_error: float
    median_ratio: float
    worst_error: float


#: GPT-2's vocabulary as Megatron pads it.
_MEGATRON_VOCABULARY = 51200


@cache
def _megatron_model(hidden: int, heads: int, layers: int, wide: int) -> Model:
    return Model(
        f"gpt_h{hidden}_l{layers}",
        layers,
        hidden,
        heads,
        heads,
        wide,
        _MEGATRON_VOCABULARY,
        activation="gelu",
        biases=True,
        tied_embeddings=True,
        learned_positions=2048,
    )


def _plan(number: Mapping[str, int], virtual: int = 1, **more: Any) -> Plan:
    """The plan with the degrees and sizes among the numbers of a row, and ``more``."""
    degrees = {name: number[name] for name in _OF_PLAN if name in number}
    schedule = "interleaved" if virtual > 1 else "1f1b"
    return Plan(**{**degrees, "virtual": virtual, "schedule": schedule, **more})


def _word(row: Mapping[str, str], column: str, words: Mapping[str, _T]) -> _T:
    """What the word in a column stands for; ValueError for any other word."""
    if row[column] not in words:
        raise ValueError(f"{column}: got {row[column]!r}; allowed: {', '.join(words)}")
    return words[row[column]]


def _precision(row: Mapping[str, str], column: str, words: Mapping[str, _T]) -> _T:
    """The same of a precision: the word that its cell begins with (FP8-CS, FP8-MX)."""
    word = next((word for word in words if row[column].startswith(word)), row[column])
    return _word({column: word}, column, words)


def _whole(text: str) -> int:
    """An integer, which may be written as 52.0."""
    if (value := float(text)) != int(value):
        raise ValueError(f"got {text}; allowed: an integer")
    return int(value)


def _micro_batches(number: Mapping[str, int], data: int) -> int:
    """Micro-batches of a replica; ValueError where they do not divide the batch."""
    step = data * number["micro_batch"]
    if number["global_batch"] % step:
        raise ValueError(f"global_batch {number['global_batch']} is no multiple of {step}")
    return number["global_batch"] // step


def _megatron(
    row: Mapping[str, str],
    number: Mapping[str, int],
    seconds: tuple[str, float],
    slow_gb_s: float | None = None,
) -> Case:
    """A run of Megatron-LM. ``seconds``: the column of the time and its unit."""
    hidden, data = number["hidden"], number["data"]
    wide = number.get("feedforward", 4 * hidden)
    plan = _plan(
        number,
        number.get("virtual", 1),
        micro_batches=_micro_batches(number, data),
        recompute=_word(row, "recompute", _RECOMPUTED),
        sequence_parallel="sequence_parallel" in row and _word(row, "sequence_parallel", _FLAGS),
    )
    column, unit = seconds
    return Case(
        _megatron_model(hidden, number["heads"], number["layers"], wide),
        plan,
        _word(row, "device", _DEVICES),
        "fp16",
        seconds=float(row[column]) / unit,
        slow_gb_s=slow_gb_s,
        labels={"device": row["device"]},
    )


def _vtrain(row: Mapping[str, str]) -> Case:
    number = {name: _whole(row[name]) for name in _VTRAIN[:9]}
    # vTrain's configuration: 800 Gb/s between nodes for each node of 8.
    return _megatron(row, number, ("iteration_ms", 1e3), 12.5)


def _selene(row: Mapping[str, str]) -> Case:
    number = {name: _whole(row[name]) for name in _SELENE[:12]}
    return _megatron(row, number, ("iteration_s", 1.0))


def _selene_memory(row: Mapping[str, str]) -> Case:
    *shape, virtual = _word(row, "model", _SELENE_SHAPES)
    selective = _word(row, "mode", {"none": False, "seqsel": True})
    number = {name: int(row[name]) for name in ("pipeline", "tensor", "micro_batch")}
    plan = _plan(
        number,
        virtual,
        # No fewer than an interleaved pipeline keeps.
        micro_batches=2 * number["pipeline"],
        sequence_tokens=2048,
        recompute="selective" if selective else "none",
        sequence_parallel=selective,
    )
    return Case(
        _megatron_model(*shape),
        plan,
        "a100_80gb",
        "fp16",
        memory_gib=float(row["activations_gib"]),
        activations_only=True,
    )


def _mosaic(row: Mapping[str, str]) -> Case | None:
    base = model_named(f"mpt_{row['Model']}")
    tokens = int(row["SeqLen (T)"])
    devices, micro, accumulated = (
        int(row[name]) for name in ("# GPUs", "MicroBatchSize", "GradAccum")
    )
    precision = _precision(row, "Precision", _MOSAIC_PRECISIONS)
    plan = Plan(
        data=devices,
        micro_batch=micro,
        micro_batches=accumulated,
        sequence_tokens=tokens,
        sharding=_word(row, "Sharding Strategy", _MOSAIC_SHARDINGS),
        recompute="full" if _word(row, "Activation Checkpointing", _FLAGS) else "none",
    )
    return Case(
        replace(base, learned_positions=tokens),
        plan,
        row["GPU"],
        precision,
        recipe=row["Precision"] if precision == "fp8" else "",
        seconds=int(row["GlobalBatchSize (T)"]) / float(row["Throughput (T/s)"]),
        labels={"device": row["GPU"], "precision": row["Precision"]},
    )


def _torchtitan(row: Mapping[str, str]) -> Case:
    number = {name: int(row[name]) for name in _TORCHTITAN[2:9]}
    virtual = 2 if "interleaved" in row["note"] else 1
    float8 = _precision(row, "precision", {"bf16": False, "float8": True})
    local = number["local_batch"]
    # torchtitan cuts a pipeline's local batch into micro-batches of one sequence.
    micro_batch, micro_batches = (1, local) if number["pipeline"] > 1 else (local, 1)
    plan = _plan(
        number,
        virtual,
        data=number["fsdp"],
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        sharding="parameters" if number["fsdp"] * number["context"] > 1 else "replicated",
        recompute=_word(row, "recompute", _RECOMPUTED),
        sequence_parallel=number["tensor"] > 1,
    )
    compiled = "compile" in row["note"] or "TP" in row["note"]
    recipe = (row["precision"] if float8 else "bf16") + (" compiled" if compiled else " eager")
    return Case(
        model_named(_LLAMAS[row["model"].rsplit("-", 1)[-1]]),
        plan,
        _word(row, "device", _DEVICES),
        "fp8" if float8 else "bf16",
        recipe=recipe,
        asynchronous_tensor="async TP" in row["note"],
        seconds=plan.tokens / (float(row["tokens_s_gpu"]) * number["gpus"]),
        memory_gib=float(row["memory_gib"]) if row["memory_gib"] else None,
        labels={"device": row["device"], "precision": row["precision"]},
    )


def _nemo(row: Mapping[str, str]) -> Case:
    number = {name: int(row[name] or 1) for name in _NEMO[2:12]}
    ranks = number["tensor"] * number["pipeline"] * number["context"]
    data = number["gpus"] // ranks
    plan = _plan(
        number,
        number["virtual"] if number["pipeline"] > 1 else 1,
        data=data,
        micro_batches=_micro_batches(number, data),
        sharding=_word(row, "fsdp", {"0": "optimizer", "1": "parameters"}),
        sequence_parallel=number["tensor"] > 1,
    )
    precision = _precision(row, "precision", {"BF16": "bf16", "FP8": "fp8", "NVFP4": "fp4"})
    return Case(
        model_named(_word(row, "model", _NEMO_MODELS)),
        plan,
        device_named(row["device"].lower()).name,
        precision,
        seconds=plan.tokens / (float(row["tokens_s_gpu"]) * number["gpus"]),
        labels={"device": row["device"], "precision": row["precision"]},
    )


def _mlperf(row: Mapping[str, str]) -> Case | None:
    """A run of known micro-batches; its degrees are those that we find fastest."""
    system = re.search(r"eos\S*_n(\d+)|(b200)_n(\d+)|(\d+)xBM\.GPU\.H100", row["submission"])
    if not system or not row["step_s_median"]:
        return None
    eos_nodes, b200, b200_nodes, h100s = system.groups()
    device = device_named("b200" if b200 else "h100").name
    devices = int(h100s or 8 * int(eos_nodes or b200_nodes))
    plan = _fastest(device, devices, int(row["global_batch"]), int(row["accumulation"]))
    return Case(
        model_named("gpt3_175b"),
        plan,
        device,
        "fp8",
        seconds=float(row["step_s_median"]),
        labels={"device": device},
    )


@cache
def _fastest(device_name: str, devices: int, global_batch: int, micro_batches: int) -> Plan:
    device, program = device_named(device_name), program_named("megatron_bridge")
    constants = default_constants(device.name, program.name)
    network = TwoLevelRing.of(
        device, fast_share=constants.fast_share, slow_share=constants.slow_share
    )
    model = model_named("gpt3_175b")
    setting = Setting(model, device, network, program, constants, "fp8")
    job = Job(devices, global_batch, 2048)
    plans = candidates(model, job, device.node_devices)
    alike = (plans.devices == devices) & (plans["micro_batches"] == micro_batches)
    return search(setting, job, plans.take(alike)).plans.plan(0)


#: Numbers of a row that are fields of a plan.
_OF_PLAN = (*("data", "tensor", "pipeline", "context", "expert", "micro_batch", "sequence_tokens"),)
_NEMO_MODELS = {
    "LLAMA3_8B": "llama3_8b",
    "LLAMA3_70B": "llama3_70b",
    "LLAMA3.1_405B": "llama3_405b",
    "DeepSeekV3": "deepseek_v3",
    "GPT OSS 120B": "gpt_oss_120b",
    "Qwen3_235B_a22B": "qwen3_235b_a22b",
}
_NEMO = (
    *("device", "model", "gpus", "global_batch", "micro_batch"),
    *("sequence_tokens", "tensor", "pipeline", "context", "virtual"),
    *("expert", "accumulation", "precision", "fsdp", "tokens_s_gpu"),
)
#: What is recomputed, as the files say it.
_RECOMPUTED = {"full": "full", "none": "none", "attn_only": "selective"} | dict.fromkeys(
    ("selective", "selective per op"), "selective"
)
#: A spreadsheet writes them in capitals.
_FLAGS = {"True": True, "False": False, "TRUE": True, "FALSE": False}
_MOSAIC_PRECISIONS = {"bf16": "bf16", "amp_bf16": "bf16", "amp_fp8": "fp8"}
_MOSAIC_SHARDINGS: dict[str, Any] = {
    "FULL_SHARD": "parameters",
    "SHARD_GRAD_OP": "gradients",
    "NO_SHARD": "replicated",
}
_DEVICES = {
    "A100-80GB": "a100_80gb",
    "A100-80GB (Selene)": "a100_80gb",
    "H100-96GB-500W": "h100_96gb_500w",
    "H200": "h200",
}
_LLAMAS = {"8B": "llama3_8b", "70B": "llama3_70b", "405B": "llama3_405b"}
#: Hidden, heads, layers, feed-forward width and virtual stages of Selene's models
#: (arXiv 2205.05198, table 3).
_SELENE_SHAPES = {
    "megatron-22B": (6144, 64, 48, 24576, 1),
    "gpt3-175B": (12288, 96, 96, 49152, 3),
    "turing-530B": (20480, 128, 105, 81920, 3),
    "megatron-1T": (25600, 160, 128, 102400, 1),
}
_VTRAIN = (
    *("global_batch", "micro_batch", "hidden", "heads", "layers", "sequence_tokens"),
    *("tensor", "data", "pipeline", "iteration_ms", "device", "recompute"),
)
_SELENE = (
    *("hidden", "feedforward", "heads", "layers", "sequence_tokens", "gpus"),
    *("tensor", "pipeline", "data", "virtual", "global_batch", "micro_batch"),
    *("recompute", "sequence_parallel", "iteration_s", "device"),
)
_TORCHTITAN = (
    *("model", "device", "gpus", "fsdp", "tensor", "pipeline", "context", "sequence_tokens"),
    *("local_batch", "precision", "recompute", "note", "tokens_s_gpu", "memory_gib"),
)
_MOSAIC = (
    *("Model", "SeqLen (T)", "# GPUs", "GPU", "MicroBatchSize", "GradAccum", "GlobalBatchSize (T)"),
    *("Throughput (T/s)", "Precision", "Sharding Strategy", "Activation Checkpointing"),
)
_MLPERF = ("round", "submission", "global_batch", "accumulation", "step_s_median")
_MEMORY = ("model", "mode", "tensor", "pipeline", "micro_batch", "activations_gib")
_SETS = (
    MeasuredSet("vtrain", "megatron", _VTRAIN, _vtrain),
    MeasuredSet("selene", "megatron", _SELENE, _selene),
    MeasuredSet("selene_memory", "megatron", _MEMORY, _selene_memory),
    MeasuredSet("mosaic", "llm_foundry", _MOSAIC, _mosaic),
    MeasuredSet("torchtitan", "torchtitan", _TORCHTITAN, _torchtitan),
    MeasuredSet("nemo", "megatron_bridge", _NEMO, _nemo),
    MeasuredSet("mlperf", "megatron_bridge", _MLPERF, _mlperf),
)


def measured_set(columns: Iterable[str]) -> MeasuredSet:
    """The set whose columns a file has; :class:`UserError` names what is missing."""
    names = list(filter(None, columns))
    header = set(names)
    if len(header) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"columns: got {twice} twice; allowed: each once")
    for candidate in _SETS:
        if header.issuperset(candidate.columns):
            return candidate
    nearest = min(_SETS, key=lambda candidate: len(set(candidate.columns) - header))
    missing = [name for name in nearest.columns if name not in header]
    raise UserError(
        f"columns: got {', '.join(names[:3]) or 'none'}, nearest is {nearest.name} without"
        f" {', '.join(missing)}; allowed: between commas the columns of"
        f" {', '.join(candidate.name for candidate in _SETS)} in resources/measured"
    )


def read_set(path: Path) -> tuple[MeasuredSet, list[Case]]:
    """The set of a CSV file and its cases; errors name the file and the line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            rows = [(reader.line_num, row) for row in reader]
            kind = measured_set(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: got {error}; allowed: a file of CSV in UTF-8") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if not rows:
        raise UserError(f"{path}: no rows; allowed: one or more")
    cases = []
    for line, row in rows:
        try:
            case = _case(kind, row)
        except (KeyError, ValueError, ArithmeticError) as error:
            reason = f"got {error}" if isinstance(error, KeyError) else str(error)
            if reason.startswith(("could not convert string", "invalid literal")):
                column = next(name for name, text in row.items() if reason.endswith(repr(text)))
                reason = f"{column}: got {row[column]!r}; allowed: a number"
            if "allowed: " not in reason:
                reason += f"; allowed: a row as those of {kind.name} in resources/measured"
            raise UserError(f"{path} line {line}: {reason}") from None
        if case is not None:
            cases.append(replace(case, program=kind.program))
    if not cases:
        raise UserError(f"{path}: no row with a known plan; allowed: one or more")
    return kind, cases


def _case(kind: MeasuredSet, row: Mapping[str, str]) -> Case | None:
    """The case of a row; None where its plan is not known."""
    if None in row or None in row.values():
        raise ValueError("not as many cells as columns")
    case = kind.read(row)
    if case is None:
        return None
    for settings in (case.model, case.plan):
        load(type(settings), asdict(settings))
        for name, value in asdict(settings).items():
            if isinstance(value, int) and value > _MOST:
                raise ValueError(f"{name} is {value:g}, above {_MOST:g}")
    if case.plan.pipeline * case.plan.virtual > case.model.layers:
        raise ValueError(f"more stages than the {case.model.layers} layers")
    gpus = "" if case.activations_only else row.get("gpus", "")
    if gpus and _whole(gpus) != case.plan.devices:
        raise ValueError(f"gpus: got {gpus}; allowed: {case.plan.devices}, what the degrees make")
    for measured in (case.seconds, case.memory_gib):
        if measured is not None and not 1 / _MOST < measured < _MOST:
            raise ValueError(f"a time or memory of {measured:g} is measured")
    return case


#: Fields that cases of one setting share.
_ALIKE = ("model", "device", "precision", "recipe", "slow_gb_s", "asynchronous_tensor")


def _settings(
    cases: Sequence[Case], constants: Sequence[Constants]
) -> Iterable[tuple[Setting, list[int]]]:
    """Cases that share everything but the plan, with their numbers."""
    groups: dict[Any, list[int]] = {}
    for number, (case, values) in enumerate(zip(cases, constants, strict=True)):
        key = (id(values), *(getattr(case, name) for name in _ALIKE))
        groups.setdefault(key, []).append(number)
    for numbers in groups.values():
        case, values = cases[numbers[0]], constants[numbers[0]]
        device = device_named(case.device)
        network = TwoLevelRing.of(
            device,
            fast_share=values.fast_share,
            slow_share=values.slow_share,
            slow_gb_s=case.slow_gb_s,
        )
        program = program_named(values.program)
        run = case.precision, case.recipe, case.asynchronous_tensor
        yield Setting(case.model, device, network, program, values, *run), numbers


def predict(cases: Sequence[Case], constants: Sequence[Constants]) -> tuple[Array, Array]:
    """Seconds of a step and GiB of a device of every case, float[cases] each.

    ``constants``: those of each case. GiB are those of the activations where only these
    were measured.
    """
    seconds, memory = np.zeros(len(cases)), np.zeros(len(cases))
    for setting, numbers in _settings(cases, constants):
        plans = Plans.of([cases[number].plan for number in numbers])
        seconds[numbers] = step_times(setting, plans).total_s
        used = step_memory(setting, plans)
        only = cases[numbers[0]].activations_only
        memory[numbers] = (used.parts["activations"] if only else used.total_bytes) / _GIB
    return seconds, memory


def group_masks(cases: Sequence[Case]) -> dict[str, Array]:
    """The cases of every group of errors, bool[cases] by its name.

    All cases; those of each device and precision, as the file says them; those of
    tensor parallelism of 16, which crosses nodes.
    """
    everything = np.ones(len(cases), bool)
    masks = {"all": everything}
    for label in ("device", "precision"):
        for value in dict.fromkeys(case.labels.get(label, "") for case in cases):
            if value:
                masks[f"{label} = {value}"] = np.array(
                    [case.labels.get(label) == value for case in cases]
                )
    wide = np.array([case.plan.tensor == 16 for case in cases])
    if wide.any():
        masks["tensor = 16"] = wide
    return masks


def errors_by_group(cases: Sequence[Case], seconds: Array, memory_gib: Array) -> list[GroupError]:
    """Mean, median ratio and worst of the errors of every group that has a measurement.

    Groups of memory have ``memory`` in their names; a file of memory alone has only
    these, and ``all`` is they.
    """
    measured = {
        "seconds": np.array([case.seconds or np.nan for case in cases], float),
        "memory": np.array([case.memory_gib or np.nan for case in cases], float),
    }
    ratios = {"seconds": seconds / measured["seconds"], "memory": memory_gib / measured["memory"]}
    timed = np.isfinite(measured["seconds"]).any()
    errors = []
    for quantity in ("seconds", "memory"):
        for name, mask in group_masks(cases).items():
            ratio = ratios[quantity][mask & np.isfinite(ratios[quantity])]
            if not len(ratio):
                continue
            if quantity == "memory" and timed:
                name = "memory" if name == "all" else f"memory, {name}"
            error = np.abs(ratio - 1)
            mean, median, worst = error.mean(), np.median(ratio), error.max()
            errors.append(GroupError(name, len(ratio), float(mean), float(median), float(worst)))
    if not timed:
        errors.append(replace(errors[0], group="memory"))
    return errors


def constants_of(cases: Sequence[Case], program: str) -> list[Constants]:
    """The constants of each case by default: those of its device and program."""
    return [default_constants(case.device, program) for case in cases]
