"""The computation and messages of one pass of a stage, in order.

A pass takes a micro-batch forward or backward through the layers of a stage. It is a
row of segments: computation by the device's roofline, and collectives inside the server
or on the rail, which are rings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from railx.performance.networks import ring_bytes
from railx.performance.programs import constants_named
from railx.performance.volumes import activation_bytes, product_flops
from railx.steps.settings import StepJob

Direction = Literal["forward", "backward"]
#: Products of a pass over those of a forward pass: a gradient takes two.
_PASSES = {"forward": 1, "backward": 2}
#: Gathers and scatters over the tensor ranks in half a layer, where tokens are split
#: (backward gathers the inputs of products once more); otherwise one all-reduce.
_GATHERS = {"forward": 2, "backward": 3}


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


def hop_bytes(job: StepJob) -> float:
    """Bytes of a micro-batch's activations that a rank sends to the next stage."""
    size = _activations(job)
    return size / job.degrees.tensor if job.sequence_parallel else size


def _activations(job: StepJob) -> float:
    return activation_bytes(job.tokens, job.model.hidden, job.bytes_per_element)


def exchanged_bytes(job: StepJob) -> float:
    """Bytes that a rank puts into an exchange with experts, in one direction."""
    return job.model.experts_per_token * hop_bytes(job)


def stage_units(job: StepJob) -> list[list[list[Unit]]]:
    """The units of every stage and part, in forward order: parameters whose gradients a
    rank reduces with its replicas.

    Part v of stage p holds model stage v * stages + p. Tables follow the first and the
    last layer of the model.
    """
    model, degrees, stages = job.model, job.degrees, job.degrees.pipeline
    # Experts whose group spans all replicas are reduced with nobody.
    alone = degrees.data * degrees.context == degrees.expert_servers
    groups = degrees.expert * (1 if degrees.expert_over == "tensor" else degrees.tensor)
    expert_ranks = math.inf if alone else max(groups, degrees.tensor)
    counts = model.layers_by_stage(stages * job.parts)
    units_by_stage: list[list[list[Unit]]] = [[] for _ in range(stages)]
    for n, (count, end) in enumerate(zip(counts, accumulate(counts), strict=True)):
        units = [
            Unit(
                number,
                number >= model.dense_layers,
                model.rank_parameters(number, degrees.tensor, expert_ranks),
            )
            for number in range(end - count, end)
        ]
        tables = model.input_weights * (n == 0) + model.output_weights * (n == len(counts) - 1)
        if tables:
            multiplied = model.output_weights * (n == len(counts) - 1)
            table = Unit(None, False, tables / job.degrees.tensor, multiplied / job.degrees.tensor)
            units = [table, *units] if n == 0 else [*units, table]
        units_by_stage[n % stages].append(units)
    return units_by_stage


def layer_segments(
    job: StepJob, unit: Unit, direction: Direction, *, electrical: bool
) -> list[Segment]:
    """The segments of a layer, forward or backward.

    ``electrical``: packet switches join every pair of ranks of a rail, so that an
    exchange with experts takes no way round.
    """
    model, passes, tensor = job.model, _PASSES[direction], job.degrees.tensor
    if unit.number is None:
        segments = [_computed(job, tensor * unit.multiplied, passes)]
        if unit.multiplied < unit.parameters:
            # Rows of the input table: read and written, backward their gradients.
            moved_ns = job.device.roofline_ns(0.0, 2 * _activations(job) * passes)
            segments.insert(0, Segment("compute", moved_ns))
        return segments
    reduced = _tensor(job, direction)
    attention = [
        _context(job, passes),
        _computed(
            job,
            model.attention_weights,
            passes,
            pairs=model.score_width * model.scored_share * job.sequence_tokens,
            unsharded=model.whole_attention_weights,
        ),
        reduced,
    ]
    if not unit.experts:
        rest = [_computed(job, model.dense_weights, passes), reduced]
    else:
        exchange = _expert(job, electrical)
        # The sum over the visited experts' outputs: two operations an element.
        summed = product_flops(job.tokens, model.experts_per_token * model.hidden, passes)
        rest = [
            exchange,
            _computed(job, model.experts_per_token * model.expert_weights, passes),
            exchange,
            _computed(job, model.shared_weights, passes),
            Segment("compute", job.device.compute_ns(summed)),
            reduced,
        ]
    ordered = [*attention, *rest]
    if direction == "backward":
        ordered = [*reversed(rest), *reversed(attention)]
    ordered = [*_host(job, direction, ordered), *ordered]
    if direction == "backward" and job.recomputed:
        again = layer_segments(job, unit, "forward", electrical=electrical)
        ordered = [*again, *ordered]
    return [segment for segment in ordered if segment.lasts_ns > 0 or segment.on_rail]


