"""Plan files: JSON with a schema version, and the rules of the format.

Beside the plan a file contains derived values, each group's degree and each batch's
total time, and a digest of everything. A file with a wrong derived value or digest is
refused; a plan written by hand may leave the digest out. Then its bound, solver and
effort are not read, as nothing holds them. What a planner says of itself, its name, the
seed and its account (``solver``), is not checked in any file.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from railx.errors import UserError
from railx.io import read_json, write_json
from railx.planning.format.parts import Chunk, Group, Pipeline, PlanError, agree, confirm, refused
from railx.planning.format.plan import (
    SCHEMA,
    Batch,
    PipelineBatch,
    Plan,
    SequenceParallelBatch,
    layers_of,
    sequence_lengths,
)
from railx.planning.format.predictions import check_predictions, named_cost_model
from railx.planning.format.schedule import check_order, live_sizes, stage_layers
from railx.settings import PowerOfTwo, SettingsError, load, to_dict

#: The batches of a plan by its kind.
_BATCH_TYPES: Mapping[str, type[Batch]] = {
    "sequence_parallel": SequenceParallelBatch,
    "pipeline": PipelineBatch,
}


def read_plan(path: str | Path) -> Plan:
    """Read and validate a plan; PlanError names a file that is none of this schema."""
    data = read_json(path, keys_once=True)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        got = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise refused(str(path), f"schema is {got!r}", SCHEMA)
    try:
        kind, batch_types = data.get("kind"), _BATCH_TYPES
        if not isinstance(kind, str) or kind not in batch_types:
            raise SettingsError("kind", f"got {kind!r}; allowed: {', '.join(batch_types)}")
        batch_type = batch_types[kind]
        hint: Any = tuple[batch_type, ...]  # type: ignore[valid-type]
        batches: tuple[Batch, ...] = load(hint, _bare(data.get("batches")), "batches")
        rest = {key: value for key, value in data.items() if key != "digest"}
        plan: Plan = load(Plan, rest | {"batches": batches})
        _check_finite(plan.settings, "settings")
        for index, batch in enumerate(batches):
            _check_finite(batch.solver, f"batches[{index}].solver")
        validate_plan(plan)
        _check_derived(data, plan_file(plan))
        if data.get("digest") is None:
            claims: dict[str, Any] = {"lower_bound_ms": None, "solved_by": None, "effort": None}
            plan = replace(plan, batches=tuple(replace(batch, **claims) for batch in batches))
    except (SettingsError, PlanError) as error:
        raise PlanError(f"{path}: {error}") from None
    return plan


def write_plan(path: str | Path, plan: Plan) -> None:
    """Validate and write a plan as JSON, atomically."""
    validate_plan(plan)
    write_json(path, plan_file(plan))


def plan_file(plan: Plan) -> dict[str, Any]:
    """The file of a valid plan as plain data."""
    data: dict[str, Any] = to_dict(plan)
    for batch, plain in zip(plan.batches, data["batches"], strict=True):
        plain["predicted_ms"] = batch.predicted_ms
    for _, holder, key, _ in _derived(data["batches"]):
        if key == "degree":
            holder[key] = len(holder["ranks"])
    data["digest"] = _digest(data)
    return data


def validate_plan(plan: Plan) -> None:
    """Check every rule of the format; PlanError names batch, part and sequence."""
    model = named_cost_model(plan) if plan.predictions == "cost_model" else None
    if not plan.batches:
        raise PlanError("the plan has no batches; allowed: at least one")
    expected = _BATCH_TYPES[plan.kind]
    for batch in plan.batches:
        where = f"batch {batch.iteration}"
        if not isinstance(batch, expected):
            got = f"a {type(batch).__name__} in a plan of kind {plan.kind}"
            raise refused(where, got, expected.__name__)
        if isinstance(batch, SequenceParallelBatch):
            _validate_sequence_parallel(batch, plan, where)
        else:
            _validate_pipelines(batch, plan, where)
        _validate_batch(batch, where)
    if model is not None:
        check_predictions(plan, model)
    _unique((batch.iteration for batch in plan.batches), "the plan: iteration")


def _check_finite(value: Any, where: str) -> None:
    """Refuse numbers that JSON cannot hold in untyped parts of a file."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_finite(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_finite(item, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise refused(where, f"got {value!r}", "a finite number")


