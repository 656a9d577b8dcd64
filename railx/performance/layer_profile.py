"""Profiles of a decoder layer: settings, the fit and its predictions.

``training/profile.py`` measures. A rank of a Ulysses group of degree d that computes s
tokens after a context of C takes, per layer,

    time = (1/d) (a1 ((C + s)² - C²) + a2 s) + b1

so that slices of a sequence add up to the sequence except for b1. The forward and the
backward pass have separate coefficients; the backward pass of a recomputed layer takes
an additional share of its forward pass. Memory is per token of the rank: the saved
bytes of a forward pass, of all layers or of recomputed ones, and the bytes that a
backward pass leaves per token of the context (the gradients of its keys and values). A
fifth of the points, drawn by a seed, is held out of the fit and gives its error. FlexSP
reports an error of its cost model below 6 % (appendix C), InfiniPipe typically below
5 % in time and memory; the fit records both numbers beside ours.

The exchanges of a group are measured too, if configured, all-to-all of a layer forward
and backward: time = latency + bytes / bandwidth for each degree. Like FlexSP's public
code, the cost model uses the bandwidth only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np

from railx.effort import Cost, Costs
from railx.performance.decoder import ModelSettings
from railx.settings import (
    AtLeast,
    Between,
    NonNegative,
    NotEmpty,
    Positive,
    PowerOfTwo,
    SettingsError,
)
from railx.vocabulary.arrays import FloatArray

#: Least points without recomputation for a fit: three coefficients and a fifth set
#: aside.
MIN_POINTS = 5
#: Largest relative error of a predicted time that FlexSP states of its cost model.
PUBLISHED_ERROR = 0.06
#: Typical error of InfiniPipe's cost model in time and in memory.
PUBLISHED_PIPELINE_ERROR = 0.05
#: Fields of a fit with the coefficients of a layer's time, and of its forward part.
_LAYER_TIMES = ("quadratic_ms_per_token2", "linear_ms_per_token", "constant_ms")
_FORWARD_TIMES = tuple(f"forward_{name}" for name in _LAYER_TIMES)
#: Relative errors below this are rounding.
_ROUNDING = 1e-9

#: A row of a profile's table, and its degree, context and tokens.
_Row: TypeAlias = Mapping[str, Any]
_Rows: TypeAlias = Sequence[_Row]
_Key: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class ProfileSettings:
    """Times and memory of a decoder layer, measured on the present device.

    Every length is measured with every degree and every context, and again with
    checkpointed layers where requested.
    """

    model: ModelSettings
    """The model; all its layers have the same shape."""
    device: Literal["auto", "cpu", "cuda"]
    """Where to measure; ``auto`` takes CUDA where it is there."""
    precision: Literal["float32", "float64", "bfloat16"]
    """Precision of activations, products and weights, as sharding gives them to a
    layer."""
    attention: Literal["auto", "sdpa", "varlen", "blocks"]
    """Attention kernel; ``auto`` takes the fastest that can run."""
    compile: bool
    """Whether layers are compiled by ``torch.compile``."""
    threads: Annotated[int, AtLeast(1)]
    """CPU threads; with one, times are CPU times, with more, wall times."""
    layers: Annotated[int, Between(1, 2)]
    """Layers that are run one after another; times and memory are per layer."""
    lengths: tuple[Annotated[int, AtLeast(1)], ...]
    """Tokens of a slice, those of all ranks of its group together."""
    degrees: tuple[Annotated[int, AtLeast(1)], ...]
    """Degrees of sequence parallelism: a rank has its share of the tokens and of the
    heads. What it would send is rearranged but not sent."""
    contexts: tuple[Annotated[int, AtLeast(0)], ...]
    """Earlier tokens of the same sequence, which a slice attends to."""
    checkpointing: tuple[bool, ...]
    """Whether layers keep their input only and are computed again in the backward
    pass."""
    warmups: Annotated[int, AtLeast(1)]
    """Warm-up passes of each point, not timed."""
    repeats: Annotated[int, AtLeast(1)]
    """Passes of each point that are timed; tables hold their medians."""
    exchange_degrees: tuple[Annotated[int, AtLeast(2), PowerOfTwo()], ...]
    """Degrees whose all-to-all is measured, by as many processes on this machine: gloo
    on CPU cores, NCCL with a GPU for each. Empty measures none, and planners take the
    cluster's bandwidths."""
    held_out_seed: Annotated[int, AtLeast(0)]
    """Seed that draws the fifth of the points that has no part in the fit."""

    def __post_init__(self) -> None:
        for key in ("lengths", "degrees", "contexts", "checkpointing"):
            listed = getattr(self, key)
            if not listed or len(set(listed)) != len(listed):
                raise SettingsError(
                    key, f"got {list(listed)}; allowed: one value or more, each once"
                )
        if self.exchange_degrees and len(self.lengths) < 2:
            raise SettingsError(
                "exchange_degrees",
                f"got {list(self.exchange_degrees)} with one length; allowed: with two lengths or"
                " more, or []",
            )
        if False not in self.checkpointing:
            raise SettingsError(
                "checkpointing", f"got {list(self.checkpointing)}; allowed: with false among them"
            )
        for degree in (*self.degrees, *self.exchange_degrees):
            if self.model.heads % degree:
                raise SettingsError(
                    "degrees",
                    f"got {degree}; allowed: divisors of the heads of {self.model.name}, which are"
                    f" {self.model.heads}",
                )
            for length in self.lengths:
                if length % degree:
                    raise SettingsError(
                        "lengths", f"got {length}; allowed: multiples of {degree}, a degree"
                    )
        longest = max(self.lengths) + max(self.contexts)
        if self.model.positions == "learned" and longest > self.model.max_positions:
            raise SettingsError(
                "lengths",
                f"got {max(self.lengths)} after a context of {max(self.contexts)}; allowed:"
                f" together at most {self.model.max_positions}, the positions of"
                f" {self.model.name}",
            )
        points = len(self.lengths) * len(self.degrees) * len(self.contexts)
        if points < MIN_POINTS:
            raise SettingsError(
                "lengths",
                f"got {points} points with degrees and contexts; allowed: {MIN_POINTS} or more",
            )
        if len({(c + s) ** 2 - c**2 for s in self.lengths for c in self.contexts}) < 3:
            raise SettingsError(
                "lengths",
                f"got {list(self.lengths)} after contexts {list(self.contexts)}; allowed: at"
                " least three different products of queries and keys",
            )

    def costs(self) -> Costs:
        model, longest = self.model, max(self.lengths)
        passes = self.warmups + self.repeats
        context = longest + max(self.contexts)
        per_token = model.hidden * (12.0 * (model.hidden + model.feed_forward) + context)
        tokens = float(sum(self.lengths)) * len(self.degrees)
        operations = passes * self.layers * tokens * per_token
        rate = 1e13 if self.device == "cuda" else 1e10
        return {
            "threads": Cost(bytes=2**23) * self.threads,
            "degrees": Cost(bytes=2**20) * max(self.degrees),
            "contexts": Cost(bytes=1e3) * max(self.contexts),
            "exchange_degrees": Cost(bytes=2**28) * max(self.exchange_degrees, default=0),
            "lengths": Cost(operations / rate, 40.0 * longest * model.hidden),
            "repeats": Cost(1e-3) * passes * len(self.lengths),
        }


