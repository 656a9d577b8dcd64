"""The plan format: frozen dataclasses, JSON with a schema version, and its rules.

A plan is the only thing that passes from a planner to the training runtime. It names
sequences by their row in the corpus file and carries their lengths after truncation, so
that a runtime needs the corpus and nothing else.

Two kinds (``Plan.kind``):

* ``sequence_parallel``: a batch is a list of micro-batches that run one after another;
  the groups of a micro-batch run side by side, each on consecutive ranks aligned to its
  size (Ulysses sequence parallelism with a degree per group, FlexSP).
* ``pipeline``: a batch is a list of pipelines; those of one data-parallel replica run
  one after another, replicas side by side. A pipeline runs chunks in 1F1B order
  (InfiniPipe section III). Each stage is a group of ``degree`` ranks that share the
  tokens of a chunk; rank = (replica * stages + stage) * degree + place.

Each batch carries the ids and lengths of the sequences that it was planned for, so that
a plan that dropped, repeated or changed one is refused when it is read. So is one that
gives a group more tokens than its ranks hold, where the plan knows how many that are.

This module needs the standard library, numpy and pyarrow alone (the last two through
``railx.io``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from railx.io import read_json, write_json
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
    "SequenceParallelBatch",
    "Slice",
    "check_ranks",
    "read_plan",
    "sequence_lengths",
    "validate_plan",
    "write_plan",
]

SCHEMA: Literal["railx.plan/2"] = "railx.plan/2"

ChunkKind = Literal["batched", "split", "hybrid"]
#: The two formats of a plan.
PlanKind = Literal["sequence_parallel", "pipeline"]
_Count = Annotated[int, NonNegative()]
_Milliseconds = Annotated[float, NonNegative()]


class PlanError(ValueError):
    """A plan that cannot be run.

    One line names the batch and the part, and what is allowed.
    """


@dataclass(frozen=True)
class Group:
    """One sequence-parallel group: the ranks that share the tokens of its sequences.

    The degree is the number of ranks.
    """

    ranks: Annotated[tuple[_Count, ...], NotEmpty()]
    sequences: Annotated[tuple[_Count, ...], NotEmpty()]
    lengths: tuple[Annotated[int, AtLeast(1)], ...]
    predicted_ms: _Milliseconds
    predicted_compute_ms: _Milliseconds = 0.0
    predicted_all_to_all_ms: _Milliseconds = 0.0

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
    them.
    """

    iteration: _Count
    micro_batches: Annotated[tuple[MicroBatch, ...], NotEmpty()]
    solver: Mapping[str, Any] = field(default_factory=dict)
    sequences: tuple[_Count, ...] = ()
    lengths: tuple[Annotated[int, AtLeast(1)], ...] = ()

    @property
    def predicted_ms(self) -> float:
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
    ``checkpoint_layers[stage]`` layers are recomputed in the backward pass (empty:
    none), each at the cost of ``predicted_layer_forward_ms``.
    """

    slices: Annotated[tuple[Slice, ...], NotEmpty()]
    predicted_forward_ms: _Milliseconds
    predicted_backward_ms: _Milliseconds
    predicted_all_to_all_ms: _Milliseconds = 0.0
    checkpoint_layers: tuple[_Count, ...] = ()
    predicted_layer_forward_ms: _Milliseconds = 0.0

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
    """

    stages: Annotated[int, AtLeast(1)]
    replica: _Count
    chunks: Annotated[tuple[Chunk, ...], NotEmpty()]
    degree: Annotated[int, PowerOfTwo()] = 1

    @property
    def tokens(self) -> int:
        return sum(chunk.tokens for chunk in self.chunks)

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
    ``sequences`` and ``lengths`` are the batch that it was made for.
    """

    iteration: _Count
    pipelines: Annotated[tuple[Pipeline, ...], NotEmpty()]
    solver: Mapping[str, Any] = field(default_factory=dict)
    sequences: tuple[_Count, ...] = ()
    lengths: tuple[Annotated[int, AtLeast(1)], ...] = ()

    @property
    def tokens(self) -> int:
        return sum(pipeline.tokens for pipeline in self.pipelines)


@dataclass(frozen=True)
class Plan:
    """A plan for ``devices`` ranks.

    ``settings`` are the planner's inputs as plain data, for provenance.
    ``tokens_per_device`` is how many tokens of the whole model a rank's memory holds,
    None where nobody said.
    """

    schema: Literal["railx.plan/2"]
    kind: PlanKind
    planner: str
    devices: Annotated[int, AtLeast(1)]
    settings: Mapping[str, Any]
    batches: tuple[SequenceParallelBatch, ...] | tuple[PipelineBatch, ...]
    tokens_per_device: Annotated[int, AtLeast(1)] | None = None

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


def read_plan(path: str | Path) -> Plan:
    """Read and validate a plan.

    A file that is no plan of this schema raises a PlanError that names it.
    """
    data = read_json(path)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise PlanError(f"{path}: schema is {found!r}; allowed: {SCHEMA}")
    try:
        batch_type = {"sequence_parallel": SequenceParallelBatch, "pipeline": PipelineBatch}.get(
            data.get("kind", "")
        )
        if batch_type is None:
            raise SettingsError(
                "kind", f"got {data.get('kind')!r}; allowed: sequence_parallel, pipeline"
            )
        batches: Any = load(tuple[batch_type, ...], data.get("batches"), "batches")  # type: ignore[valid-type]
        head: _Head = load(_Head, {key: value for key, value in data.items() if key != "batches"})
        plan = Plan(**vars(head), batches=batches)
        validate_plan(plan)
    except (SettingsError, PlanError) as error:
        raise PlanError(f"{path}: {error}") from None
    return plan


def write_plan(path: str | Path, plan: Plan) -> None:
    """Validate and write a plan as JSON, atomically."""
    validate_plan(plan)
    write_json(path, to_dict(plan))


def validate_plan(plan: Plan) -> None:
    """Check every rule of the format.

    A PlanError names the batch, the micro-batch or chunk, and the sequence.
    """
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

    schema: Literal["railx.plan/2"]
    kind: PlanKind
    planner: str
    devices: Annotated[int, AtLeast(1)]
    settings: Mapping[str, Any]
    tokens_per_device: Annotated[int, AtLeast(1)] | None = None


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


def _validate_sequence_parallel(batch: SequenceParallelBatch, plan: Plan, place: str) -> None:
    for index, micro_batch in enumerate(batch.micro_batches):
        inside = f"{place}, micro-batch {index}"
        for number, group in enumerate(micro_batch.groups):
            _validate_group(group, plan, f"{inside}, group {number}")
        _unique((rank for group in micro_batch.groups for rank in group.ranks), f"{inside}: rank")
    _unique((sequence for sequence, _ in sequence_lengths(batch)), f"{place}: sequence")


def _validate_group(group: Group, plan: Plan, place: str) -> None:
    first, degree = (group.ranks[0] if group.ranks else -1), len(group.ranks)
    if not PowerOfTwo().accepts(degree):
        raise PlanError(f"{place}: {degree} ranks; allowed: {PowerOfTwo().allowed}")
    if group.ranks != tuple(range(first, first + degree)) or first % degree:
        raise PlanError(
            f"{place}: ranks {list(group.ranks)}; allowed: consecutive ranks that start at a"
            f" multiple of {degree}"
        )
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


def _validate_pipelines(batch: PipelineBatch, plan: Plan, place: str) -> None:
    for what, counts in (
        ("stages", {pipeline.stages for pipeline in batch.pipelines}),
        ("ranks a stage", {pipeline.degree for pipeline in batch.pipelines}),
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
            _validate_chunk(chunk, pipeline.stages, f"{inside}, chunk {number}")
        _validate_coverage(pipeline, inside)
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


def _validate_memory(pipeline: Pipeline, tokens_per_device: int | None, place: str) -> None:
    """No stage holds more tokens at once than its ranks can.

    A stage has its share of the layers only, so that its ranks hold ``stages`` times as
    many tokens as of the whole model. Chunks with recomputed layers are left out: how
    much of them is kept, the plan does not say.
    """
    if tokens_per_device is None:
        return
    # The 1F1B order reads plans, so its module imports this one.
    from railx.planning.schedule import one_f_one_b

    most = tokens_per_device * pipeline.degree * pipeline.stages
    for stage in range(pipeline.stages):
        held = 0
        for op in one_f_one_b(pipeline, stage):
            chunk = pipeline.chunks[op.chunk]
            if chunk.checkpoint_layers and chunk.checkpoint_layers[stage]:
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
