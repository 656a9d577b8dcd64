"""Generated training steps: what each rank computes and sends, as programs.

A job (:mod:`railx.steps.settings`) becomes passes of layers
(:mod:`railx.steps.layers`), these become programs of ranks for the replay
(:mod:`railx.steps.programs`). Their circuits follow a rule: light paths between ports
(:class:`railx.fabric.circuits.Layout`) or a bit a stage
(:mod:`railx.steps.stage_bits`).
"""