@dataclass(frozen=True)
class Point:
    """A point of a profile: a rank of ``degree`` computes ``tokens`` after ``context``.

    ``part`` is ``layer``, ``ends`` (the embedding, the head and the loss) or
    ``all_to_all``: what all ranks of a group exchange for a layer.
    """

    part: Literal["layer", "ends", "all_to_all"]
    degree: int
    context: int
    tokens: int
    checkpointed: bool = False


def layer_points(settings: ProfileSettings) -> list[Point]:
    """All points of a profile: layers, then ends without a group, then exchanges."""
    lengths = settings.lengths
    shapes = product(settings.checkpointing, settings.degrees, settings.contexts, lengths)
    groups = product(settings.exchange_degrees, lengths)
    layers = [
        Point("layer", degree, context, tokens, again) for again, degree, context, tokens in shapes
    ]
    ends = [Point("ends", 1, 0, tokens) for tokens in lengths]
    return layers + ends + [Point("all_to_all", degree, 0, tokens) for degree, tokens in groups]


@dataclass(frozen=True)
class ProfileFit:
    """A profile as planners use it; times per layer, memory per token of a rank.

    Errors are relative to measurements, on the points outside the fit.
    """

    model: Annotated[str, NotEmpty()]
    """Name of the model that was measured; plans of another are refused."""
    device: Annotated[str, NotEmpty()]
    """The device."""
    dtype: Literal["float32", "float64", "bfloat16"]
    """Precision of the activations."""
    torch: Annotated[str, NotEmpty()]
    """Version of torch."""
    quadratic_ms_per_token2: Annotated[float, NonNegative()]
    """a1: time of a layer, forward and backward, per token squared."""
    linear_ms_per_token: Annotated[float, NonNegative()]
    """a2: time of a layer per token."""
    constant_ms: Annotated[float, NonNegative()]
    """b1: constant time of a layer."""
    forward_quadratic_ms_per_token2: Annotated[float, NonNegative()]
    """The forward part of a1; the rest is the backward part."""
    forward_linear_ms_per_token: Annotated[float, NonNegative()]
    """The forward part of a2."""
    forward_constant_ms: Annotated[float, NonNegative()]
    """The forward part of b1."""
    recompute_over_forward: Annotated[float, NonNegative()] | None
    """What a recomputed layer's backward pass takes more, over its forward pass; null
    where no layer was recomputed."""
    ends_linear_ms_per_token: Annotated[float, NonNegative()]
    """Time of embedding, head and loss per token."""
    ends_constant_ms: Annotated[float, NonNegative()]
    """Constant time of embedding, head and loss."""
    forward_share: Annotated[float, Between(0, 1)]
    """Forward part of a layer's time."""
    activation_bytes_per_token: Annotated[float, Positive()]
    """What a layer keeps for its backward pass."""
    exchange_bytes_per_token: Annotated[float, NonNegative()]
    """What it keeps beyond that in a group of several ranks: what they exchange."""
    checkpoint_bytes_per_token: Annotated[float, NonNegative()] | None
    """What a recomputed layer keeps; null where no layer was recomputed."""
    ends_bytes_per_token: Annotated[float, NonNegative()]
    """What embedding, head and loss keep for theirs."""
    context_bytes_per_token: Annotated[float, NonNegative()] | None
    """What a layer's backward pass leaves for each token of the context, that is the
    gradients of its keys and values; null without a context."""
    all_to_all_gb_s: Mapping[str, Annotated[float, Positive()]]
    """Bandwidth of one rank in an all-to-all by degree, of those that were measured."""
    all_to_all_latency_ms: Mapping[str, Annotated[float, NonNegative()]]
    """Time of the exchanges of a layer whatever they move, by degree; planners leave it
    out."""
    held_out_all_to_all_error: Annotated[float, NonNegative()] | None
    """Median error of the times of exchanges that had no part in the fit; null
    without."""
    points: Annotated[int, AtLeast(1)]
    """Points of layers that were measured without recomputation."""
    held_out: Annotated[int, AtLeast(1)]
    """Those of them that had no part in the fit."""
    held_out_error: Annotated[float, NonNegative()]
    """Median error of their times."""
    held_out_largest_error: Annotated[float, NonNegative()]
    """Largest error of their times."""
    held_out_forward_error: Annotated[float, NonNegative()]
    """Median error of the times of their forward passes."""
    held_out_backward_error: Annotated[float, NonNegative()]
    """Median error of the times of their backward passes."""
    held_out_recompute_error: Annotated[float, NonNegative()] | None
    """Median error of the times of the same points, recomputed; null without."""
    published_error: Annotated[float, NonNegative()]
    """Most that FlexSP's cost model is off, as its paper says, to compare."""
    published_pipeline_error: Annotated[float, NonNegative()]
    """What InfiniPipe's cost model is typically off in time and memory, as its paper
    says, to compare."""
    held_out_memory_error: Annotated[float, NonNegative()]
    """Median error of what a forward pass keeps, of those without context."""
    held_out_checkpoint_memory_error: Annotated[float, NonNegative()] | None
    """The same of recomputed layers; null without."""
    fidelity: Literal["measured_cpu", "measured_gpu"]
    """How it was measured."""

    @property
    def element_bytes(self) -> int:
        """Bytes of one activation."""
        return {"float32": 4, "float64": 8, "bfloat16": 2}[self.dtype]

    @property
    def forward_factor(self) -> float:
        """Time of recomputing a layer over its forward pass."""
        return 1.0 if self.recompute_over_forward is None else self.recompute_over_forward

    def input_bytes_per_token(self, model: ModelSettings) -> float:
        """What a recomputed layer keeps: as measured, or its input."""
        measured = self.checkpoint_bytes_per_token
        return float(self.element_bytes * model.hidden) if measured is None else measured

    def layer_ms(self, slices: Sequence[tuple[int, int]], degree: int) -> float:
        """A layer, forward and backward, over packed slices (context, tokens)."""
        squares = sum((context + new) ** 2 - context**2 for context, new in slices)
        tokens = sum(new for _, new in slices)
        shared = self.quadratic_ms_per_token2 * squares + self.linear_ms_per_token * tokens
        return shared / degree + self.constant_ms

    def ends_ms(self, tokens: int, degree: int) -> float:
        """Embedding, head and loss, forward and backward."""
        return self.ends_linear_ms_per_token * tokens / degree + self.ends_constant_ms


