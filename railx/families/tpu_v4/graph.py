"""3D torus of cubes of chips, with optical circuit switches between the cubes.

Links inside a cube are copper. For every dimension and every position on a face there
is one optical switch (as many as a side has lanes). Every cube owns two of its ports,
for its plus and its minus face, and the circuits close the rings of the torus. 64 cubes
of 4 x 4 x 4 chips make 4,096 chips with 48 switches, 128 of whose 136 ports are used.
Source: TPU v4 (Jouppi et al. 2023).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from railx.families.tpu_v4.settings import TpuV4Settings
from railx.vocabulary.duplex import duplex_links
from railx.vocabulary.topology import (
    DIMENSIONS,
    Circuits,
    Links,
    Topology,
    check_size,
    chip_nodes,
    join_links,
)

__all__ = ["bisection_ports", "build", "check", "chip_places", "halves", "ports_per_chip"]

IntArray = NDArray[np.int64]


def chip_places(settings: TpuV4Settings) -> IntArray:
    """Coordinates (x, y, z) of every chip in the torus, int[3, chips].

    Chips are numbered cube by cube: chip (x, y, z) of cube (X, Y, Z) is number cube *
    s^3 + (z * s + y) * s + x with cube number (Z * y_cubes + Y) * x_cubes + X.
    """
    s = settings.cube_side
    cube, local = np.divmod(np.arange(settings.chips), s**3)
    x_cube, y_cube = cube % settings.x_cubes, cube // settings.x_cubes % settings.y_cubes
    z_cube = cube // (settings.x_cubes * settings.y_cubes)
    return np.stack(
        [x_cube * s + local % s, y_cube * s + local // s % s, z_cube * s + local // s**2]
    )


def check(settings: TpuV4Settings) -> None:
    """Refuse more links than fit in memory."""
    surface = settings.cubes * settings.cube_side**2
    check_size("x_cubes", 6 * (settings.chips + surface * (settings.n - 1)))


def build(settings: TpuV4Settings) -> Topology:
    """Build the torus.

    Rail of lane i at face position p: p * n + i. Optical switch: dimension * s^2 n +
    rail.

    Rail of lane i at face position p: p * n + i; optical switch: dimension * s^2 n +
    rail. A switch serves all cubes: the plus face of cube c is plugged into port 2c,
    its minus face into port 2c + 1. ``line`` of a circuit numbers the rows of cubes of
    its dimension.
    """
    parts = [_dimension(settings, dimension) for dimension in range(3)]
    names = Circuits.__dataclass_fields__
    return Topology(
        settings=settings,
        chips=settings.chips,
        nodes=settings.cubes,
        switches=0,
        chip_node=chip_nodes(settings.chips, settings.cube_side**3),
        links=join_links([inner for inner, _, _ in parts] + [faces for _, faces, _ in parts]),
        circuits=Circuits(
            **{
                name: np.concatenate([getattr(circuits, name) for _, _, circuits in parts])
                for name in names
            }
        ),
    )


def halves(settings: TpuV4Settings) -> NDArray[np.int8]:
    """Half (0 or 1) of each chip when the longest dimension is cut in the middle."""
    longest = int(np.argmax(settings.lengths))
    upper: NDArray[np.int8] = (
        chip_places(settings)[longest] >= settings.lengths[longest] // 2
    ).astype(np.int8)
    return upper


def bisection_ports(settings: TpuV4Settings) -> int:
    """Ports in one direction across that cut.

    Both boundaries of the cut rings, n links in each of the other lines.
    """
    return 2 * settings.n * settings.chips // max(settings.lengths)


def ports_per_chip(settings: TpuV4Settings) -> int:
    """Ports of a chip: n on each of its 6 sides."""
    return 6 * settings.n


def neighbour(settings: TpuV4Settings, dimension: int, step: int) -> IntArray:
    """For every chip the one ``step`` places further round the ring of a dimension."""
    places = chip_places(settings)
    number = np.empty(settings.lengths, dtype=np.int64)
    number[tuple(places)] = np.arange(settings.chips)
    places[dimension] = (places[dimension] + step) % settings.lengths[dimension]
    moved: IntArray = number[tuple(places)]
    return moved


def _dimension(settings: TpuV4Settings, dimension: int) -> tuple[Links, Links, Circuits]:
    """Inner links, optical links and circuits of one dimension."""
    s, n = settings.cube_side, settings.n
    chip, following = np.arange(settings.chips), neighbour(settings, dimension, 1)
    places = chip_places(settings)
    at_face = places[dimension] % s == s - 1
    inner = duplex_links(
        chip[~at_face],
        following[~at_face],
        "internal",
        gbps=settings.port_gbps,
        latency_ns=settings.internal_latency_ns,
        lanes=n,
    )
    across = [d for d in range(3) if d != dimension]
    position = places[across[1]][at_face] % s * s + places[across[0]][at_face] % s
    first, rail = np.broadcast_arrays(chip[at_face][:, None], position[:, None] * n + np.arange(n))
    first, rail = first.ravel(), rail.ravel()
    faces = duplex_links(
        first,
        following[first],
        "optical",
        gbps=settings.port_gbps,
        latency_ns=settings.external_latency_ns,
        rail=rail,
    )
    cube, next_cube = first // s**3, following[first] // s**3
    line = (
        places[across[1]][first] // s * settings.cubes_each[across[0]]
        + places[across[0]][first] // s
    )
    circuits = Circuits(
        ocs=(dimension * s * s * n + rail).astype(np.int32),
        port_a=(2 * cube).astype(np.int32),
        port_b=(2 * next_cube + 1).astype(np.int32),
        rail=rail.astype(np.int32),
        dimension=np.full(len(first), DIMENSIONS.index("xyz"[dimension]), dtype=np.int8),
        line=line.astype(np.int32),
        node_a=cube.astype(np.int32),
        node_b=next_cube.astype(np.int32),
    )
    return inner, faces, circuits
