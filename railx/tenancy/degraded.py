"""The bandwidth of a line after failures of switches and rails, and after rewiring.

It counts links on the line's rings. A line of N nodes with r rails is a ring per rail;
as an all-to-all (N = r + 1) every pair has two links. A failed switch removes one ring;
a failed rail of a node removes that node's two links of one ring. Loads under routing
are not modelled. Plans:

* ``keep`` leaves all other circuits as they are.
* ``rewire`` sets all circuits again. After failed switches the remaining rails carry
  the first rings of the undirected decomposition, of which any first k cover as many
  pairs as k rings can, and from ceil(N / 2) rings on all of them (derived: for even N
  ring s joins the pairs whose sum modulo N - 1 is 2 s or 2 s + 1, and the hub to s and
  s - (N - 2) / 2; for odd N the first half of the rings is a decomposition of K_N).
  After failed rails the ring bypasses the node.
* ``shrink`` removes nodes until every pair has its two links again.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any, Literal

import numpy as np

from railx.errors import UserError
from railx.tenancy.grid import position_rings
from railx.vocabulary.arrays import IntArray
from railx.vocabulary.hamiltonian import undirected_rings

FaultKind = Literal["switch", "rail"]
LineSetting = Literal["hyperx", "ring"]
LinePlan = Literal["keep", "rewire", "shrink"]


def rewired_rings(length: int, rails: int) -> IntArray:
    """All-to-all rings of ``length`` nodes on ``rails`` rails: shape (rails, length).

    The rings of the undirected decomposition in order, repeated for further rails:
    every pair has a link from ceil(length / 2) rails on, two from length - 1 on.
    """
    rings = undirected_rings(length)
    return rings[np.arange(rails) % len(rings)]


def line_bandwidth(
    length: int,
    rails: int,
    setting: LineSetting,
    fault: FaultKind,
    failed: Iterable[tuple[int, int]],
    plan: LinePlan,
) -> dict[str, Any]:
    """The remaining bandwidth of a line of ``length`` nodes after failures.

    ``failed`` are (node, rail) pairs; for failed switches only the rail counts.

    * ``ring_share``: rails whose ring still joins all used nodes, over r: the share of
      a ring collective's bandwidth.
    * ``worst_pair_share`` and ``mean_pair_share``: links of pairs over those without
      failures (a rewired pair may have more), for used nodes with a direct link then.
    * ``worst_node_share``: working links of the node with the fewest over 2 r.

    Raises ValueError for an all-to-all that r rails cannot make, and where shrink
    leaves fewer than 3 nodes or no rail.
    """
    pairs_failed = sorted(set(failed))
    dead = sorted({rail for _, rail in pairs_failed}) if fault == "switch" else []
    alive = np.setdiff1d(np.arange(rails), dead)
    bad = pairs_failed if fault == "rail" else []
    used = np.arange(length)
    if len(alive) == 0:
        raise UserError(f"failed: all {rails} rails have failed; allowed: at most {rails - 1}")
    rings = position_rings(length, rails, setting)
    healthy = _links(rings, length)
    if plan == "shrink":
        used = np.setdiff1d(used, [node for node, _ in bad])[: len(alive) + 1]
        if len(used) < 3 or setting == "ring":
            raise UserError(
                f"plan: got shrink for {len(used)} nodes as {setting}; allowed: shrink of an"
                " all-to-all to 3 nodes or more"
            )
        links = np.zeros_like(healthy)
        links[np.ix_(used, used)] = _links(rewired_rings(len(used), len(alive)), len(used))
        intact_rails = len(alive)
    elif plan == "rewire" and fault == "switch" and setting == "hyperx":
        links, intact_rails = _links(rewired_rings(length, len(alive)), length), len(alive)
    else:
        touched = sorted({rail for _, rail in bad})
        untouched = np.setdiff1d(alive, touched)
        links, intact_rails = _links(rings[untouched], length), len(untouched)
        for rail in touched:
            out = [node for node, at in bad if at == rail]
            links += _rail_links(rings[rail], length, out, bypass=plan == "rewire")
    return _measures(healthy, links, used, rails, intact_rails)


def _measures(
    healthy: IntArray, links: IntArray, used: IntArray, rails: int, intact_rails: int
) -> dict[str, Any]:
    inside = np.zeros_like(healthy, dtype=np.bool_)
    inside[np.ix_(used, used)] = True
    joined = np.triu((healthy > 0) & inside, k=1)
    before, now = healthy[joined], links[joined]
    return {
        "nodes_used": len(used),
        "ring_share": intact_rails / rails,
        "pairs": len(now),
        "pairs_whole": int((now >= before).sum()),
        "pairs_reduced": int(((now < before) & (now > 0)).sum()),
        "pairs_lost": int((now == 0).sum()),
        "worst_pair_share": float((now / before).min()),
        "mean_pair_share": float(now.sum() / before.sum()),
        "worst_node_share": float(links.sum(axis=1)[used].min()) / (2 * rails),
    }


def _links(rings: IntArray, length: int) -> IntArray:
    """Links between every pair of nodes, int[length, length], symmetric."""
    arcs = (rings * length + np.roll(rings, -1, axis=1)).ravel()
    total = np.bincount(arcs, minlength=length**2).reshape(length, length)
    return total + total.T


def _rail_links(ring: IntArray, length: int, out: list[int], *, bypass: bool) -> IntArray:
    """The links of a rail without ``out``; ``bypass`` closes the ring past them."""
    total = np.zeros((length, length), dtype=np.int64)
    if bypass:
        ring = ring[~np.isin(ring, out)]
        return _links(ring[None, :], length) if len(ring) > 1 else total
    a, b = ring, np.roll(ring, -1)
    works = ~(np.isin(a, out) | np.isin(b, out))
    np.add.at(total, (a[works], b[works]), 1)
    return total + total.T


def degraded_rows(
    side: int, rails: int, failures: tuple[int, ...], samples: int, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """One row per setting, kind and number of failures, plan and random draw.

    The line has min(side, r + 1) nodes. The same draw of failures serves all settings
    and plans. Plans that are impossible or change nothing for a setting have no row.
    """
    length = min(side, rails + 1)
    plans: dict[LineSetting, tuple[LinePlan, ...]] = {
        "hyperx": ("keep", "rewire", "shrink"),
        "ring": ("keep",),
    }
    rows = []
    for count, sample in product(failures, range(samples)):
        switches = [(0, int(rail)) for rail in rng.choice(rails, size=count, replace=False)]
        chosen = rng.choice(length * rails, size=count, replace=False)
        faults: dict[FaultKind, list[tuple[int, int]]] = {
            "switch": switches,
            "rail": [divmod(int(item), rails) for item in chosen],
        }
        for setting, (fault, failed) in product(plans, faults.items()):
            left = rails - count + 1 if fault == "switch" else length - len(dict(failed))
            for plan in plans[setting]:
                if plan == "shrink" and left < 3:
                    continue
                row = {"setting": setting, "fault": fault, "failures": count, "plan": plan}
                row |= {"sample": sample, "nodes": length, "rails": rails}
                measures = line_bandwidth(length, rails, setting, fault, failed, plan)
                rows.append(row | measures | {"fidelity": "analytic"})
    return rows