def validation_points(rows: _Rows, seed: int) -> frozenset[_Key]:
    """A fifth of the points of rows, one at least: (degree, context, tokens)."""
    points = sorted(map(_point, rows))
    count = max(1, (len(points) + 2) // 5)
    drawn = np.random.default_rng(seed).choice(len(points), count, replace=False)
    return frozenset(points[index] for index in drawn.tolist())


def fit_profile(rows: _Rows, seed: int) -> ProfileFit:
    """Least squares of relative errors, with no coefficient below zero.

    ``rows`` are those of a profile's table: part, degree, context, tokens,
    checkpointed, forward_ms, backward_ms, kept_bytes, left_bytes, exchanged_bytes, and
    model, device, dtype, torch, fidelity. ``seed`` draws the points outside the fit.
    """
    layer = _layers(rows)
    layer.sort(key=lambda row: (row["tokens"], row["context"], row["degree"]))
    ends = [row for row in rows if row["part"] == "ends"]
    validation = validation_points(layer, seed)
    used, aside = _parted(layer, validation)
    forward, backward = (
        _solved(_terms(used), _column(used, name)) for name in ("forward_ms", "backward_ms")
    )
    times = forward + backward
    end_times = _solved(_per_token(ends), _total_ms(ends))
    uncut = _without_context(used)
    stored = _solved(_memory_terms(uncut), _column(uncut, "kept_bytes"))
    ends_stored = _solved(_per_token(ends), _column(ends, "kept_bytes"))
    sliced = [row for row in used if row["context"]]
    left = None
    if sliced:
        # Such gradients may share their storage with those of the slice's own tokens.
        degree = _column(sliced, "degree")[:, None]
        shares = np.stack([_column(sliced, "context"), _column(sliced, "tokens")], axis=1) / degree
        left = float(_solved(shares, _column(sliced, "left_bytes"))[0])
    unused = _without_context(aside) or uncut
    again = _recomputed(rows, validation, forward, times)
    exchanges = {
        degree: _exchange([row for row in rows if _exchanges(row, degree)], seed)
        for degree in sorted({row["degree"] for row in rows if row["part"] == "all_to_all"})
    }
    exchanged = {degree: measured for degree, measured in exchanges.items() if measured is not None}
    return ProfileFit(
        **{key: layer[0][key] for key in ("model", "device", "dtype", "torch", "fidelity")},
        **dict(zip(_LAYER_TIMES, times.tolist(), strict=True)),
        **dict(zip(_FORWARD_TIMES, forward.tolist(), strict=True)),
        recompute_over_forward=again.get("share"),
        ends_linear_ms_per_token=float(end_times[0]),
        ends_constant_ms=float(end_times[1]),
        forward_share=float(_column(used, "forward_ms").sum() / _total_ms(used).sum()),
        activation_bytes_per_token=float(stored[0]),
        exchange_bytes_per_token=float(stored[1]),
        checkpoint_bytes_per_token=again.get("kept"),
        ends_bytes_per_token=float(ends_stored[0]),
        context_bytes_per_token=left,
        all_to_all_gb_s={str(degree): measured[0] for degree, measured in exchanged.items()},
        all_to_all_latency_ms={str(degree): measured[1] for degree, measured in exchanged.items()},
        held_out_all_to_all_error=float(np.median([measured[2] for measured in exchanged.values()]))
        if exchanged
        else None,
        points=len(layer),
        held_out=len(aside),
        held_out_error=_error(_terms(aside) @ times, _total_ms(aside)),
        held_out_largest_error=float(np.abs(_terms(aside) @ times / _total_ms(aside) - 1).max()),
        held_out_forward_error=_error(_terms(aside) @ forward, _column(aside, "forward_ms")),
        held_out_backward_error=_error(_terms(aside) @ backward, _column(aside, "backward_ms")),
        held_out_recompute_error=again.get("error"),
        published_error=PUBLISHED_ERROR,
        published_pipeline_error=PUBLISHED_PIPELINE_ERROR,
        held_out_memory_error=_error(_memory_terms(unused) @ stored, _column(unused, "kept_bytes")),
        held_out_checkpoint_memory_error=again.get("kept_error"),
    )


def predicted_ms(
    fit: ProfileFit, tokens: int, context: int, degree: int, checkpointed: bool = False
) -> float:
    """Time of a layer, forward and backward, and once more forward if recomputed."""
    again = (fit.recompute_over_forward or 0.0) if checkpointed else 0.0
    layer_ms = _layer_ms(fit, _LAYER_TIMES, tokens, context, degree)
    return layer_ms + again * predicted_forward_ms(fit, tokens, context, degree)


def predicted_forward_ms(fit: ProfileFit, tokens: int, context: int, degree: int) -> float:
    """Time of a layer's forward pass."""
    return _layer_ms(fit, _FORWARD_TIMES, tokens, context, degree)


def compared(rows: _Rows, fit: ProfileFit, seed: int) -> list[dict[str, Any]]:
    """The rows with the fit's predictions.

    Columns: held_out (null where a row has no part in the fit at all), predicted_ms and
    predicted_forward_ms, error (of the whole, relative to the measured time),
    predicted_kept_bytes and memory_error (of layers without context) and
    published_error.
    """
    validation = validation_points(_layers(rows), seed)
    aside = {
        ("all_to_all", *point)
        for degree in fit.all_to_all_gb_s
        for point in validation_points([r for r in rows if _exchanges(r, int(degree))], seed)
    } | {("layer", *point) for point in validation}
    return [
        {key: value for key, value in row.items() if key != "fidelity"}
        | _comparison(row, fit, aside)
        | {"fidelity": row["fidelity"]}
        for row in rows
    ]


def _comparison(
    row: _Row, fit: ProfileFit, validation: set[tuple[str, int, int, int]]
) -> dict[str, Any]:
    predicted, forward, stored, aside = None, None, None, None
    if row["part"] == "ends":
        predicted = fit.ends_ms(row["tokens"], row["degree"])
    elif row["part"] == "all_to_all":
        degree = str(row["degree"])
        if degree in fit.all_to_all_gb_s:
            moving_ms = row["exchanged_bytes"] / (fit.all_to_all_gb_s[degree] * 1e6)
            predicted = fit.all_to_all_latency_ms[degree] + moving_ms
    else:
        point, again = (row["tokens"], row["context"], row["degree"]), row["checkpointed"]
        predicted = predicted_ms(fit, *point, again)
        forward = predicted_forward_ms(fit, *point)
        if not row["context"]:
            token_bytes = fit.activation_bytes_per_token
            token_bytes += fit.exchange_bytes_per_token if row["degree"] > 1 else 0.0
            if again:
                token_bytes = fit.checkpoint_bytes_per_token or 0.0
            stored = token_bytes * (row["tokens"] / row["degree"])
    if predicted is not None:
        aside = (row["part"], *_point(row)) in validation
    measured = row["forward_ms"] + row["backward_ms"]
    return {
        "held_out": aside,
        "predicted_ms": predicted,
        "predicted_forward_ms": forward,
        "error": None if predicted is None else abs(predicted / measured - 1),
        "predicted_kept_bytes": stored,
        "memory_error": None if stored is None else abs(stored / row["kept_bytes"] - 1),
        "published_error": fit.published_error,
    }


def _recomputed(
    rows: _Rows,
    validation: frozenset[_Key],
    forward: FloatArray,
    times: FloatArray,
) -> dict[str, float]:
    """Time and memory of recomputed layers, and the errors of both.

    ``share`` of a forward pass more in the backward pass, ``kept`` bytes of a token;
    ``error`` and ``kept_error`` on the points outside the fit. Empty without such
    layers.
    """
    recomputed = _layers(rows, checkpointed=True)
    if not recomputed:
        return {}
    plain = {_point(row): row for row in _layers(rows)}
    used, aside = _parted(recomputed, validation)
    without_context = _without_context(used)
    unused = _without_context(aside) or without_context
    once = _column(used, "forward_ms")
    without = [plain[_point(row)] for row in used]
    more = _column(used, "backward_ms") - _column(without, "backward_ms")
    share = float(_solved((once / _total_ms(used))[:, None], more / _total_ms(used), False)[0])
    stored = _solved(_per_token(without_context), _column(without_context, "kept_bytes"))
    return {
        "share": share,
        "kept": float(stored[0]),
        "error": _error(_terms(aside) @ (times + share * forward), _total_ms(aside)),
        "kept_error": _error(_per_token(unused) @ stored, _column(unused, "kept_bytes")),
    }


def _parted(rows: _Rows, validation: frozenset[_Key]) -> tuple[list[_Row], list[_Row]]:
    """The rows in the fit, and the others."""
    return (
        [row for row in rows if _point(row) not in validation],
        [row for row in rows if _point(row) in validation],
    )


def _error(predicted: FloatArray, measured: FloatArray) -> float:
    """Median of the relative errors."""
    return float(np.median(np.abs(predicted / measured - 1)))


def _layer_ms(
    fit: ProfileFit, names: Sequence[str], tokens: int, context: int, degree: int
) -> float:
    row = {"tokens": tokens, "context": context, "degree": degree}
    return float(_terms([row])[0] @ np.array([getattr(fit, name) for name in names]))


def _exchanges(row: _Row, degree: int) -> bool:
    return bool(row["part"] == "all_to_all" and row["degree"] == degree)


def _exchange(rows: _Rows, seed: int) -> tuple[float, float, float] | None:
    """GB/s, latency in ms, error outside the fit; None where more takes no longer."""
    used, aside = _parted(rows, validation_points(rows, seed))
    used = used if len(rows) > 2 else list(rows)

    def terms(some: _Rows) -> FloatArray:
        return np.stack([_column(some, "exchanged_bytes") / 1e6, np.ones(len(some))], axis=1)

    coefficients = _solved(terms(used), _total_ms(used))
    if coefficients[0] <= 0:
        return None
    error = _error(terms(aside) @ coefficients, _total_ms(aside))
    return float(1 / coefficients[0]), float(coefficients[1]), error


def _layers(rows: _Rows, *, checkpointed: bool = False) -> list[_Row]:
    return [r for r in rows if r["part"] == "layer" and r["checkpointed"] == checkpointed]


def _point(row: _Row) -> _Key:
    return row["degree"], row["context"], row["tokens"]


def _without_context(rows: _Rows) -> list[_Row]:
    return [row for row in rows if not row["context"]]


def _column(rows: _Rows, name: str) -> FloatArray:
    return np.array([row[name] for row in rows], dtype=np.float64)


def _total_ms(rows: _Rows) -> FloatArray:
    return _column(rows, "forward_ms") + _column(rows, "backward_ms")


def _terms(rows: _Rows) -> FloatArray:
    """Factors of the three coefficients of time, [rows, 3]."""
    tokens, context, degree = (_column(rows, name) for name in ("tokens", "context", "degree"))
    squares = (context + tokens) ** 2 - context**2
    return np.stack([squares / degree, tokens / degree, np.ones(len(rows))], axis=1)


def _memory_terms(rows: _Rows) -> FloatArray:
    """A rank's tokens, the same in groups of several ranks, and one, [rows, 3]."""
    degree = _column(rows, "degree")
    rank_tokens = _column(rows, "tokens") / degree
    return np.stack([rank_tokens, rank_tokens * (degree > 1), np.ones(len(rows))], axis=1)


def _per_token(rows: _Rows) -> FloatArray:
    """A rank's tokens and one, [rows, 2]."""
    tokens = _column(rows, "tokens") / _column(rows, "degree")
    return np.stack([tokens, np.ones(len(rows))], axis=1)


def _solved(terms: FloatArray, measured: FloatArray, relative: bool = True) -> FloatArray:
    """The non-negative coefficients with the least squares of relative errors.

    There are at most three, so every subset above zero is tried, fewer first: a further
    coefficient has to explain more than rounding. ``relative`` false takes absolute
    errors.
    """
    scale = np.where((measured > 0) & relative, measured, 1.0)
    weighed, target = terms / scale[:, None], measured / scale
    # Terms differ by many orders of magnitude.
    size = np.linalg.norm(weighed, axis=0)
    count = terms.shape[1]
    there = np.flatnonzero(size).tolist()
    best, smallest = np.zeros(count), float(target @ target)
    rounding = _ROUNDING**2 * smallest
    for chosen in (list(s) for n in range(1, count + 1) for s in combinations(there, n)):
        solution = np.linalg.lstsq(weighed[:, chosen] / size[chosen], target, rcond=None)[0]
        rest = weighed[:, chosen] / size[chosen] @ solution - target
        if (solution >= 0).all() and float(rest @ rest) < smallest - rounding:
            smallest = float(rest @ rest)
            best = np.zeros(count)
            best[chosen] = solution / size[chosen]
    return best
