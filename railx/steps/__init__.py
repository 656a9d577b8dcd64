"""Generated training steps: the computation and messages of each rank, as programs.

A job (:mod:`railx.steps.settings`) becomes passes of layers
(:mod:`railx.steps.layers`), and these become programs of ranks for the replay
(:mod:`railx.steps.programs`). Their circuits follow a rule: light paths between ports
(:class:`railx.fabric.circuits.Layout`) or one bit for each stage
(:class:`railx.steps.sweep.StageBits`). :mod:`railx.steps.sweep` makes the tables,
:mod:`railx.steps.split` that of a static split of bandwidth and
:mod:`railx.steps.host` that of the host's time. :mod:`railx.steps.experts` writes the
published steps with experts.
"""
