"""Compose conf/ with Hydra and check every key, type and range before anything runs.

Hydra composes; the frozen dataclasses of the rooms are the schema (``railx.settings.load``). An experiment is a list of choices:
``conf/experiment/NAME.yaml`` mounts files of the groups (topology, corpus, plan, ...) under names of its own.
"""

from __future__ import annotations

import dataclasses
import shlex
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from railx.economics import EconomicsSettings
from railx.fabric import FabricSettings
from railx.figures import FIGURES, FigureSettings
from railx.network import CollectiveSettings, NetworkSettings, TrafficSettings
from railx.planning import BatchSettings, PlannerSettings
from railx.settings import AtLeast, NotEmpty, SettingsError, load, to_dict
from railx.topology import TopologySettings
from railx.tracking import TrackingSettings
from railx.workload import ClusterSettings, CorpusSettings, CostModelSettings, ModelSettings
from training.settings import RunSettings

__all__ = [
    "CONF",
    "Experiment",
    "PlanSettings",
    "StageSettings",
    "compose_experiment",
    "compose_stage",
    "overrides_from",
]

CONF = Path(__file__).resolve().parent.parent / "conf"


@dataclass(frozen=True)
class PlanSettings:
    """A plan to make: which sequences, on which machine, by which planner. ``corpus`` names one of the experiment's corpora."""

    corpus: str
    seed: Annotated[int, AtLeast(0)]
    batch: BatchSettings
    cluster: ClusterSettings
    model: ModelSettings
    cost_model: CostModelSettings
    planner: PlannerSettings


@dataclass(frozen=True)
class TrainingSettings:
    """A training run of the experiment: ``plan`` names the plan it follows."""

    plan: str
    run: RunSettings


@dataclass(frozen=True)
class Experiment:
    """Everything one pipeline run needs, by stage."""

    name: Annotated[str, NotEmpty()]
    seed: Annotated[int, AtLeast(0)]
    topologies: dict[str, TopologySettings]
    traffic: TrafficSettings
    networks: dict[str, NetworkSettings]
    collective: CollectiveSettings
    economics: EconomicsSettings
    corpora: dict[str, CorpusSettings]
    plans: dict[str, PlanSettings]
    training: dict[str, TrainingSettings]
    figures: dict[str, FigureSettings]
    tracking: TrackingSettings