def _host(job: StepJob, direction: Direction, segments: list[Segment]) -> list[Segment]:
    """What a layer's pass waits for its host: up to its least time, and ``pass_ms``."""
    if job.host is None:
        return []
    constants = constants_named(job.host.constants)
    least_s = constants.forward_host_s if direction == "forward" else constants.backward_host_s
    least_s += 2 * math.log2(job.degrees.tensor) * constants.collective_host_s
    device_ns = sum(segment.lasts_ns for segment in segments if not segment.on_rail)
    waited_ns = max(0.0, 1e9 * least_s - device_ns) + 1e6 * job.host.pass_ms
    return [Segment("compute", waited_ns)]


def _computed(
    job: StepJob, weights: float, passes: int, pairs: float = 0.0, unsharded: float = 0.0
) -> Segment:
    """Products with ``weights``, and ``pairs`` multiplications for each token."""
    tensor = job.degrees.tensor
    rank_weights = (weights - unsharded) / tensor + unsharded
    operations = product_flops(job.tokens, rank_weights + pairs / tensor, passes)
    moved = (rank_weights * job.bytes_per_element + 2 * _activations(job)) * passes
    return Segment("compute", job.device.roofline_ns(operations, moved) if weights else 0.0)


def _sent(
    job: StepJob,
    kind: Literal["tensor", "expert", "context"],
    payload: float,
    sent: float,
    *,
    on_rail: bool = False,
) -> Segment:
    rate = job.device.scale_out_gb_s if on_rail else job.device.scale_up_gb_s
    return Segment(kind, sent / rate, sent, payload, on_rail)


def _tensor(job: StepJob, direction: Direction) -> Segment:
    """Half of a layer's collectives over the tensor ranks."""
    ranks, payload = job.degrees.tensor, _activations(job)
    if job.sequence_parallel:
        sent = _GATHERS[direction] * ring_bytes("all_gather", payload, ranks)
    else:
        sent = ring_bytes("all_reduce", payload, ranks)
    return _sent(job, "tensor", payload, sent)


def _expert(job: StepJob, electrical: bool) -> Segment:
    """An exchange with the experts of the group, to them or back.

    On the rail it goes round the ring of the group's servers, whose ports carry what is
    meant for farther ones too: (k - 1) / 2 of it for k servers. In the server every
    rank reaches every other.
    """
    degrees, payload = job.degrees, exchanged_bytes(job)
    servers = degrees.expert_servers
    if servers == 1:
        return _sent(job, "expert", payload, ring_bytes("all_to_all", payload, degrees.expert))
    sent = ring_bytes("all_to_all", payload, servers)
    return _sent(job, "expert", payload, sent if electrical else sent * servers / 2, on_rail=True)


def _context(job: StepJob, passes: int) -> Segment:
    """Keys and values of the other context ranks; backward their gradients besides."""
    degrees = job.degrees
    width = 2 * job.model.hidden / degrees.tensor
    tokens = job.tokens * degrees.context
    payload = activation_bytes(tokens, width, job.bytes_per_element) * passes
    sent = ring_bytes("all_gather", payload, degrees.context)
    on_rail = degrees.context > 1 and not degrees.context_in_server
    return _sent(job, "context", payload, sent, on_rail=on_rail)
