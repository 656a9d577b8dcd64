"""Makes the stages that compute (nothing measured) small, below the folder that it is
given, in a process of its own.

    python -m tests.workflow.small_stages FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from railx.settings import to_dict
from tests.builders import ROOT
from workflow.config import compose_experiment
from workflow.stages import STAGES, files_of, inputs_of

__all__ = ["MADE", "experiment", "main"]

#: In the order in which they are made.
MADE = (
    *("topology", "metrics", "circuits", "transition", "network", "packets", "agreement"),
    *("mapping", "tenancy", "economics", "corpus", "plan"),
)
_WINDOW = ["warmup_cycles=200", "measured_cycles=400"]


def experiment() -> dict[str, Any]:
    """``quick`` with few items and short windows."""
    plain: dict[str, Any] = to_dict(
        compose_experiment(
            [
                "experiment=quick",
                "topologies=[railx_hyperx,railx_torus,torus_2d,railx_hyperx_m4n2]",
                "sweeps=[railx_hyperx_balanced]",
                "sweeps.railx_hyperx_balanced.loads=[0.5,3.0]",
                "sweeps.railx_hyperx_balanced.precision=0.5",
                *(f"sweeps.railx_hyperx_balanced.network.{key}" for key in _WINDOW),
                *(f"agreement.network.{key}" for key in _WINDOW),
                "agreement.repeats=2",
                "agreement.loads_over_bound=[2.0]",
                "mapping=default",
                "bandwidth=default",
                "tenancy.stream.arrivals=60",
                "tenancy.faults.samples=3",
                "corpora=[stdlib,github_like]",
                "corpora.github_like.sequences=2000",
                "plans=[static_stdlib,flexsp_stdlib,pipeline_stdlib]",
                "runs=[]",
                "figures=[]",
            ]
        )
    )
    return plain


def main(folder: Path) -> None:
    """Make every item of every stage."""
    (folder / "resources").symlink_to(ROOT / "resources")
    os.chdir(folder)
    small = experiment()
    for name in MADE:
        stage = STAGES[name]
        for item in stage.items(small):
            stage.make(
                stage.settings(small, item),
                item=item,
                inputs=inputs_of(stage, small, item),
                outputs={
                    key: files_of(small, f"{name}.{key}", [item])[item] for key in stage.outputs
                },
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
