"""The plan format: frozen dataclasses, JSON with a schema version, and its rules.

A plan is the only thing that passes from a planner to the training runtime. It names
sequences by their row in the corpus file and carries their lengths after truncation, so
that a runtime needs the corpus and nothing else.

Two kinds (``Plan.kind``):

* ``sequence_parallel``: a batch is a list of micro-batches that run one after another;
  the groups of a micro-batch run side by side, each on consecutive ranks (Ulysses
  sequence parallelism with a degree per group, FlexSP). A group may have any number of
  ranks; one that has a power of two of them starts at a multiple of it, so that it lies
  inside a node wherever it can.
* ``pipeline``: a batch is a list of pipelines; those of one data-parallel replica run
  one after another, replicas side by side. A pipeline runs chunks in 1F1B order
  (InfiniPipe section III), in another that has a name or in one of its own. Each
  stage is a group of ``degree`` ranks that share the tokens of a chunk; rank =
  (replica * stages + stage) * degree + place.

Each batch carries the ids and lengths of the sequences that it was planned for, so that
a plan that dropped, repeated or changed one is refused when it is read. So is one that
gives a group more tokens than its ranks hold, where the plan knows how many that are.

Predicted times add up: a group's is compute, all-to-all and what else its planner
prices, a micro-batch's is its slowest group's, a batch's is their sum. Where
``predictions`` is ``cost_model`` they are worked out again from the cost model that the
plan names (``railx.planning.predictions``). A file also holds what follows from the
rest, each group's degree and each batch's total, and a digest of everything; a file in
which any of them does not fit is refused. Whoever writes a plan by hand leaves the
digest out.

This module needs the standard library, numpy and pyarrow alone (the last two through
``railx.io``).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from railx.errors import UserError
from railx.io import read_json, write_json
from railx.planning.simulation import ScheduleName
from railx.settings import AtLeast, NonNegative, NotEmpty, PowerOfTwo, SettingsError, load, to_dict

__all__ = [
    "SCHEMA",
    "Chunk",
    "ChunkKind",
    "Group",
    "MicroBatch",
    "Pipeline",
    "PipelineBatch",
    "Plan",
    "PlanError",
    "PlanKind",
    "Predictions",
    "ScheduleName",
    "SequenceParallelBatch",
    "Slice",
    "agree",
    "check_ranks",
    "layers_of",
    "plan_file",
    "priced_zero_stage",
    "read_plan",
    "sequence_lengths",
    "validate_plan",
    "write_plan",
]

SCHEMA: Literal["railx.plan/3"] = "railx.plan/3"

ChunkKind = Literal["batched", "split", "hybrid"]
#: The two formats of a plan.
PlanKind = Literal["sequence_parallel", "pipeline"]
#: Where predicted times come from: the cost model that ``settings`` name, or the
#: planner alone.
Predictions = Literal["cost_model", "own"]
_Count = Annotated[int, NonNegative()]
_Milliseconds = Annotated[float, NonNegative()]


class PlanError(UserError):
    """A plan that cannot be run.

    One line names the batch and the part, and what is allowed.
    """


@dataclass(frozen=True)
class Group:
    """One sequence-parallel group: the ranks that share the tokens of its sequences.

    The degree is the number of ranks. ``predicted_ms`` is compute, all-to-all and
    ``predicted_other_ms`` together: terms by name that its planner prices beyond them.
    """

    ranks: Annotated[tuple[_Count, ...], NotEmpty()]
    sequences: Annotated[tuple[_Count, ...], NotEmpty()]
    lengths: tuple[Annotated[int, AtLeast(1)], ...]
    predicted_ms: _Milliseconds
    predicted_compute_ms: _Milliseconds = 0.0
    predicted_all_to_all_ms: _Milliseconds = 0.0
    predicted_other_ms: Mapping[str, _Milliseconds] = field(default_factory=dict)

    @property
    def degree(self) -> int:
        return len(self.ranks)

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


@dataclass(frozen=True)
class MicroBatch:
    """Groups that run side by side; ranks in no group wait.

    ``predicted_ms`` is the slowest group's time.
    """

    groups: Annotated[tuple[Group, ...], NotEmpty()]
    predicted_ms: _Milliseconds

    @property
    def tokens(self) -> int:
        return sum(group.tokens for group in self.groups)


@dataclass(frozen=True)
class SequenceParallelBatch:
    """One training step: micro-batches one after another.

    ``solver`` is the planner's account of how it got there. ``sequences`` and
    ``lengths`` are the batch that it was made for: whoever draws the batch records
    them. ``lower_bound_ms`` is a time that no plan of the batch beats, ``solved_by``
    what found this one and ``effort`` how much work that took, in units of its own;
    None where nobody said. Work is no time, so that plans stay the same everywhere.
    """

    iteration: _Count
    micro_batches: Annotated[tuple[MicroBatch, ...], NotEmpty()]
    solver: Mapping[str, Any] = field(default_factory=dict)
    sequences: tuple[_Count, ...] = ()
    lengths: tuple[Annotated[int, AtLeast(1)], ...] = ()
    lower_bound_ms: _Milliseconds | None = None
    solved_by: str | None = None
    effort: _Count | None = None

    @property
    def predicted_ms(self) -> float:
        """Time of the whole batch: micro-batches run one after another."""
        return sum(micro_batch.predicted_ms for micro_batch in self.micro_batches)

    @property
    def tokens(self) -> int:
        return sum(micro_batch.tokens for micro_batch in self.micro_batches)


@dataclass(frozen=True)
class Slice:
    """Tokens ``start`` to ``stop`` (exclusive) of a sequence of ``length`` tokens.

    ``start`` tokens of context precede it.
    """

    sequence: _Count
    start: _Count
    stop: Annotated[int, AtLeast(1)]
    length: Annotated[int, AtLeast(1)]

    @property
    def tokens(self) -> int:
        return self.stop - self.start

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.stop == self.length


@dataclass(frozen=True)
class Chunk:
    """A micro-batch of a pipeline: slices processed together.

    Attention is kept within each sequence.

    ``predicted_*_ms`` hold on any one stage (stages have equally many layers);
    ``predicted_all_to_all_ms`` is the part of forward plus backward that is all-to-all.
    ``predicted_weight_ms`` is the part of backward that makes gradients of weights
    alone, which a zero-bubble schedule puts off. ``predicted_send_ms`` is what a
    message to a neighbouring stage takes, either way.
    ``checkpoint_layers[stage]`` layers are recomputed in the backward pass (empty:
    none), each at the cost of ``predicted_layer_forward_ms``. Where a stage has several
    virtual stages, both hold for each of these: model stage v * stages + p is virtual
    stage v of stage p.
    """

    slices: Annotated[tuple[Slice, ...], NotEmpty()]
    predicted_forward_ms: _Milliseconds
    predicted_backward_ms: _Milliseconds
    predicted_all_to_all_ms: _Milliseconds = 0.0
    checkpoint_layers: tuple[_Count, ...] = ()
    predicted_layer_forward_ms: _Milliseconds = 0.0
    predicted_weight_ms: _Milliseconds = 0.0
    predicted_send_ms: _Milliseconds = 0.0

    @property
    def kind(self) -> ChunkKind:
        """Which of InfiniPipe's three kinds it is.

        Whole sequences; one slice of a cut sequence; the tail of a cut sequence with
        whole ones.
        """
        if all(part.is_whole for part in self.slices):
            return "batched"
        return "split" if len(self.slices) == 1 else "hybrid"

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.slices)

    @property
    def cut_sequence(self) -> int | None:
        """The one sequence of this chunk that has slices in other chunks too.

        None in a batched chunk.
        """
        return next((part.sequence for part in self.slices if not part.is_whole), None)


@dataclass(frozen=True)
class Pipeline:
    """Chunks in forward order through the stages of one data-parallel replica.

    Each stage is ``degree`` ranks, which share the tokens of every chunk in order.
    ``schedule`` names the order in which stages run their passes and ``order`` says it
    outright, a list of passes for each stage ("F0", "F1", "B1", ...), which then counts
    alone (``railx.planning.schedule``). Only ``interleaved`` has several virtual
    stages.
    """

    stages: Annotated[int, AtLeast(1)]
    replica: _Count
    chunks: Annotated[tuple[Chunk, ...], NotEmpty()]
    degree: Annotated[int, PowerOfTwo()] = 1
    schedule: ScheduleName = "1f1b"
    virtual_stages: Annotated[int, AtLeast(1)] = 1
    order: tuple[tuple[str, ...], ...] = ()

    @property
    def tokens(self) -> int:
        return sum(chunk.tokens for chunk in self.chunks)

    @property
    def model_stages(self) -> int:
        """The parts that the layers are divided into: virtual stages of all stages."""
        return self.stages * self.virtual_stages

    @property
    def ranks(self) -> tuple[int, ...]:
        """All its ranks, stage by stage."""
        count = self.stages * self.degree
        return tuple(range(self.replica * count, (self.replica + 1) * count))

    def stage_ranks(self, stage: int) -> tuple[int, ...]:
        """The ranks of one stage, by place."""
        return self.ranks[stage * self.degree : (stage + 1) * self.degree]


@dataclass(frozen=True)
class PipelineBatch:
    """One training step.

    Pipelines of one replica run in the order given, replicas side by side.
    ``predicted_other_ms`` comes once a batch, after them: traffic of ZeRO-3 that
    nothing hides. The other fields are those of a :class:`SequenceParallelBatch`.
    """

    iteration: _Count
    pipelines: Annotated[tuple[Pipeline, ...], NotEmpty()]
    solver: Mapping[str, Any] = field(default_factory=dict)
    sequences: tuple[_Count, ...] = ()
    lengths: tuple[Annotated[int, AtLeast(1)], ...] = ()
    lower_bound_ms: _Milliseconds | None = None
    solved_by: str | None = None
    effort: _Count | None = None
    predicted_other_ms: _Milliseconds = 0.0

    @property
    def predicted_ms(self) -> float:
        """Simulated time of the whole batch: until the last replica is done."""
        # The 1F1B order reads plans, so its module imports this one.
        from railx.planning.schedule import pipeline_ms

        replicas: dict[int, float] = {}
        for pipeline in self.pipelines:
            start_ms = replicas.get(pipeline.replica, 0.0)
            replicas[pipeline.replica] = start_ms + pipeline_ms(pipeline)
        return max(replicas.values()) + self.predicted_other_ms

    @property
    def tokens(self) -> int:
        return sum(pipeline.tokens for pipeline in self.pipelines)


@dataclass(frozen=True)
class Plan:
    """A plan for ``devices`` ranks.

    ``settings`` are the planner's inputs as plain data, for provenance.
    ``tokens_per_device`` is how many tokens of the whole model a rank's memory holds,
    None where nobody said. ``predictions`` is ``cost_model`` where the predicted times
    are those of the cost model that ``settings`` name (cluster, model, cost_model and
    max_length_tokens), else ``own``. ``whole_heads`` says that every degree divides the
    heads of that model, as Ulysses wants; the runtime takes no other degrees.
    """

    schema: Literal["railx.plan/3"]
    kind: PlanKind
    planner: str
    devices: Annotated[int, AtLeast(1)]
    settings: Mapping[str, Any]
    batches: tuple[SequenceParallelBatch, ...] | tuple[PipelineBatch, ...]
    tokens_per_device: Annotated[int, AtLeast(1)] | None = None
    predictions: Predictions = "own"
    whole_heads: bool = True

    def sequence_parallel_batches(self) -> tuple[SequenceParallelBatch, ...]:
        """The batches of a sequence-parallel plan; PlanError for a pipeline plan."""
        if self.kind != "sequence_parallel":
            raise PlanError(f"the plan is of kind {self.kind}; allowed here: sequence_parallel")
        return cast("tuple[SequenceParallelBatch, ...]", self.batches)

    def pipeline_batches(self) -> tuple[PipelineBatch, ...]:
        """The batches of a pipeline plan; PlanError for a sequence-parallel plan."""
        if self.kind != "pipeline":
            raise PlanError(f"the plan is of kind {self.kind}; allowed here: pipeline")
        return cast("tuple[PipelineBatch, ...]", self.batches)


#: The batches of a plan by its kind.
_BATCH_TYPES: Mapping[str, type[SequenceParallelBatch] | type[PipelineBatch]] = {
    "sequence_parallel": SequenceParallelBatch,
    "pipeline": PipelineBatch,
}


def read_plan(path: str | Path) -> Plan:
    """Read and validate a plan.

    A file that is no plan of this schema raises a PlanError that names it.
    """
    data = read_json(path, keys_once=True)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise PlanError(f"{path}: schema is {found!r}; allowed: {SCHEMA}")
    try:
        kind, batch_types = data.get("kind"), _BATCH_TYPES
        if not isinstance(kind, str) or kind not in batch_types:
            raise SettingsError("kind", f"got {kind!r}; allowed: {', '.join(batch_types)}")
        batch_type = batch_types[kind]
        batches: Any = load(tuple[batch_type, ...], _bare(data.get("batches")), "batches")  # type: ignore[valid-type]
        apart = {"batches", "digest"}
        head: _Head = load(_Head, {key: value for key, value in data.items() if key not in apart})
        plan = Plan(**vars(head), batches=batches)
        _check_finite(plan.settings, "settings")
        for index, batch in enumerate(batches):
            _check_finite(batch.solver, f"batches[{index}].solver")
        validate_plan(plan)
        _check_derived(data, plan_file(plan))
    except (SettingsError, PlanError) as error:
        raise PlanError(f"{path}: {error}") from None
    return plan


def write_plan(path: str | Path, plan: Plan) -> None:
    """Validate and write a plan as JSON, atomically."""
    validate_plan(plan)
    write_json(path, plan_file(plan))


def plan_file(plan: Plan) -> dict[str, Any]:
    """What the file of a valid plan holds, as plain data."""
    data: dict[str, Any] = to_dict(plan)
    batches: tuple[SequenceParallelBatch | PipelineBatch, ...] = plan.batches
    for batch, plain in zip(batches, data["batches"], strict=True):
        plain["predicted_ms"] = batch.predicted_ms
        for group in _groups(plain):
            group["degree"] = len(group["ranks"])
    data["digest"] = _digest(data)
    return data


def priced_zero_stage(plan: Plan) -> int | None:
    """The ZeRO stage of the cost model that priced a plan; None where it names none."""
    cost_model = plan.settings.get("cost_model")
    stage = cost_model.get("zero_stage") if isinstance(cost_model, Mapping) else None
    return stage if isinstance(stage, int) else None


def validate_plan(plan: Plan) -> None:
    """Check every rule of the format.

    A PlanError names the batch, the micro-batch or chunk, and the sequence.
    """
    # The cost model is imported where a plan names one.
    if plan.predictions == "cost_model":
        from railx.planning.predictions import named_cost_model

        model = named_cost_model(plan)
    else:
        model = None
    if not plan.batches:
        raise PlanError("the plan has no batches; allowed: at least one")
    expected = SequenceParallelBatch if plan.kind == "sequence_parallel" else PipelineBatch
    for batch in plan.batches:
        place = f"batch {batch.iteration}"
        if not isinstance(batch, expected):
            raise PlanError(
                f"{place}: a {type(batch).__name__} in a plan of kind {plan.kind}; allowed:"
                f" {expected.__name__}"
            )
        if isinstance(batch, SequenceParallelBatch):
            _validate_sequence_parallel(batch, plan, place)
        else:
            _validate_pipelines(batch, plan, place)
        _validate_batch(batch, place)
        _validate_bound(batch, place)
    if model is not None:
        from railx.planning.predictions import check_predictions

        check_predictions(plan, model)
    _unique((batch.iteration for batch in plan.batches), "the plan: iteration")


def sequence_lengths(
    batch: SequenceParallelBatch | PipelineBatch,
) -> Iterator[tuple[int, int]]:
    """The sequences that a batch processes and their lengths, in its order."""
    if isinstance(batch, SequenceParallelBatch):
        for micro_batch in batch.micro_batches:
            for group in micro_batch.groups:
                yield from zip(group.sequences, group.lengths, strict=True)
        return
    for pipeline in batch.pipelines:
        for chunk in pipeline.chunks:
            yield from ((part.sequence, part.length) for part in chunk.slices if part.start == 0)


def check_ranks(plan: Plan, ranks: int) -> None:
    """Refuse to run a plan with a number of ranks that it was not made for."""
    if ranks != plan.devices:
        raise PlanError(
            f"ranks: got {ranks}; allowed: {plan.devices}, the number of devices that the plan was"
            " made for"
        )


@dataclass(frozen=True)
class _Head:
    """A plan file without its batches, which are told apart by ``kind``."""

    schema: Literal["railx.plan/3"]
    kind: PlanKind
    planner: str
    devices: Annotated[int, AtLeast(1)]
    settings: Mapping[str, Any]
    tokens_per_device: Annotated[int, AtLeast(1)] | None = None
    predictions: Predictions = "own"
    whole_heads: bool = True


def _check_finite(value: Any, place: str) -> None:
    """Refuse what JSON cannot hold in the parts of a file that have no fields."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_finite(item, f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_finite(item, f"{place}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise PlanError(f"{place}: got {value!r}; allowed: a finite number")


