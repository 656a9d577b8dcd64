"""Opus's step with experts, counted as its generator counts (fig. 14).

Source: github.com/opusfabric/Opus at 871307f, simulation/reconfig_backend/examples/
large_scale_ep_sweeps/sweep_ep.py, and large_scale_ep_sweeps_scaleout for groups over
replicas. Facts of it, in words of this project:

* Every rank of a stage holds sequences of its own; its tensor ranks share heads.
* All micro-batches go forward, then all backward; nothing overlaps but stages.
* A layer gathers its attention, computes it, reduces over the tensor ranks, routes,
  exchanges, computes experts and exchanges again. Backward it also scatters and gathers
  the gradients of attention and experts over all replicas, in every micro-batch.
* What counts otherwise than a real step does is in :class:`ExpertCounts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from railx.performance.networks import ring_bytes
from railx.performance.volumes import product_flops
from railx.steps.layers import Direction, hop_bytes
from railx.steps.settings import ExpertCounts, StepJob
from railx.steps.template import Template
from railx.vocabulary.arrays import Array

__all__ = ["Exchange", "exchange", "expert_templates", "pass_parts", "shares"]


@dataclass(frozen=True)
class Exchange:
    """An exchange with experts of a group, one direction.

    ``loads``: bytes from rank to rank, float[expert, expert]. ``inside_ns`` is its time
    inside servers and ``rail_ns`` that on the rail. ``rail_bytes`` leave a rank of the
    rail, mean over the ranks.
    """

    loads: Array
    inside_ns: float
    rail_ns: float
    rail_bytes: float


@dataclass(frozen=True)
class Part:
    """A stretch of a pass, one after the other.

    ``lane``: ``data`` and ``expert`` use the rail, ``tensor`` the server, ``""``
    computes. ``payload_bytes`` is the size of the tensor.
    """

    lane: Literal["", "tensor", "data", "expert"]
    lasts_ns: float
    kind: Literal["", "all_reduce", "all_gather", "reduce_scatter", "all_to_all"] = ""
    payload_bytes: float = 0.0
    sent_bytes: float = 0.0


def _counts(job: StepJob) -> ExpertCounts:
    if job.expert_counts is None:
        raise ValueError("a job without expert_counts is written layer by layer")
    return job.expert_counts


def shares(owners: int, exponent: float) -> Array:
    """Share of a sequence's routed tokens that goes to each owner of experts.

    Position u in (0, 1) picks expert u ** exponent of all, so that owner i of n has
    ((i + 1) / n) ** (1 / exponent) - (i / n) ** (1 / exponent): float[owners].
    """
    return np.diff((np.arange(owners + 1) / owners) ** (1 / exponent))


def exchange(job: StepJob, *, electrical: bool) -> Exchange:
    """An exchange with experts, to them or back.

    Each rank sends the same number of bytes to the others of its group, by their
    shares. Links are as in the published matrices, of the full rate each. They join any
    two ranks of a server, and ``electrical`` any two ranks. Otherwise a rank has one to
    each neighbour on the ring of its group's servers. Bytes leave on the rail of the
    sender, go round the shorter way and change rails in the receiver's server.
    """
    degrees, device, counts = job.degrees, job.device, _counts(job)
    ranks, servers = degrees.expert, degrees.expert_servers
    if ranks == 1:
        return Exchange(np.zeros((1, 1)), 0.0, 0.0, 0.0)
    share = shares(ranks, counts.popularity_exponent)
    payload = hop_bytes(job) * counts.exchanged_copies
    loads = payload * np.outer(1 / (1 - share), share)
    np.fill_diagonal(loads, 0.0)
    server = np.arange(ranks) // (ranks // servers)
    apart = server[:, None] != server
    if electrical:
        busiest = (loads * apart).max()
    else:
        rails = (loads * apart).reshape(servers, -1, servers, ranks // servers).sum(axis=3)
        busiest = max(_ring_load(between) for between in rails.swapaxes(0, 1))
    return Exchange(
        loads,
        float((loads * ~apart).max()) / device.scale_up_gb_s,
        float(busiest) / device.scale_out_gb_s,
        float((loads * apart).sum()) / ranks,
    )


def _ring_load(between: Array) -> float:
    """Bytes of the busiest link of a ring: each goes the shorter way, half each way
    where both are as long.

    ``between``: from server to server, float[servers, servers].
    """
    servers = len(between)
    forward, backward = np.zeros(servers), np.zeros(servers)
    for source in range(servers):
        for ahead in range(1, servers):
            size = between[source, (source + ahead) % servers]
            share = 0.5 if 2 * ahead == servers else float(2 * ahead < servers)
            for step in range(ahead):
                forward[(source + step) % servers] += share * size
            for step in range(servers - ahead):
                backward[(source - step) % servers] += (1 - share) * size
    return float(max(forward.max(), backward.max()))


def pass_parts(job: StepJob, direction: Direction, *, electrical: bool) -> list[Part]:
    """The parts of one layer's pass, in order."""
    model, degrees, device, counts = job.model, job.degrees, job.device, _counts(job)
    tokens = job.tokens / degrees.tensor
    passes = 1 if direction == "forward" else 2
    sharded = model.attention_weights - model.whole_attention_weights
    weights = model.whole_attention_weights + sharded / degrees.tensor
    pairs = model.score_width * model.scored_share * job.sequence_tokens / degrees.tensor
    attention = Part("", device.compute_ns(product_flops(tokens, weights + pairs, passes)))
    held = model.experts / degrees.expert
    router = Part("", device.compute_ns(product_flops(tokens, model.hidden * held)))
    computed = tokens * model.experts_per_token
    if counts.tokens == "stage":
        computed *= degrees.tensor * degrees.data / degrees.expert
    multiplied = model.expert_weights * counts.multiplied_share
    experts = Part("", device.compute_ns(product_flops(computed, multiplied, passes)))
    reduced = _ring(job, "tensor", "all_reduce", hop_bytes(job))
    one_way = list(_exchange_parts(job, electrical))
    gathered = model.attention_weights / degrees.tensor * job.bytes_per_element
    if direction == "forward":
        before = [_ring(job, "data", "all_gather", gathered), attention, reduced, router]
        return [*before, *one_way, experts, *one_way]
    gradients = held * model.expert_weights * job.bytes_per_element
    return [
        *(*one_way, experts, *one_way, router, attention, reduced),
        _ring(job, "data", "reduce_scatter", gathered),
        _ring(job, "data", "reduce_scatter", gradients),
        _ring(job, "data", "all_gather", gradients),
    ]


