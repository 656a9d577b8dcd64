"""The time of a training run on a cluster, from the trace of a recorded one.

Programs of ranks on a virtual clock (:mod:`railx.replay.programs`), made of recordings
(:mod:`railx.replay.recording`), their communication priced by a topology
(:mod:`railx.replay.graph_pricing`), under fabric modes and latencies
(:mod:`railx.replay.cluster_time`).
"""
