"""The ring over all chips of family ``fat_tree``, in closed form."""

from __future__ import annotations

from railx.families.fat_tree.settings import FatTreeSettings
from railx.vocabulary.line_rings import ChipOrderRing

__all__ = ["chip_order_ring"]


def chip_order_ring(settings: FatTreeSettings) -> ChipOrderRing:
    """A ring in every plane, on all ports of a chip.

    Around the chips in order all hops but the fastest: one hop per leaf leaves it, one
    per pod of three tiers leaves the pod.
    """
    in_leaf, up = 2 * settings.leaf_latency_ns, 2 * settings.global_latency_ns
    changes = settings.leaves + (settings.pods if settings.tiers == 3 else 0)
    fastest = in_leaf + (up if settings.leaf_down == 1 else 0)
    chain_latency_ns = settings.chips * in_leaf + changes * up - fastest
    return ChipOrderRing(settings.planes, chain_latency_ns)
