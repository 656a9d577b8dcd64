"""A small job and small topologies, from the shipped files where those are small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from railx.mapping.settings import JobSettings, MappingSettings
from railx.settings import load
from tests.builders import CATALOGUE, CONF, SMALL_JOB
from workflow.composer import compose

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
def shipped_mapping() -> Callable[..., dict[str, Any]]:
    """A shipped mapping as plain data, ``jobs`` and all."""

    def compose_mapping(name: str) -> dict[str, Any]:
        mounted = {"defaults": [{"/mapping@mapping": name}]}
        mapping: dict[str, Any] = compose(CONF, mounted)["mapping"]
        return mapping | {"catalogue": str(CATALOGUE)}

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
