"""The computation and messages of one pass of a stage, in order.

A pass takes a micro-batch forward or backward through the layers of a stage. It is a
row of segments: computation by the roofline (the longer of operations over the reached
peak and bytes over the memory's bandwidth), and collectives inside the server or on the
rail. Collectives are rings: of n ranks each sends (n - 1) / n of what is gathered or
scattered, twice that of what is reduced everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from railx.steps.settings import StepJob

__all__ = [
    "Direction",
    "Segment",
    "Unit",
    "all_reduce_share",
    "exchanged_bytes",
    "gather_share",
    "hop_bytes",
    "layer_segments",
    "reduced_parameters",
    "stage_units",
]

Direction = Literal["forward", "backward"]
#: A gradient of each product takes two products.
_BACKWARD = 2
#: Collectives over the tensor ranks in a layer, each way: all-reduces, or gathers and
#: scatters where tokens are split (backward gathers the inputs of products once more).
_REDUCES = {"forward": 2, "backward": 2}
_GATHERS = {"forward": 4, "backward": 6}


@dataclass(frozen=True)
class Segment:
    """A stretch of a pass.

    ``kind``: ``compute``; ``tensor``, a collective inside the server; ``expert`` and
    ``context``, collectives of those parallelisms. ``lasts_ns`` is the time without
    waiting for other ranks; ``sent_bytes`` leave a rank, ``payload_bytes`` is the size
    of its tensor. ``on_rail``: whether it needs circuits.
    """

    kind: Literal["compute", "tensor", "expert", "context"]
    lasts_ns: float
    sent_bytes: float = 0.0
    payload_bytes: float = 0.0
    on_rail: bool = False


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered and reduced together: a layer, or an end's tables.

    ``number`` counts the layers of the model from 0; None for the tables of an end.
    ``multiplied``: of a table, the parameters that tokens are multiplied with; rows of
    the input table are looked up.
    """

    number: int | None
    experts: bool
    parameters: float
    multiplied: float = 0.0


def gather_share(ranks: int) -> float:
    """The share of a gathered or scattered tensor that each rank of a ring sends."""
    return (ranks - 1) / ranks


def all_reduce_share(ranks: int) -> float:
    """The share of an all-reduced tensor that each rank of a ring sends."""
    return 2 * gather_share(ranks)


def exchanged_bytes(job: StepJob) -> float:
    """Bytes that a rank puts into an exchange with experts, in one direction."""
    size = job.tokens * job.model.experts_per_token * job.model.hidden * job.bytes_per_element
    return size / job.degrees.tensor if job.sequence_parallel else size


def hop_bytes(job: StepJob) -> float:
    """Bytes that a rank sends to the next stage for a micro-batch."""
    size = job.tokens * job.model.hidden * job.bytes_per_element
    return size / job.degrees.tensor if job.sequence_parallel else size


def reduced_parameters(job: StepJob, number: int) -> float:
    """Parameters of a layer whose gradients a rank reduces with its replicas.

    Experts are among them where a group of experts leaves replicas of itself. They then
    count as reduced over all replicas, as the rest.
    """
    model, degrees = job.model, job.degrees
    dense = number < model.dense_layers
    rest = model.dense_weights if dense else model.shared_weights
    parameters = (model.attention_weights + rest) / degrees.tensor + model.norm_weights
    if dense or degrees.data * degrees.context == degrees.expert_servers:
        return parameters
    groups = degrees.expert * (1 if degrees.expert_over == "tensor" else degrees.tensor)
    return parameters + model.experts * model.expert_weights / max(groups, degrees.tensor)


def stage_units(job: StepJob) -> list[list[list[Unit]]]:
    """The units of every stage and part, in forward order.

    Part v of stage p holds model stage v * stages + p. Tables follow the first and the
    last layer of the model.
    """
    model, stages = job.model, job.degrees.pipeline
    model_stages = stages * job.parts
    counts = model.stage_layers or tuple(
        model.layers // model_stages + (n < model.layers % model_stages)
        for n in range(model_stages)
    )
    starts = [sum(counts[:n]) for n in range(model_stages)]
    units_by_stage: list[list[list[Unit]]] = [[] for _ in range(stages)]
    for n, (start, count) in enumerate(zip(starts, counts, strict=True)):
        units = [_unit(job, number) for number in range(start, start + count)]
        tables = model.input_weights * (n == 0) + model.output_weights * (n == model_stages - 1)
        if tables:
            multiplied = model.output_weights * (n == model_stages - 1)
            end = Unit(None, False, tables / job.degrees.tensor, multiplied / job.degrees.tensor)
            units = [end, *units] if n == 0 else [*units, end]
        units_by_stage[n % stages].append(units)
    return units_by_stage


def _unit(job: StepJob, number: int) -> Unit:
    return Unit(number, number >= job.model.dense_layers, reduced_parameters(job, number))