def agree(one: float, other: float) -> bool:
    """Whether two times are the same but for the last bits of their sums."""
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)


def _groups(batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The groups of a batch of a file, those that are none passed over."""
    for micro_batch in _dicts(batch.get("micro_batches")):
        yield from _dicts(micro_batch.get("groups"))


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _bare(batches: Any) -> Any:
    """The batches of a file without what follows from the rest."""
    if not isinstance(batches, list):
        return batches
    return [_without(batch) if isinstance(batch, dict) else batch for batch in batches]


def _without(batch: Mapping[str, Any]) -> dict[str, Any]:
    bare = {key: value for key, value in batch.items() if key != "predicted_ms"}
    if _dicts(bare.get("micro_batches")):
        bare["micro_batches"] = [
            {
                **micro_batch,
                "groups": [
                    {key: value for key, value in group.items() if key != "degree"}
                    if isinstance(group, dict)
                    else group
                    for group in micro_batch["groups"]
                ],
            }
            if isinstance(micro_batch, dict) and isinstance(micro_batch.get("groups"), list)
            else micro_batch
            for micro_batch in bare["micro_batches"]
        ]
    return bare


def _check_derived(data: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """What a file says of itself follows from the rest of it."""
    for index, (said, right) in enumerate(zip(data["batches"], expected["batches"], strict=True)):
        place = f"batches[{index}]"
        _check_number(f"{place}.predicted_ms", said, right, "predicted_ms", "its time in all")
        numbers = enumerate(zip(_groups(said), _groups(right), strict=True))
        for number, (group, own) in numbers:
            _check_number(f"{place}, group {number}: degree", group, own, "degree", "its ranks")
    digest = data.get("digest")
    if digest is not None and digest != _digest(data):
        raise PlanError(
            f"digest: got {str(digest)[:12]!r}; allowed: {_digest(data)[:12]!r}, that of the rest"
            " of the file, which was changed since (or null: written by hand)"
        )


def _check_number(
    place: str, said: Mapping[str, Any], right: Mapping[str, Any], key: str, what: str
) -> None:
    value = said.get(key)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not agree(cast("float", value), right[key]):
        found = "is missing" if key not in said else f"got {value!r}"
        raise PlanError(f"{place}: {found}; allowed: {right[key]}, {what}")


def _digest(data: Mapping[str, Any]) -> str:
    """SHA-256 of a file's data without the digest, however it is laid out."""
    rest = {key: value for key, value in data.items() if key != "digest"}
    text = json.dumps(_plain(rest), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # Half of a surrogate pair is no text, but JSON can write it.
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _plain(value: Any) -> Any:
    """With 1.0 as 1: programs that write JSON differ in that."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _validate_batch(batch: SequenceParallelBatch | PipelineBatch, place: str) -> None:
    """What is processed is what the batch holds: all of it, nothing else."""
    if not batch.sequences or len(batch.sequences) != len(batch.lengths):
        raise PlanError(
            f"{place}: made for {len(batch.sequences)} sequences and {len(batch.lengths)} lengths;"
            " allowed: the ids and lengths of the batch that was planned, at least one"
        )
    _unique(batch.sequences, f"{place}: made for sequence")
    wanted = dict(zip(batch.sequences, batch.lengths, strict=True))
    for sequence, length in sequence_lengths(batch):
        if sequence not in wanted:
            raise PlanError(
                f"{place}: sequence {sequence}; allowed: the sequences of the batch that the plan"
                " was made for"
            )
        if length != wanted[sequence]:
            raise PlanError(
                f"{place}, sequence {sequence}: length {length}; allowed: {wanted[sequence]}, its"
                " length in the batch that the plan was made for"
            )
        del wanted[sequence]
    if wanted:
        raise PlanError(
            f"{place}: sequence {next(iter(wanted))} is dropped ({len(wanted)} in all); allowed:"
            " every sequence of the batch that the plan was made for"
        )


def _validate_bound(batch: SequenceParallelBatch | PipelineBatch, place: str) -> None:
    """A lower bound is none above the batch's own time."""
    if batch.lower_bound_ms is None:
        return
    bound, time_ms = batch.lower_bound_ms, batch.predicted_ms
    if bound > time_ms and not agree(bound, time_ms):
        raise PlanError(
            f"{place}: lower_bound_ms {bound}; allowed: at most {time_ms}, the predicted time"
        )


def _validate_sequence_parallel(batch: SequenceParallelBatch, plan: Plan, place: str) -> None:
    for index, micro_batch in enumerate(batch.micro_batches):
        inside = f"{place}, micro-batch {index}"
        used = sum(group.degree for group in micro_batch.groups)
        if used > plan.devices:
            raise PlanError(
                f"{inside}: {len(micro_batch.groups)} groups of {used} ranks in all; allowed: at"
                f" most {plan.devices}, the devices of the plan"
            )
        for number, group in enumerate(micro_batch.groups):
            _validate_group(group, plan, f"{inside}, group {number}")
        slowest = max((group.predicted_ms for group in micro_batch.groups), default=0.0)
        if not agree(micro_batch.predicted_ms, slowest):
            raise PlanError(
                f"{inside}: predicted_ms {micro_batch.predicted_ms}; allowed: {slowest}, that of"
                " its slowest group"
            )
        _unique((rank for group in micro_batch.groups for rank in group.ranks), f"{inside}: rank")
    _unique((sequence for sequence, _ in sequence_lengths(batch)), f"{place}: sequence")


def _validate_group(group: Group, plan: Plan, place: str) -> None:
    first, degree = (group.ranks[0] if group.ranks else -1), len(group.ranks)
    aligned = PowerOfTwo().accepts(degree)
    consecutive = group.ranks == tuple(range(first, first + degree))
    if not degree or not consecutive or (aligned and first % degree):
        multiple = f" that start at a multiple of {degree}" if aligned else ", at least one"
        raise PlanError(f"{place}: ranks {list(group.ranks)}; allowed: consecutive ranks{multiple}")
    if first + degree > plan.devices:
        raise PlanError(f"{place}: rank {first + degree - 1}; allowed: 0 to {plan.devices - 1}")
    if not group.sequences or len(group.sequences) != len(group.lengths):
        raise PlanError(
            f"{place}: {len(group.sequences)} sequences and {len(group.lengths)} lengths; allowed:"
            " one length each, at least one"
        )
    for sequence, length in zip(group.sequences, group.lengths, strict=True):
        if length < 1:
            raise PlanError(f"{place}, sequence {sequence}: length {length}; allowed: at least 1")
    if plan.tokens_per_device is not None and group.tokens > plan.tokens_per_device * degree:
        raise PlanError(
            f"{place}: {group.tokens} tokens; allowed: at most {plan.tokens_per_device * degree},"
            f" what {degree} ranks hold"
        )
    parts = (
        group.predicted_compute_ms,
        group.predicted_all_to_all_ms,
        *group.predicted_other_ms.values(),
    )
    if not agree(group.predicted_ms, sum(parts)):
        raise PlanError(
            f"{place}: predicted_ms {group.predicted_ms}; allowed: {sum(parts)}, compute,"
            " all-to-all and other terms together"
        )


def _validate_pipelines(batch: PipelineBatch, plan: Plan, place: str) -> None:
    for what, counts in (
        ("stages", {pipeline.stages for pipeline in batch.pipelines}),
        ("ranks a stage", {pipeline.degree for pipeline in batch.pipelines}),
        ("virtual stages", {pipeline.virtual_stages for pipeline in batch.pipelines}),
    ):
        if len(counts) != 1:
            raise PlanError(
                f"{place}: pipelines with {sorted(counts)} {what}; allowed: the same number in"
                " every pipeline"
            )
    for index, pipeline in enumerate(batch.pipelines):
        inside = f"{place}, pipeline {index}"
        if not PowerOfTwo().accepts(pipeline.degree):
            raise PlanError(
                f"{inside}: {pipeline.degree} ranks a stage; allowed: {PowerOfTwo().allowed}"
            )
        if pipeline.ranks[-1] >= plan.devices:
            raise PlanError(
                f"{inside}: rank {pipeline.ranks[-1]}; allowed: 0 to {plan.devices - 1}"
            )
        if not pipeline.chunks:
            raise PlanError(f"{inside}: no chunks; allowed: at least one")
        for number, chunk in enumerate(pipeline.chunks):
            _validate_chunk(chunk, pipeline.model_stages, f"{inside}, chunk {number}")
        _validate_coverage(pipeline, inside)
        _validate_schedule(pipeline, plan, inside)
        _validate_memory(pipeline, plan.tokens_per_device, inside)
    _unique((sequence for sequence, _ in sequence_lengths(batch)), f"{place}: sequence")


def _validate_chunk(chunk: Chunk, stages: int, place: str) -> None:
    if not chunk.slices:
        raise PlanError(f"{place}: no slices; allowed: at least one")
    for part in chunk.slices:
        if not 0 <= part.start < part.stop <= part.length:
            raise PlanError(
                f"{place}, sequence {part.sequence}: slice {part.start} to {part.stop} of"
                f" {part.length} tokens; allowed: a non-empty slice within the sequence"
            )
        if part.stop < part.length and len(chunk.slices) > 1:
            raise PlanError(
                f"{place}, sequence {part.sequence}: a slice before the tail beside other slices;"
                " allowed: alone in its chunk"
            )
    if chunk.predicted_weight_ms > chunk.predicted_backward_ms:
        raise PlanError(
            f"{place}: predicted_weight_ms {chunk.predicted_weight_ms}; allowed: at most"
            f" {chunk.predicted_backward_ms}, predicted_backward_ms, of which it is a part"
        )
    with_context = [part.sequence for part in chunk.slices if part.start > 0]
    if len(with_context) > 1:
        raise PlanError(
            f"{place}: sequences {with_context} have context; allowed: at most one slice with"
            " context (two tails never together)"
        )
    if chunk.checkpoint_layers and len(chunk.checkpoint_layers) != stages:
        raise PlanError(
            f"{place}: {len(chunk.checkpoint_layers)} checkpoint counts; allowed: none or one for"
            f" each of {stages} stages"
        )


def _validate_coverage(pipeline: Pipeline, place: str) -> None:
    """Slices cover each sequence once, left to right, in neighbouring chunks.

    1F1B's backward order needs the last.
    """
    seen: dict[int, tuple[int, int, int]] = {}  # sequence -> (tokens covered, length, last chunk)
    for number, chunk in enumerate(pipeline.chunks):
        for part in chunk.slices:
            covered, length, last = seen.get(part.sequence, (0, part.length, number - 1))
            where = f"{place}, chunk {number}, sequence {part.sequence}"
            if part.length != length:
                raise PlanError(
                    f"{where}: length {part.length} after {length}; allowed: the same length in"
                    " every slice"
                )
            if part.start != covered:
                raise PlanError(
                    f"{where}: slice starts at {part.start}; allowed: {covered}, where the slice"
                    " before it ends"
                )
            if number != last + 1:
                raise PlanError(
                    f"{where}: previous slice is in chunk {last}; allowed: the chunk before,"
                    f" {number - 1}"
                )
            seen[part.sequence] = (part.stop, length, number)
    for sequence, (covered, length, last) in seen.items():
        if covered != length:
            raise PlanError(
                f"{place}, chunk {last}, sequence {sequence}: slices end at {covered}; allowed:"
                f" {length}, the whole sequence"
            )


def _validate_schedule(pipeline: Pipeline, plan: Plan, place: str) -> None:
    """The order can be run, and every stage has the layers that it recomputes."""
    # The orders read plans, so their module imports this one.
    from railx.planning.schedule import check_order, stage_layers

    if pipeline.virtual_stages > 1 and pipeline.schedule != "interleaved":
        raise PlanError(
            f"{place}: virtual_stages {pipeline.virtual_stages} with schedule"
            f" {pipeline.schedule}; allowed: 1, or schedule interleaved"
        )
    check_order(pipeline, place)
    layers = layers_of(plan)
    if layers is None:
        return
    try:
        held = stage_layers(layers, pipeline.model_stages)
    except UserError as error:
        raise PlanError(f"{place}: {error}") from None
    for number, chunk in enumerate(pipeline.chunks):
        for stage, recomputed in enumerate(chunk.checkpoint_layers):
            if recomputed > len(held[stage]):
                raise PlanError(
                    f"{place}, chunk {number}: {recomputed} checkpointed layers of stage {stage};"
                    f" allowed: at most {len(held[stage])}, the layers that it has"
                )


def layers_of(plan: Plan) -> int | None:
    """The layers of the model that the plan was made for, where it names one."""
    model = plan.settings.get("model")
    layers = model.get("layers") if isinstance(model, Mapping) else None
    return layers if isinstance(layers, int) and not isinstance(layers, bool) else None


def _validate_memory(pipeline: Pipeline, tokens_per_device: int | None, place: str) -> None:
    """No stage holds more tokens at once than its ranks can.

    A stage has its share of the layers only, so that its ranks hold ``stages`` times as
    many tokens as of the whole model. Chunks with recomputed layers are left out: how
    much of them is kept, the plan does not say.
    """
    if tokens_per_device is None:
        return
    # The orders read plans, so their module imports this one.
    from railx.planning.schedule import operations

    # A virtual stage holds its share of a stage's layers.
    most = tokens_per_device * pipeline.degree * pipeline.model_stages
    for stage in range(pipeline.stages):
        held = 0
        ops = operations(pipeline, stage)
        closing = "weight" if any(op.kind == "weight" for op in ops) else "backward"
        for op in ops:
            chunk = pipeline.chunks[op.chunk]
            if op.kind not in ("forward", closing) or (
                chunk.checkpoint_layers
                and chunk.checkpoint_layers[op.part * pipeline.stages + stage]
            ):
                continue
            held += chunk.tokens if op.kind == "forward" else -chunk.tokens
            if held > most:
                raise PlanError(
                    f"{place}, chunk {op.chunk}: stage {stage} then holds {held} tokens; allowed:"
                    f" at most {most}, what its {pipeline.degree} ranks hold"
                )


def _unique(items: Iterable[int], what: str) -> None:
    seen: set[int] = set()
    for item in items:
        if item in seen:
            raise PlanError(f"{what} {item} appears twice; allowed: exactly once")
        seen.add(item)
