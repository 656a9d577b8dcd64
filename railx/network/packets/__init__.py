"""The packet simulator: any topology and routing table under one cycle model.

The package exports what needs no compiled core: sweeps, their shards and their summary.
"""

from railx.network.packets.sweep import Sweep, merged, shard_of, sweep_loads, swept_seeds

__all__ = ["Sweep", "merged", "shard_of", "sweep_loads", "swept_seeds"]
