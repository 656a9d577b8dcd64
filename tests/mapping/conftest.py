"""A small job and small topologies, from the shipped files where those are small."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from railx.families import TopologySettings, build_topology
from railx.mapping import JobSettings, MappingSettings
from railx.settings import load
from railx.vocabulary.topology import Topology
from workflow.config import read_choice

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"

SMALL_JOB: dict[str, Any] = {
    "model": {
        "name": "small",
        "layers": 8,
        "hidden": 512,
        "heads": 16,
        "kv_heads": 8,
        "feed_forward": 1024,
        "vocabulary": 1000,
    },
    "experts": None,
    "layout": {"mesh": {"tensor": 4}, "x": {"data": 4}, "y": {"pipeline": 4}},
    "sequence_tokens": 4096,
    "micro_batches": 3,
    "bytes_per_element": 2,
    "gradient_bytes_per_element": 4,
    "chip": {"peak_tflops": 100.0, "efficiency": 0.5},
}
EXPERTS: dict[str, Any] = {
    "experts": {"experts": 8, "experts_per_token": 2},
    "layout": {"mesh": {"tensor": 4}, "x": {"expert": 4}, "y": {"data": 2, "pipeline": 2}},
}


@pytest.fixture(scope="session")
def job_of() -> Callable[..., JobSettings]:
    def make(**changes: Any) -> JobSettings:
        job: JobSettings = load(JobSettings, SMALL_JOB | changes, "job")
        return job

    return make


@pytest.fixture(scope="session")
def experts() -> dict[str, Any]:
    """What turns the small job into a mixture of experts."""
    return EXPERTS


@pytest.fixture(scope="session")
def topology_of() -> Callable[..., Topology]:
    """A shipped topology, with changed settings."""

    def make(name: str, **changes: Any) -> Topology:
        plain = read_choice(CONF / "topology" / f"{name}.yaml") | changes
        return build_topology(load(TopologySettings, plain, "topology"))

    return make


@pytest.fixture(scope="session")
def shipped_mapping() -> Callable[..., dict[str, Any]]:
    """A shipped mapping as plain data, ``jobs`` and all."""

    def compose_mapping(name: str) -> dict[str, Any]:
        with initialize_config_dir(version_base=None, config_dir=str(CONF)):
            plain: Any = OmegaConf.to_container(
                compose(config_name=f"mapping/{name}"), resolve=True
            )
        mapping: dict[str, Any] = plain["mapping"] | {
            "catalogue": str(ROOT / "resources/catalogue/prices.csv")
        }
        return mapping

    return compose_mapping


@pytest.fixture(scope="session")
def small_mapping(shipped_mapping: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """RailX of 100 chips (nodes of 2 x 2, 8 ports per chip), a fat tree of 128 and a
    torus of 100, with one small job.
    """
    topologies = {
        "railx_hyperx": {"routings": ["balanced"]},
        "fat_tree": {"routings": ["min"]},
        "torus_2d": {"routings": ["min"], "priced": False},
    }
    base = shipped_mapping("default")
    plain = base | {
        "jobs": {"small": SMALL_JOB},
        "topologies": topologies,
        "reference": "railx_hyperx",
    }
    load(MappingSettings, plain, "mapping")
    return plain