def _exchange_parts(job: StepJob, electrical: bool) -> Iterator[Part]:
    """What an exchange takes inside servers, and what on the rail."""
    moved = exchange(job, electrical=electrical)
    if moved.inside_ns:
        inside = float(moved.loads.sum()) / len(moved.loads) - moved.rail_bytes
        yield Part("tensor", moved.inside_ns, "all_to_all", inside, inside)
    if moved.rail_ns:
        yield Part("expert", moved.rail_ns, "all_to_all", moved.rail_bytes, moved.rail_bytes)


def _ring(
    job: StepJob,
    lane: Literal["tensor", "data"],
    kind: Literal["all_reduce", "all_gather", "reduce_scatter"],
    size_bytes: float,
) -> Part:
    """A ring over the tensor ranks or the replicas.

    A gather of ``whole`` parts takes ``size_bytes`` of every rank, as many times more
    as there are ranks.
    """
    inside = lane == "tensor"
    ranks = job.degrees.tensor if inside else job.degrees.data
    if kind == "all_gather" and _counts(job).gathered == "whole":
        size_bytes *= ranks
    sent = ring_bytes(kind, size_bytes, ranks)
    rate = job.device.scale_up_gb_s if inside else job.device.scale_out_gb_s
    return Part(lane, sent / rate, kind, size_bytes, sent)


def expert_templates(job: StepJob, *, electrical: bool) -> list[Template]:
    """The program of every stage, for one step of training."""
    return [_template(job, stage, electrical) for stage in range(job.degrees.pipeline)]


def _template(job: StepJob, stage: int, electrical: bool) -> Template:
    template, size = Template(), hop_bytes(job)
    first, last = stage == 0, stage == job.degrees.pipeline - 1
    layers = job.model.layers // job.degrees.pipeline

    def hop(lane: str, kind: str) -> tuple[str, int]:
        return template.issue(lane, kind, size / job.device.scale_out_gb_s, size, size)

    template.begin()
    directions: tuple[Direction, ...] = ("forward", "backward")
    for direction in directions:
        forward = direction == "forward"
        receives, sends = not (first if forward else last), not (last if forward else first)
        parts = pass_parts(job, direction, electrical=electrical)
        sending = None
        for _ in range(job.micro_batches):
            if receives:
                template.wait(hop("from_before" if forward else "from_next", "recv"))
            for part in parts * layers:
                if part.lane in ("", "tensor"):
                    template.compute(part.lasts_ns, tensor=part.lane == "tensor")
                    template.tensor_bytes += part.sent_bytes
                elif part.lasts_ns:
                    template.wait(
                        template.issue(
                            part.lane, part.kind, part.lasts_ns, part.payload_bytes, part.sent_bytes
                        )
                    )
            if sends:
                if sending:
                    template.wait(sending)
                sending = hop("to_next" if forward else "to_before", "send")
        if sending:
            template.wait(sending)
    template.end()
    return template
