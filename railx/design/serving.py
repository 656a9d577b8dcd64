"""The best way to serve a model on a network: prefill or decode on all chips."""

from __future__ import annotations

from itertools import product

import numpy as np

from railx.design.point import setting_on
from railx.design.rates import GroupRates, RateStore
from railx.design.settings import PointSettings, ServingJob
from railx.design.sizes import sized_for
from railx.errors import UserError
from railx.performance.advice import setting_of
from railx.performance.plans import Plans
from railx.performance.serving import decode_times, prefill_times, serving_memory_bytes
from railx.vocabulary.topology import FamilySettings

#: Sequences of a replica that are tried.
_SEQUENCES = tuple(2**power for power in range(9))
_TENSOR = (1, 2, 4, 8)


def best_serving(
    network: FamilySettings,
    job: ServingJob,
    point: PointSettings,
    most_chips: float,
    store: RateStore,
) -> dict[str, tuple[float, str]]:
    """Most tokens a second of all chips: values with units by measure.

    Tensor degrees up to 8, one stage, as many sequences as fit into memory and latency.
    UserError where nothing fits.
    """
    setting = setting_of(point.advice)
    sized = sized_for(network, point.gpus, most_chips * point.gpus)
    setting, _ = setting_on(sized, setting, point, store)
    # Replicas fill whole expert groups; the other devices are idle.
    shapes = [
        (point.gpus // tensor // job.expert * job.expert, tensor, sequences)
        for tensor, sequences in product(_TENSOR, _SEQUENCES if job.kind == "decode" else (1,))
    ]
    data, tensor, sequences = np.array([shape for shape in shapes if shape[0]]).reshape(-1, 3).T
    if not len(data):
        raise UserError(
            f"expert: got {job.expert}; allowed: at most the {point.gpus} devices of the job"
        )
    plans = Plans.table(
        {
            "data": data,
            "tensor": tensor,
            "expert": np.full_like(tensor, job.expert),
            "micro_batch": sequences,
            "sequence_tokens": np.full_like(tensor, job.tokens),
        }
    )
    capacity = setting.device.capacity_gb * 1e9 * point.memory_share
    fits = serving_memory_bytes(setting, plans, float(job.tokens)) <= capacity
    plans = plans.take(fits)
    if not len(plans):
        raise UserError(
            f"{job.model}: fits no plan for {job.kind}; allowed: a larger expert degree"
        )
    times = prefill_times(setting, plans)
    if job.kind == "decode":
        times = decode_times(setting, plans, float(job.tokens))
    allowed = times.total_s * 1e3 <= (job.most_latency_ms if job.kind == "decode" else np.inf)
    if not allowed.any():
        raise UserError(
            f"{job.model}: a token takes {times.total_s.min() * 1e3:.3g} ms; allowed:"
            f" {job.most_latency_ms:g} (most_latency_ms)"
        )
    best = int(np.argmax(np.where(allowed, times.tokens_per_s, 0.0)))
    rates = setting.network
    assert isinstance(rates, GroupRates)
    rates.keep()
    return {
        "step": (float(times.total_s[best]), "s"),
        "tokens_per_s": (float(times.tokens_per_s[best]), "tokens/s"),
        "tensor_degree": (float(plans["tensor"][best]), ""),
        "sequences": (float(plans["micro_batch"][best]), ""),
        "exchanged_share": (
            float(
                sum(times.parts[name][best] for name in ("tensor", "context", "expert", "pipeline"))
                / times.total_s[best]
            ),
            "",
        ),
    }
