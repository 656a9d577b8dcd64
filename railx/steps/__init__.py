"""Generated training steps: what each rank computes and sends, as programs of a replay.

A job (:mod:`railx.steps.settings`) becomes passes of layers (:mod:`railx.steps.layers`),
these become programs of ranks (:mod:`railx.steps.programs`), whose circuits follow a
rule (:mod:`railx.steps.stage_bits`, or :class:`railx.fabric.circuits.Layout`).
"""
