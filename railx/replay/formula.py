"""What a switch costs by formula, from the windows of a run.

The formula is Opus' (arXiv 2602.12521). A window W is the idle time of the network
between two phases. A switch asked for when the first of them ends costs max(0, L - W),
so that an iteration takes T(L) = T0 + sum of max(0, L - W). Asked for at first need,
nothing is hidden and it takes T0 + N * L.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["iteration_ms", "stall_ms", "utilisation"]


def stall_ms(latency_ms: float, windows_ms: Iterable[float]) -> float:
    """Time lost to switching, in ms: the sum of max(0, L - W) over the windows.

    A negative window hides nothing.
    """
    return sum(max(0.0, latency_ms - max(window_ms, 0.0)) for window_ms in windows_ms)


def iteration_ms(electrical_ms: float, latency_ms: float, windows_ms: Iterable[float]) -> float:
    """T(L) = T0 + sum of max(0, L - W), in ms.

    N windows of 0 give the on-demand time T0 + N * L.
    """
    return electrical_ms + stall_ms(latency_ms, windows_ms)


def utilisation(
    compute_ms: float, exposed_ms: float, latency_ms: float, windows_ms: Iterable[float]
) -> float:
    """Computation's share of an iteration.

    compute / (compute + exposed communication + stall).
    """
    return compute_ms / (compute_ms + exposed_ms + stall_ms(latency_ms, windows_ms))