def layer_segments(
    job: StepJob, unit: Unit, direction: Direction, *, electrical: bool
) -> list[Segment]:
    """The segments of a layer, forward or backward.

    ``electrical``: packet switches join every pair of ranks of a rail, so that an
    exchange with experts takes no way round.
    """
    if unit.number is None:
        looked_up = [_looked_up(job, direction)] if unit.multiplied < unit.parameters else []
        return [*looked_up, _computed(job, job.degrees.tensor * unit.multiplied, 0.0, direction)]
    model = job.model
    attention = [
        *_context(job, direction),
        _computed(
            job,
            model.attention_weights,
            model.score_width * model.scored_share * job.sequence_tokens,
            direction,
            unsharded=model.whole_attention_weights,
        ),
        _tensor(job, direction),
    ]
    if not unit.experts:
        rest = [_computed(job, model.dense_weights, 0.0, direction), _tensor(job, direction)]
    else:
        exchange = _expert(job, electrical)
        visited = model.experts_per_token * model.expert_weights
        inside = _computed(job, visited, 0.0, direction)
        rest = [
            exchange,
            inside,
            exchange,
            _computed(job, model.shared_weights, 0.0, direction),
            _summed(job, direction),
            _tensor(job, direction),
        ]
    ordered = [*attention, *rest]
    if direction == "backward":
        ordered = [*reversed(rest), *reversed(attention)]
        if job.recomputed:
            again = layer_segments(job, unit, "forward", electrical=electrical)
            ordered = [*again, *ordered]
    return [segment for segment in ordered if segment.lasts_ns > 0 or segment.on_rail]


def _computed(
    job: StepJob, weights: float, pairs: float, direction: Direction, unsharded: float = 0.0
) -> Segment:
    """Products with ``weights``, and ``pairs`` multiplications for each token."""
    tensor, tokens = job.degrees.tensor, job.tokens
    rank_weights = (weights - unsharded) / tensor + unsharded
    passes = 1 if direction == "forward" else _BACKWARD
    operations = 2 * tokens * (rank_weights + pairs / tensor) * passes
    ends = 2 * tokens * job.model.hidden
    moved = (rank_weights + ends) * job.bytes_per_element * passes
    return Segment("compute", job.device.roofline_ns(operations, moved) if weights else 0.0)


def _looked_up(job: StepJob, direction: Direction) -> Segment:
    """The rows of the input table: read and written, and backward their gradients."""
    size = 2 * job.tokens * job.model.hidden * job.bytes_per_element
    passes = 1 if direction == "forward" else _BACKWARD
    return Segment("compute", job.device.roofline_ns(0.0, size * passes))


def _summed(job: StepJob, direction: Direction) -> Segment:
    """The sum over the visited experts' outputs: two operations an element."""
    model = job.model
    passes = 1 if direction == "forward" else _BACKWARD
    operations = 2 * job.tokens * model.experts_per_token * model.hidden * passes
    return Segment("compute", job.device.compute_ns(operations))


def _tensor(job: StepJob, direction: Direction) -> Segment:
    """Half of a layer's collectives over the tensor ranks."""
    ranks, payload = job.degrees.tensor, job.tokens * job.model.hidden * job.bytes_per_element
    share = (
        _GATHERS[direction] * gather_share(ranks)
        if job.sequence_parallel
        else _REDUCES[direction] * all_reduce_share(ranks)
    )
    sent = payload * share / 2
    return Segment("tensor", sent / job.device.scale_up_gb_s, sent, payload)


def _expert(job: StepJob, electrical: bool) -> Segment:
    """An exchange with the experts of the group, to them or back.

    On the rail it goes round the ring of the group's servers, whose ports carry what is
    meant for farther ones too: (k - 1) / 2 of it for k servers. In the server every
    rank reaches every other.
    """
    degrees, payload = job.degrees, exchanged_bytes(job)
    servers = degrees.expert_servers
    if degrees.expert == 1:
        return Segment("expert", 0.0)
    if servers == 1:
        sent = payload * gather_share(degrees.expert)
        return Segment("expert", sent / job.device.scale_up_gb_s, sent, payload)
    sent = payload * (gather_share(servers) if electrical else (servers - 1) / 2)
    return Segment("expert", sent / job.device.scale_out_gb_s, sent, payload, on_rail=True)


def _context(job: StepJob, direction: Direction) -> Sequence[Segment]:
    """Keys and values of the other context ranks; backward their gradients besides."""
    degrees = job.degrees
    if degrees.context == 1:
        return ()
    model = job.model
    passes = 1 if direction == "forward" else _BACKWARD
    width = 2 * model.hidden / degrees.tensor
    payload = job.tokens * degrees.context * width * job.bytes_per_element * passes
    sent = payload * gather_share(degrees.context)
    inside = degrees.context_in_server
    rate = job.device.scale_up_gb_s if inside else job.device.scale_out_gb_s
    return (Segment("context", sent / rate, sent, payload, on_rail=not inside),)
