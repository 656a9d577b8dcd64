"""The largest job that failed servers leave, as a share of a network's chips."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from railx.families import family_of
from railx.tenancy.places import NetworkPlaces
from railx.vocabulary.topology import FamilySettings

__all__ = ["Usable", "usable_share"]


class Usable(NamedTuple):
    """Mean share of the chips in the largest job, and how it was got: the family's rule
    of places (drawn failures), or ``closed form`` where a job takes any units.
    """

    share: float
    basis: str


def usable_share(
    settings: FamilySettings,
    chips: int,
    chips_per_node: int,
    server_chips: int,
    faults: float,
    samples: int,
    seed: int,
) -> Usable:
    """The share of chips in the largest job with a share ``faults`` of servers failed.

    A server has ``server_chips``. What fails with any of its chips is the family's unit
    of places; a node, where the family has no rule for this network. Servers fail
    independently.
    """
    places = None
    if family_of(settings).job_places is not None:
        places = NetworkPlaces(settings)
    if places is None or places.chips != chips or places.places.rule == "any":
        unit = chips_per_node if places is None else max(places.unit_chips, chips_per_node)
        return Usable((1 - faults) ** max(1, -(-unit // server_chips)), "closed form")
    servers = -(-chips // server_chips)
    rng, shares = np.random.default_rng(seed), []
    for _ in range(samples):
        failed = np.repeat(rng.random(servers) < faults, server_chips)[:chips]
        shares.append(places.largest(~failed) / chips)
    return Usable(float(np.mean(shares)), places.places.rule)
