"""The largest job that failed servers leave, as a share of a network's chips."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from railx.families import family_of
from railx.tenancy.places import NetworkPlaces
from railx.vocabulary.arrays import BoolArray
from railx.vocabulary.topology import FamilySettings


class Usable(NamedTuple):
    """Mean share of the chips in the largest job, and how it was got: the rule of jobs
    (drawn failures), or ``closed form`` where a job takes any units.
    """

    share: float
    basis: str


def usable_share(
    settings: FamilySettings,
    chips: int,
    server_chips: int,
    faults: float,
    samples: int,
    seed: int,
) -> Usable:
    """The share of chips in the largest job with a share ``faults`` of servers failed.

    A server has ``server_chips``, and fails independently of others. It takes every
    unit of the family that it has a part of (:class:`railx.families.family.JobPlaces`).
    A family that does not say where its jobs fit is one of any servers.
    """
    places = family_of(settings).job_places
    if places is None or places.rule == "any":
        unit = server_chips if places is None else places.unit_chips(settings)
        return Usable((1 - faults) ** max(1, -(-unit // server_chips)), "closed form")
    network = NetworkPlaces(settings)
    rng, shares = np.random.default_rng(seed), []
    for _ in range(samples):
        healthy = _healthy(network.units, network.unit_chips, server_chips, faults, rng)
        shares.append(network.largest(np.repeat(healthy, network.unit_chips)) / chips)
    return Usable(float(np.mean(shares)), places.rule)


def _healthy(
    units: int, unit_chips: int, server_chips: int, faults: float, rng: np.random.Generator
) -> BoolArray:
    """Units without a failed server; consecutive units share one where it is larger."""
    if unit_chips >= server_chips:
        intact = (1 - faults) ** -(-unit_chips // server_chips)
        return np.asarray(rng.random(units) >= 1 - intact)
    shared = server_chips // unit_chips
    return np.repeat(rng.random(-(-units // shared)) >= faults, shared)[:units]
