"""3D torus of cubes of chips, with optical circuit switches between the cubes.

Links inside a cube are copper. There is one optical switch for every dimension,
position on a face and lane. Every cube owns two of its ports, for its plus and its
minus face, and the circuits close the rings of the torus. 64 cubes of 4 x 4 x 4 chips
make 4,096 chips with 48 switches, 128 of whose 136 ports are used. Source: TPU v4
(Jouppi et al. 2023).

Routing is that of a 3D torus, x, y, then z, with two virtual channels per ring; the
cubes make no difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from railx.families.chip_grids import TORUS, TORUS_ROUTINGS
from railx.families.family import Family, FamilyBase, any_chips, check_radix, size_check
from railx.settings import AtLeast, NonNegative, SettingsError
from railx.vocabulary.arrays import IntArray
from railx.vocabulary.counts import Bill, Ports, smallest_size, torus_all_to_all_ports
from railx.vocabulary.grid import longest_halves
from railx.vocabulary.line_rings import torus_rings
from railx.vocabulary.routing.rings import route_rings
from railx.vocabulary.routing.table import Destinations, RoutingTable
from railx.vocabulary.topology import (
    Circuits,
    Links,
    NodeSettings,
    Topology,
    duplex_links,
    join_rows,
    plus_to_minus_circuits,
    topology_of,
)

__all__ = ["FAMILY", "TpuV4Settings", "neighbour"]


@dataclass(frozen=True)
class TpuV4Settings(FamilyBase):
    """A 3D torus of cubes of chips behind optical switches."""

    family: Literal["tpu_v4"]

    cube_side: Annotated[int, AtLeast(1)] = 4
    """Chips on a side of a cube."""
    x_cubes: Annotated[int, AtLeast(1)] = 2
    """Cubes along x."""
    y_cubes: Annotated[int, AtLeast(1)] = 2
    """Cubes along y."""
    z_cubes: Annotated[int, AtLeast(1)] = 2
    """Cubes along z."""
    n: Annotated[int, AtLeast(1)] = 1
    """Parallel ports on each of the 6 sides of a chip."""
    ocs_radix: Annotated[int, AtLeast(2)] | None = 136
    """Ports of an optical switch, two for each cube; null: just enough. Default: TPU
    v4."""
    internal_latency_ns: Annotated[float, NonNegative()] = 10.0
    """Time of flight of a link inside a cube, in nanoseconds. Default: an assumption,
    copper as inside a RailX node."""
    external_latency_ns: Annotated[float, NonNegative()] = 100.0
    """Time of flight of an optical circuit, in nanoseconds. Default: an assumption,
    about 20 m of fibre at 5 ns/m."""

    def __post_init__(self) -> None:
        for name, cubes in zip(("x_cubes", "y_cubes", "z_cubes"), self.cube_shape, strict=True):
            if cubes * self.cube_side < 2:
                raise SettingsError(
                    name,
                    f"got {cubes} with cube_side = 1; allowed: a ring of at least 2 chips; the"
                    " nearest is 2, or cube_side 2",
                )
        check_radix(self.ocs_radix, self.cubes, "cubes", "or at most {half} cubes for this radix")

    @property
    def cube_shape(self) -> tuple[int, int, int]:
        """Cubes in x, y and z."""
        return self.x_cubes, self.y_cubes, self.z_cubes

    @property
    def cubes(self) -> int:
        return self.x_cubes * self.y_cubes * self.z_cubes

    @property
    def shape(self) -> tuple[int, int, int]:
        """Chips around the rings of x, y and z."""
        x, y, z = self.cube_shape
        return self.cube_side * x, self.cube_side * y, self.cube_side * z

    @property
    def chips(self) -> int:
        return self.cubes * self.cube_side**3


# Graph


def chip_numbers(settings: TpuV4Settings) -> IntArray:
    """The chip at every position of the torus, int[x, y, z].

    Chips are numbered cube by cube: chip (x, y, z) of cube (X, Y, Z) is number cube *
    s^3 + (z * s + y) * s + x with cube number (Z * y_cubes + Y) * x_cubes + X.
    """
    s = settings.cube_side
    number = np.arange(settings.chips).reshape(*settings.cube_shape[::-1], s, s, s)
    return number.transpose(2, 5, 1, 4, 0, 3).reshape(settings.shape)


def chip_coordinates(settings: TpuV4Settings) -> IntArray:
    """Coordinates (x, y, z) of every chip in the torus, int[3, chips]."""
    position = np.argsort(chip_numbers(settings), axis=None)
    return np.stack(np.unravel_index(position, settings.shape))


def link_rows(settings: TpuV4Settings) -> int:
    """Directed links, parallel ones inside cubes once."""
    surface = settings.cubes * settings.cube_side**2
    return 6 * (settings.chips + surface * (settings.n - 1))


def build(settings: TpuV4Settings) -> Topology:
    """Build the torus.

    Lane i at face position p is rail p * n + i; its optical switch is dimension * s^2 n
    + rail. A switch serves all cubes: the plus face of cube c is on port 2c, its minus
    face on port 2c + 1. ``line`` of a circuit numbers the rows of cubes of its
    dimension.
    """
    parts = [_dimension(settings, dimension) for dimension in range(3)]
    inner, faces, circuits = zip(*parts, strict=True)
    return topology_of(
        settings,
        [*inner, *faces],
        chips=settings.chips,
        chips_per_node=settings.cube_side**3,
        circuits=join_rows(circuits),
    )


def positions(settings: TpuV4Settings) -> IntArray:
    """The index of every chip in the torus, x running fastest."""
    return np.argsort(chip_numbers(settings).T, axis=None)


def neighbour(settings: TpuV4Settings, dimension: int, step: int) -> IntArray:
    """The chips that are ``step`` links further round the ring of a dimension."""
    number, near = chip_numbers(settings), np.empty(settings.chips, dtype=np.int64)
    near[number] = np.roll(number, -step, dimension)
    return near


def _dimension(settings: TpuV4Settings, dimension: int) -> tuple[Links, Links, Circuits]:
    """Inner links, optical links and circuits of one dimension."""
    s, n = settings.cube_side, settings.n
    chip, following = np.arange(settings.chips), neighbour(settings, dimension, 1)
    coordinates = chip_coordinates(settings)
    at_face = coordinates[dimension] % s == s - 1
    ends, rate = (chip[~at_face], following[~at_face]), settings.port_gbps
    inner = duplex_links(*ends, "internal", rate, settings.internal_latency_ns, lanes=n)
    across = [d for d in range(3) if d != dimension]
    position = coordinates[across[1]][at_face] % s * s + coordinates[across[0]][at_face] % s
    first, rail = np.broadcast_arrays(chip[at_face][:, None], position[:, None] * n + np.arange(n))
    first, rail = first.ravel(), rail.ravel()
    ends, latency_ns = (first, following[first]), settings.external_latency_ns
    faces = duplex_links(*ends, "optical", rate, latency_ns, rail=rail)
    cube, next_cube = first // s**3, following[first] // s**3
    line = (
        coordinates[across[1]][first] // s * settings.cube_shape[across[0]]
        + coordinates[across[0]][first] // s
    )
    circuits = plus_to_minus_circuits(
        cube, next_cube, ocs=dimension * s * s * n + rail, rail=rail, dimension=dimension, line=line
    )
    return inner, faces, circuits


# Routing


def route(
    settings: TpuV4Settings, topology: Topology, routing: str, destinations: Destinations = None
) -> RoutingTable:
    """The shorter path round each ring.

    ``min`` goes up where both paths are equally long, ``balanced`` splits those packets
    evenly. Packets without a wrap link use the first virtual channel under ``min`` and
    draw one of the two under ``balanced``.
    """
    return route_rings(topology, routing, settings.shape, destinations, positions(settings))


# Bill of materials


def ports(settings: TpuV4Settings) -> Ports:
    """Components between the cubes, and their bandwidths in ports per chip.

    Every link on a face runs through an optical switch that all cubes share.
    """
    faces = 6 * settings.cube_side**2 * settings.n * settings.cubes
    return Ports(
        chips=settings.chips,
        port_gbps=settings.port_gbps,
        cables={"optical": faces},
        injection=6 * settings.n,
        all_to_all=torus_all_to_all_ports(settings.shape, settings.n),
        bisection=4 * settings.n / max(settings.shape),
        ocs_ports=faces,
    )


def inside(settings: TpuV4Settings) -> NodeSettings | None:
    """The links inside a cube, at the rate of its faces."""
    side = settings.cube_side
    if side == 1:
        return None
    gb_s = 6 * (side - 1) / side * settings.n * settings.port_gbps / 8
    return NodeSettings(side**3, "mesh", gb_s, settings.internal_latency_ns)


def resize(settings: TpuV4Settings, chips: int) -> TpuV4Settings:
    """The fewest cubes of at least ``chips`` chips, then the most all-to-all."""
    radix = 2 * settings.cubes if settings.ocs_radix is None else settings.ocs_radix
    most, fewest = radix // 2, -(-2 // settings.cube_side)
    options = (
        replace(settings, x_cubes=x, y_cubes=y, z_cubes=z)
        for z in range(fewest, most + 1)
        for y in range(z, most // z + 1)
        for x in range(y, most // (y * z) + 1)
    )
    return smallest_size(options, chips, ports, f"all cubes on every switch of {radix} ports")


FAMILY = Family(
    name="tpu_v4",
    settings=TpuV4Settings,
    build=build,
    check=size_check("x_cubes", link_rows),
    halves=lambda of: longest_halves(of.shape)[positions(of)],
    **TORUS,
    routings=TORUS_ROUTINGS,
    route=route,
    grouped_routings=TORUS_ROUTINGS,
    switched=True,
    chip_rings=lambda of: torus_rings(chip_numbers(of), of.n),
    has_nodes=True,
    inside=inside,
    # Optical switches join any cubes, and a cube fails with any of its chips.
    job_places=any_chips(lambda of: of.cubes * of.cube_side**3, lambda of: of.cube_side**3),
    bill=Bill(ports=ports, resize=resize),
)
