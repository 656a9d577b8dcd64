"""Sharded data parallelism up to 2,048 devices, with tensor ranks and stages.

The question of 'Hardware Scaling Trends and Diminishing Returns' (arXiv 2411.13055),
whose numbers are known here from public posts alone: how throughput of a device falls
as replicas grow at a constant batch a device, and whether small degrees of tensor or
pipeline parallelism help. Nothing is fitted to these numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from railx.performance.devices import Device, device_named
from railx.performance.layers import Setting
from railx.performance.models import model_named
from railx.performance.networks import Kind, TwoLevelRing
from railx.performance.plans import Array, Plan, Plans
from railx.performance.programs import default_constants, program_named
from railx.performance.search import Priced, price

__all__ = ["NETWORKS", "GridRing", "scaling_rows", "setting_of"]

FIDELITY = "analytic"
_MODEL, _PROGRAM = "llama2_7b", "llm_foundry"
_DEVICES = ("h100_80gb", "a100_80gb")
#: Llama 2's sequences, two a device: those of the posts' runs are not known here.
_TOKENS, _SEQUENCES_A_DEVICE = 4096, 2
_DEGREES = (1, 2, 4, 8)
_MEMORY_SHARE = 0.9
#: Fields of a plan that a row has.
_SHOWN = ("tensor", "pipeline", "data", "micro_batch", "sharding", "recompute")
#: Parts of a step in which a device computes.
_BUSY = ("compute", "recompute", "optimizer")


class GridRing(TwoLevelRing):
    """Nodes in a square grid whose rows and columns are rings (RailX).

    A collective of k devices in each of n nodes goes inside nodes, along rows, then
    along columns: k - 1 and 2 (sqrt(n) - 1) hops, where one ring over all has n (k - 1)
    and n - 1. Half of the data begins with the columns, so that all ports are busy and
    the bytes take as long as on that ring.
    """

    def time_s(self, kind: Kind, size_bytes: Array, members: Array, inside: Array) -> Array:
        around = super().time_s(kind, size_bytes, members, inside)
        if kind == "send":
            return around
        inside = np.maximum(np.floor(inside), 1.0)
        nodes = np.maximum(np.asarray(members, float) / inside, 1.0)
        without_hops = replace(self, fast_latency_s=0.0, slow_latency_s=0.0)
        bytes_s = TwoLevelRing.time_s(without_hops, kind, size_bytes, members, inside)
        hops_s = (inside - 1) * self.fast_latency_s + 2 * (np.sqrt(nodes) - 1) * self.slow_latency_s
        passes = 2 if kind == "all_reduce" else 1
        return np.where(nodes > 1, bytes_s + passes * hops_s, around)


#: Networks of nodes, all with the bandwidth of a device between nodes as it is sold.
#: Rings of tensor-parallel replicas stay on rails, so that rails without spines time as
#: rails with them.
NETWORKS: dict[str, type[TwoLevelRing]] = {
    "rail_optimised": TwoLevelRing,
    "rail_only": TwoLevelRing,
    "opus_rails": TwoLevelRing,
    "railx_torus": GridRing,
}
#: Photonic rails whose circuits are set once for the rings of replicas have none for
#: stages.
_ONE_STAGE = "opus_rails"


def setting_of(device_name: str, network: str) -> Setting:
    """Llama 2 7B under FSDP on a device, with the constants of its fitted runs."""
    device: Device = device_named(device_name)
    constants = default_constants(device_name, _PROGRAM)
    ring = NETWORKS[network].of(
        device, fast_share=constants.fast_share, slow_share=constants.slow_share
    )
    return Setting(model_named(_MODEL), device, ring, program_named(_PROGRAM), constants)


def scaling_rows(devices: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """The fastest plan that fits for every pair of tensor and pipeline degrees.

    Columns: network, device, devices, tensor, pipeline, data, micro_batch, sharding,
    recompute, step_s, tokens_per_s_device, mfu, exposed_share (communication and
    waiting over the step), tokens_per_joule (at rated watts: an upper bound of power),
    memory_gb, fastest (of all degrees), fidelity.
    """
    for device, network in product(_DEVICES, NETWORKS):
        setting = setting_of(device, network)
        for count in devices:
            rows = []
            for tensor, stages in product(_DEGREES, _DEGREES):
                if stages > 1 and network == _ONE_STAGE:
                    continue
                plans = _plans(count, tensor, stages)
                if plans:
                    rows += _fastest(price(setting, Plans.of(plans)))
            best = min((row["step_s"] for row in rows), default=0.0)
            for row in rows:
                yield {
                    "network": network,
                    "device": device,
                    "devices": count,
                    **row,
                    "fastest": row["step_s"] == best,
                    "fidelity": FIDELITY,
                }


def _plans(devices: int, tensor: int, stages: int) -> list[Plan]:
    """Plans of two sequences a device with these degrees, sharded either way."""
    replicas, left = divmod(devices, tensor * stages)
    if left or not replicas:
        return []
    sequences = _SEQUENCES_A_DEVICE * tensor * stages
    return [
        Plan(
            data=replicas,
            tensor=tensor,
            pipeline=stages,
            micro_batch=micro_batch,
            micro_batches=sequences // micro_batch,
            sequence_tokens=_TOKENS,
            sharding=sharding,
            recompute=recompute,
            sequence_parallel=tensor > 1,
        )
        for micro_batch in _DEGREES
        if sequences % micro_batch == 0
        for sharding in ("optimizer", "parameters")
        for recompute in ("none", "full")
        # One stage without tensor ranks is FSDP: parameters are sharded.
        if sharding == "parameters" or tensor * stages > 1
    ]


def _fastest(priced: Priced) -> list[dict[str, Any]]:
    setting = priced.setting
    room = setting.device.capacity_gb * 1e9 * _MEMORY_SHARE
    fits = priced.memory.total_bytes <= room
    if not fits.any():
        return []
    row = int(np.argmin(np.where(fits, priced.times.total_s, np.inf)))
    plan = priced.plans.plan(row)
    seconds = float(priced.times.total_s[row])
    busy = sum(float(priced.times.parts[name][row]) for name in _BUSY)
    rate = plan.tokens / seconds / plan.devices
    watts = setting.device.watts
    return [
        {
            **{name: getattr(plan, name) for name in _SHOWN},
            "step_s": seconds,
            "tokens_per_s_device": rate,
            "mfu": float(priced.utilisation[row]),
            "exposed_share": 1 - busy / seconds,
            "tokens_per_joule": rate / watts if watts else None,
            "memory_gb": float(priced.memory.total_bytes[row]) / 1e9,
        }
    ]