def _derived(batches: Any) -> Iterator[tuple[str, dict[str, Any], str, str]]:
    """Where a file's batches have derived values; what is no batch or group is skipped.

    Of each the place in words, the mapping and the key in it, and what it follows from.
    """
    for index, batch in enumerate(_dicts(batches)):
        where = f"batches[{index}]"
        yield f"{where}.predicted_ms", batch, "predicted_ms", "its time in all"
        micro_batches = _dicts(batch.get("micro_batches"))
        groups = (group for part in micro_batches for group in _dicts(part.get("groups")))
        for number, group in enumerate(groups):
            yield f"{where}, group {number}: degree", group, "degree", "its ranks"


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _bare(batches: Any) -> Any:
    """The batches of a file without their derived values."""
    bare = copy.deepcopy(batches)
    for _, holder, key, _ in _derived(bare):
        holder.pop(key, None)
    return bare


def _check_derived(data: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Refuse derived values that do not follow from the rest of the file."""
    pairs = zip(_derived(data["batches"]), _derived(expected["batches"]), strict=True)
    for (where, said, key, what), (_, right, _, _) in pairs:
        value = said.get(key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not agree(cast("float", value), right[key]):
            got = "is missing" if key not in said else f"got {value!r}"
            raise refused(where, got, f"{right[key]}, {what}")
    digest = data.get("digest")
    if digest is not None and digest != _digest(data):
        raise PlanError(
            f"digest: got {str(digest)[:12]!r}; allowed: {_digest(data)[:12]!r}, that of the rest"
            " of the file, which was changed since (or null: written by hand)"
        )


def _digest(data: Mapping[str, Any]) -> str:
    """SHA-256 of a file's data without the digest, however it is laid out."""
    rest = {key: value for key, value in data.items() if key != "digest"}
    text = json.dumps(_plain(rest), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # JSON can hold half of a surrogate pair, which UTF-8 cannot encode.
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _plain(value: Any) -> Any:
    """A value with 1.0 as 1, as JSON writers differ in that."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _validate_batch(batch: Batch, where: str) -> None:
    """Refuse sequences dropped, repeated or changed, and a bound above the time."""
    _unique((sequence for sequence, _ in sequence_lengths(batch)), f"{where}: sequence")
    if not batch.sequences or len(batch.sequences) != len(batch.lengths):
        got = f"made for {len(batch.sequences)} sequences and {len(batch.lengths)} lengths"
        raise refused(where, got, "the ids and lengths of the batch that was planned, at least one")
    _unique(batch.sequences, f"{where}: made for sequence")
    expected = dict(zip(batch.sequences, batch.lengths, strict=True))
    drawn = "the batch that the plan was made for"
    for sequence, length in sequence_lengths(batch):
        if sequence not in expected:
            raise refused(where, f"sequence {sequence}", f"the sequences of {drawn}")
        right = expected.pop(sequence)
        if length != right:
            inside = f"{where}, sequence {sequence}"
            raise refused(inside, f"length {length}", f"{right}, its length in {drawn}")
    if expected:
        got = f"sequence {next(iter(expected))} is dropped ({len(expected)} in all)"
        raise refused(where, got, f"every sequence of {drawn}")
    bound, time_ms = batch.lower_bound_ms or 0.0, batch.predicted_ms
    if bound > time_ms and not agree(bound, time_ms):
        raise refused(where, f"lower_bound_ms {bound}", f"at most {time_ms}, the predicted time")


def _validate_sequence_parallel(batch: SequenceParallelBatch, plan: Plan, where: str) -> None:
    for index, micro_batch in enumerate(batch.micro_batches):
        inside = f"{where}, micro-batch {index}"
        used = sum(group.degree for group in micro_batch.groups)
        if used > plan.devices:
            got = f"{len(micro_batch.groups)} groups of {used} ranks in all"
            raise refused(inside, got, f"at most {plan.devices}, the devices of the plan")
        for number, group in enumerate(micro_batch.groups):
            _validate_group(group, plan, f"{inside}, group {number}")
        slowest = max((group.predicted_ms for group in micro_batch.groups), default=0.0)
        said = micro_batch.predicted_ms
        confirm(inside, "predicted_ms", said, slowest, "that of its slowest group")
        _unique((rank for group in micro_batch.groups for rank in group.ranks), f"{inside}: rank")


def _validate_group(group: Group, plan: Plan, where: str) -> None:
    first, degree = (group.ranks[0] if group.ranks else -1), len(group.ranks)
    aligned = PowerOfTwo().accepts(degree)
    consecutive = group.ranks == tuple(range(first, first + degree))
    if not degree or not consecutive or (aligned and first % degree):
        multiple = f" that start at a multiple of {degree}" if aligned else ", at least one"
        raise refused(where, f"ranks {list(group.ranks)}", f"consecutive ranks{multiple}")
    if first + degree > plan.devices:
        raise refused(where, f"rank {first + degree - 1}", f"0 to {plan.devices - 1}")
    if not group.sequences or len(group.sequences) != len(group.lengths):
        got = f"{len(group.sequences)} sequences and {len(group.lengths)} lengths"
        raise refused(where, got, "one length each, at least one")
    for sequence, length in zip(group.sequences, group.lengths, strict=True):
        if length < 1:
            raise refused(f"{where}, sequence {sequence}", f"length {length}", "at least 1")
    if plan.tokens_per_device is not None and group.tokens > plan.tokens_per_device * degree:
        most = f"at most {plan.tokens_per_device * degree}, what {degree} ranks hold"
        raise refused(where, f"{group.tokens} tokens", most)
    other_ms = group.predicted_other_ms.values()
    total_ms = sum((group.predicted_compute_ms, group.predicted_all_to_all_ms, *other_ms))
    together = "compute, all-to-all and other terms together"
    confirm(where, "predicted_ms", group.predicted_ms, total_ms, together)


def _validate_pipelines(batch: PipelineBatch, plan: Plan, where: str) -> None:
    fields = {"stages": "stages", "degree": "ranks a stage", "virtual_stages": "virtual stages"}
    for field, what in fields.items():
        # A rank keeps its layers, in other batches too.
        together = (*batch.pipelines, *plan.pipeline_batches()[0].pipelines[:1])
        counts = {getattr(pipeline, field) for pipeline in together}
        if len(counts) != 1:
            got = f"pipelines with {sorted(counts)} {what}"
            raise refused(where, got, "the same number in every pipeline")
    for index, pipeline in enumerate(batch.pipelines):
        inside = f"{where}, pipeline {index}"
        if not PowerOfTwo().accepts(pipeline.degree):
            raise refused(inside, f"{pipeline.degree} ranks a stage", PowerOfTwo().allowed)
        if pipeline.ranks[-1] >= plan.devices:
            raise refused(inside, f"rank {pipeline.ranks[-1]}", f"0 to {plan.devices - 1}")
        if not pipeline.chunks:
            raise refused(inside, "no chunks", "at least one")
        for number, chunk in enumerate(pipeline.chunks):
            _validate_chunk(chunk, pipeline.model_stages, f"{inside}, chunk {number}")
        _validate_coverage(pipeline, inside)
        _validate_schedule(pipeline, plan, inside)
        _validate_memory(pipeline, plan.tokens_per_device, inside)


def _validate_chunk(chunk: Chunk, stages: int, where: str) -> None:
    if not chunk.slices:
        raise refused(where, "no slices", "at least one")
    for part in chunk.slices:
        inside = f"{where}, sequence {part.sequence}"
        if not 0 <= part.start < part.stop <= part.length:
            got = f"slice {part.start} to {part.stop} of {part.length} tokens"
            raise refused(inside, got, "a non-empty slice within the sequence")
        if part.stop < part.length and len(chunk.slices) > 1:
            got = "a slice before the tail beside other slices"
            raise refused(inside, got, "alone in its chunk")
    if chunk.predicted_weight_ms > chunk.predicted_backward_ms:
        most = f"{chunk.predicted_backward_ms}, predicted_backward_ms, of which it is a part"
        got = f"predicted_weight_ms {chunk.predicted_weight_ms}"
        raise refused(where, got, f"at most {most}")
    with_context = [part.sequence for part in chunk.slices if part.start > 0]
    if len(with_context) > 1:
        allowed = "at most one slice with context (two tails never together)"
        raise refused(where, f"sequences {with_context} have context", allowed)
    if chunk.checkpoint_layers and len(chunk.checkpoint_layers) != stages:
        got = f"{len(chunk.checkpoint_layers)} checkpoint counts"
        raise refused(where, got, f"none or one for each of {stages} stages")


def _validate_coverage(pipeline: Pipeline, where: str) -> None:
    """Slices cover each sequence once, left to right, in neighbouring chunks.

    The backward order of 1F1B needs neighbouring chunks.
    """
    seen: dict[int, tuple[int, int, int]] = {}  # sequence -> (tokens covered, length, last chunk)
    for number, chunk in enumerate(pipeline.chunks):
        for part in chunk.slices:
            covered, length, last = seen.get(part.sequence, (0, part.length, number - 1))
            inside = f"{where}, chunk {number}, sequence {part.sequence}"
            if part.length != length:
                got = f"length {part.length} after {length}"
                raise refused(inside, got, "the same length in every slice")
            if part.start != covered:
                got = f"slice starts at {part.start}"
                raise refused(inside, got, f"{covered}, where the slice before it ends")
            if number != last + 1:
                got = f"previous slice is in chunk {last}"
                raise refused(inside, got, f"the chunk before, {number - 1}")
            seen[part.sequence] = (part.stop, length, number)
    for sequence, (covered, length, last) in seen.items():
        if covered != length:
            inside = f"{where}, chunk {last}, sequence {sequence}"
            raise refused(inside, f"slices end at {covered}", f"{length}, the whole sequence")


def _validate_schedule(pipeline: Pipeline, plan: Plan, where: str) -> None:
    """Refuse an order that cannot run, and more recomputed layers than a stage has."""
    if pipeline.virtual_stages > 1 and pipeline.schedule != "interleaved":
        got = f"virtual_stages {pipeline.virtual_stages} with schedule {pipeline.schedule}"
        raise refused(where, got, "1, or schedule interleaved")
    check_order(pipeline, where)
    layers = layers_of(plan)
    if layers is None:
        return
    try:
        counts = list(map(len, stage_layers(layers, pipeline.model_stages)))
    except UserError as error:
        raise PlanError(f"{where}: {error}") from None
    for number, chunk in enumerate(pipeline.chunks):
        for stage, recomputed in enumerate(chunk.checkpoint_layers):
            if recomputed > counts[stage]:
                got = f"{recomputed} checkpointed layers of stage {stage}"
                most = f"at most {counts[stage]}, the layers that it has"
                raise refused(f"{where}, chunk {number}", got, most)


def _validate_memory(pipeline: Pipeline, tokens_per_device: int | None, where: str) -> None:
    """Refuse a stage with more live tokens than its ranks hold.

    A stage has only its share of the layers, so its ranks hold ``stages`` times as many
    tokens as of the whole model. Chunks with recomputed layers do not count: a plan
    does not record how much of their memory stays.
    """
    if tokens_per_device is None:
        return
    # A virtual stage has its share of a stage's layers.
    most = tokens_per_device * pipeline.degree * pipeline.model_stages

    def counted(model_stage: int, number: int) -> int:
        chunk = pipeline.chunks[number]
        return 0 if chunk.recomputed_layers(model_stage) else chunk.tokens

    for stage, chunk, tokens in live_sizes(pipeline, counted):
        if tokens > most:
            got = f"stage {stage} then holds {tokens:.0f} tokens"
            allowed = f"at most {most}, what its {pipeline.degree} ranks hold"
            raise refused(f"{where}, chunk {chunk}", got, allowed)


def _unique(items: Iterable[int], what: str) -> None:
    seen: set[int] = set()
    for item in items:
        if item in seen:
            raise PlanError(f"{what} {item} appears twice; allowed: exactly once")
        seen.add(item)
