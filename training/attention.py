"""Causal attention over packed sequences of different lengths, without padding.

A packed call holds several sequences one after another. Each has some queries and at
least as many keys: the keys that come before the queries are context (earlier slices of
the same sequence), and the last query sees the last key.

Three kernels, none of which stores a score or a mask for each pair of tokens:

* ``varlen``: one call of the fused variable-length kernel, for half precision on CUDA;
* ``sdpa``: scaled_dot_product_attention per sequence, restricted to its fused kernels;
  these align the first query with the first key, so that sequences with context use
  ``blocks``;
* ``blocks``: tiles of queries and keys with plain matrix products, on every device and
  in every precision.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from railx.settings import SettingsError

Kernel = Literal["sdpa", "varlen", "blocks"]

#: The kernels of scaled_dot_product_attention that store no scores.
_FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]

#: Queries and keys of a tile of ``blocks``.
_QUERY_TILE, _KEY_TILE = 128, 512


@dataclass(frozen=True)
class Packing:
    """The numbers of queries and keys of each sequence of a packed call, in order.

    ValueError where their lengths differ or a sequence has fewer keys than queries.
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    _offsets: dict[torch.device, tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if len(self.queries) != len(self.keys) or any(
            k < q for q, k in zip(self.queries, self.keys, strict=False)
        ):
            raise ValueError(
                f"queries {self.queries} and keys {self.keys}; allowed: as many keys as queries or"
                " more, for each sequence"
            )

    @classmethod
    def without_context(cls, lengths: Sequence[int]) -> Packing:
        """Full sequences of these lengths."""
        return cls(tuple(lengths), tuple(lengths))

    def offsets(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Offsets of the sequences among the queries and among the keys.

        32-bit integers on ``device``, created by the first call: all layers share one
        asynchronous copy to the device.
        """
        if device not in self._offsets:
            both = torch.tensor(
                [[0, *accumulate(lengths)] for lengths in (self.queries, self.keys)],
                dtype=torch.int32,
            )
            if device.type == "cuda":
                both = both.pin_memory()
            queries, keys = both.to(device, non_blocking=True)
            self._offsets[device] = (queries, keys)
        return self._offsets[device]


def variable_length_attention(
    queries: Tensor, keys: Tensor, values: Tensor, packing: Packing, kernel: Kernel = "sdpa"
) -> Tensor:
    """Causal attention inside each packed sequence.

    ``queries`` [Tq, heads, head size]; ``keys`` and ``values`` [Tk, kv heads, head
    size] with kv heads dividing heads; returns [Tq, heads, head size]. Query i of a
    sequence with q queries and k keys sees its keys 0 .. k - q + i.
    """
    if kernel == "varlen":
        return _fused(queries, keys, values, packing)
    mixed = [
        _square(*parts) if kernel == "sdpa" and len(parts[0]) == len(parts[1]) else _blocks(*parts)
        for parts in zip(
            torch.split(queries, list(packing.queries)),
            torch.split(keys, list(packing.keys)),
            torch.split(values, list(packing.keys)),
            strict=True,
        )
        if len(parts[0])
    ]
    # Without queries the result is empty; the product connects it to the graph.
    if not mixed:
        return queries * 1
    # A single sequence is not copied: the backward pass needs its result anyway.
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def choose_kernel(
    choice: Literal["auto", "sdpa", "varlen", "blocks"],
    device: torch.device,
    precision: torch.dtype,
    head_size: int,
    key: str = "",
) -> Kernel:
    """The kernel for ``choice``; ``auto`` takes the fastest that can run.

    Kernels are tried on a few tokens. SettingsError names ``key`` where the chosen one
    cannot run. All take every packing, grouped heads, context, in memory of the tokens.
    """
    if device.type == "cuda":
        _activate_flash_attention_3(torch.cuda.get_device_capability(device))
    varlen = choice in ("auto", "varlen") and _varlen_runs(device, precision, head_size)
    sdpa = choice in ("auto", "sdpa") and _sdpa_runs(device, precision, head_size, grouped=False)
    if choice == "varlen" and not varlen:
        raise SettingsError(
            key,
            f"got varlen, which cannot run here in {_name(precision)} with heads {head_size} wide;"
            f" allowed on {device.type}: auto; varlen needs a CUDA device of compute capability 8.0"
            " and bfloat16",
        )
    if choice == "sdpa" and not sdpa:
        raise SettingsError(
            key,
            f"got sdpa, which has no memory-efficient kernel for {_name(precision)} with heads"
            f" {head_size} wide; allowed on {device.type}: auto, blocks",
        )
    return "varlen" if varlen else "sdpa" if sdpa else "blocks"


@cache
def _activate_flash_attention_3(capability: tuple[int, int]) -> None:
    """FlashAttention-3 in torch's fused kernels, on Hopper where it is installed."""
    activate = getattr(torch.nn.attention, "activate_flash_attention_impl", None)
    if capability[0] == 9 and activate is not None and find_spec("flash_attn_interface"):
        activate("FA3")


@cache
def varlen_available() -> bool:
    """Whether this torch has the fused variable-length kernel."""
    return _varlen_attn() is not None


def _name(precision: torch.dtype) -> str:
    return str(precision).removeprefix("torch.")


# ---- sdpa


def _square(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One sequence without context, by a fused kernel or not at all."""
    grouped = queries.shape[1] != keys.shape[1]
    if grouped and not _sdpa_runs(queries.device, queries.dtype, queries.shape[2], grouped=True):
        keys, values = _repeated(queries, keys, values)
        grouped = False
    queries, keys, values = (part.transpose(0, 1)[None] for part in (queries, keys, values))
    with sdpa_kernel(_FUSED):
        mixed = functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, enable_gqa=grouped
        )
    return mixed[0].transpose(0, 1)


@cache
def _sdpa_runs(
    device: torch.device, precision: torch.dtype, head_size: int, *, grouped: bool
) -> bool:
    """Whether a fused kernel takes causal attention, forward and backward."""
    options: dict[str, Any] = {"device": device, "dtype": precision, "requires_grad": True}
    queries = torch.zeros(1, 2, 8, head_size, **options)
    keys = torch.zeros(1, 1 if grouped else 2, 8, head_size, **options)
    return _runs(
        lambda: functional.scaled_dot_product_attention(
            queries, keys, keys, is_causal=True, enable_gqa=grouped
        )
    )


def _runs(attend: Callable[[], Tensor]) -> bool:
    # Hide the trial from a caller's saved-tensor hooks. A refused kernel warns before
    # the error.
    with (
        warnings.catch_warnings(),
        sdpa_kernel(_FUSED),
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved),
    ):
        warnings.simplefilter("ignore")
        try:
            attend().sum().backward()  # type: ignore[no-untyped-call]
        except (RuntimeError, NotImplementedError):
            return False
    return True


def _repeated(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values with a head for each head of the queries."""
    repeats = queries.shape[1] // keys.shape[1]
    return keys.repeat_interleave(repeats, dim=1), values.repeat_interleave(repeats, dim=1)


# ---- varlen


def _fused(queries: Tensor, keys: Tensor, values: Tensor, packing: Packing) -> Tensor:
    kernel = _varlen_attn()
    if kernel is None:
        raise RuntimeError("this torch has no variable-length attention kernel")
    parameters = _parameters(kernel)
    options: dict[str, Any] = (
        {"window_size": (-1, 0)} if "window_size" in parameters else {"is_causal": True}
    )
    if queries.shape[1] != keys.shape[1]:
        if "enable_gqa" in parameters:
            options["enable_gqa"] = True
        else:
            keys, values = _repeated(queries, keys, values)
    mixed: Tensor = kernel(
        queries.contiguous(),
        keys.contiguous(),
        values.contiguous(),
        *packing.offsets(queries.device),
        max(packing.queries),
        max(packing.keys),
        **options,
    )
    return mixed


@cache
def _varlen_runs(device: torch.device, precision: torch.dtype, head_size: int) -> bool:
    if (
        device.type != "cuda"
        or precision not in (torch.bfloat16, torch.float16)
        or not varlen_available()
    ):
        return False
    options: dict[str, Any] = {"device": device, "dtype": precision, "requires_grad": True}
    queries, keys = (torch.zeros(tokens, 2, head_size, **options) for tokens in (8, 16))
    return _runs(lambda: _fused(queries, keys, keys, Packing((8,), (16,))))


@cache
def _varlen_attn() -> Callable[..., Any] | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    function: Callable[..., Any] = varlen_attn
    return function


@cache
def _parameters(kernel: Callable[..., Any]) -> frozenset[str]:
    """The keyword names of the kernel, which differ between versions of torch."""
    return frozenset(inspect.signature(kernel).parameters)


# ---- blocks


class _Blocks(torch.autograd.Function):
    """Attention by tiles, at least in single precision.

    It saves the log-sum-exp of each query's scores; the backward pass recomputes every
    tile. A tile's queries have the layout [kv heads, heads of a group x queries, head
    size], so that grouped heads share their keys without copies.
    """

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        exact = torch.promote_types(queries.dtype, torch.float32)
        groups, scale = keys.shape[1], queries.shape[2] ** -0.5
        by_group = _by_group(queries, groups).to(exact) * scale
        exact_keys, exact_values = (part.transpose(0, 1).to(exact) for part in (keys, values))
        mixed, sums = torch.empty_like(by_group), by_group.new_empty(by_group.shape[:3])
        for rows, tiles in _tiles(len(queries), len(keys)):
            asked = by_group[:, :, rows].flatten(1, 2)
            top = asked.new_full(asked.shape[:2], -torch.inf)
            total, gathered = torch.zeros_like(top), torch.zeros_like(asked)
            for columns, diagonal in tiles:
                scores = _scores(asked, exact_keys[:, columns], diagonal, rows)
                higher = torch.maximum(top, scores.amax(-1))
                weights = scores.sub_(higher[..., None]).exp_()
                shrink = (top - higher).exp_()
                total = total * shrink + weights.sum(-1)
                gathered = gathered * shrink[..., None] + weights @ exact_values[:, columns]
                top = higher
            shape = mixed[:, :, rows].shape
            mixed[:, :, rows] = (gathered / total[..., None]).view(shape)
            sums[:, :, rows] = (top + total.log()).view(shape[:3])
        ungrouped = _ungrouped(mixed).to(queries.dtype)
        ctx.save_for_backward(queries, keys, values, ungrouped, sums)
        return ungrouped

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, values, mixed, sums = ctx.saved_tensors
        exact, groups, scale = sums.dtype, keys.shape[1], queries.shape[2] ** -0.5
        by_group = _by_group(queries, groups).to(exact) * scale
        exact_keys, exact_values = (part.transpose(0, 1).to(exact) for part in (keys, values))
        slopes = _by_group(gradients[0], groups).to(exact)
        # The row-wise dot product in the derivative of softmax, equal for all keys.
        taken = (slopes * _by_group(mixed, groups).to(exact)).sum(-1)
        query_slopes = torch.zeros_like(by_group)
        key_slopes, value_slopes = torch.zeros_like(exact_keys), torch.zeros_like(exact_values)
        for rows, tiles in _tiles(len(queries), len(keys)):
            asked, slope = (part[:, :, rows].flatten(1, 2) for part in (by_group, slopes))
            sum_, less = (part[:, :, rows].flatten(1, 2)[..., None] for part in (sums, taken))
            gathered = torch.zeros_like(asked)
            for columns, diagonal in tiles:
                tile_keys = exact_keys[:, columns]
                weights = _scores(asked, tile_keys, diagonal, rows).sub_(sum_).exp_()
                value_slopes[:, columns] += weights.mT @ slope
                weights *= (slope @ exact_values[:, columns].mT).sub_(less)
                gathered += weights @ tile_keys
                key_slopes[:, columns] += weights.mT @ asked
            query_slopes[:, :, rows] = gathered.view(query_slopes[:, :, rows].shape)
        return (
            _ungrouped(query_slopes * scale).to(queries.dtype),
            key_slopes.transpose(0, 1).to(keys.dtype),
            value_slopes.transpose(0, 1).to(values.dtype),
        )


_blocks: Callable[..., Tensor] = _Blocks.apply


def _by_group(heads: Tensor, groups: int) -> Tensor:
    """[T, heads, head size] to [kv heads, heads of a group, T, head size]."""
    tokens, count, size = heads.shape
    return heads.view(tokens, groups, count // groups, size).permute(1, 2, 0, 3)


def _ungrouped(by_group: Tensor) -> Tensor:
    return by_group.permute(2, 0, 1, 3).flatten(1, 2)


def _tiles(count: int, visible: int) -> Iterator[tuple[slice, list[tuple[slice, int | None]]]]:
    """The tiles of queries, each with the tiles of its visible keys.

    Query i of a partly visible tile sees keys 0 .. diagonal + i of it.
    """
    context = visible - count
    for start in range(0, count, _QUERY_TILE):
        stop = min(start + _QUERY_TILE, count)
        tiles: list[tuple[slice, int | None]] = []
        for first in range(0, context + stop, _KEY_TILE):
            last = min(first + _KEY_TILE, context + stop)
            diagonal = context + start - first
            tiles.append((slice(first, last), diagonal if diagonal < last - first - 1 else None))
        yield slice(start, stop), tiles


def _scores(asked: Tensor, keys: Tensor, diagonal: int | None, rows: slice) -> Tensor:
    """The scores of a tile, minus infinity where a query does not see a key."""
    scores = asked @ keys.mT
    if diagonal is not None:
        count = rows.stop - rows.start
        later = torch.ones(count, keys.shape[1], dtype=torch.bool, device=keys.device)
        by_query = scores.view(len(scores), -1, count, keys.shape[1])
        by_query.masked_fill_(later.triu_(diagonal + 1), -torch.inf)
    return scores
