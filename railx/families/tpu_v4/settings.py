"""Settings of the family ``tpu_v4``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive, SettingsError

__all__ = ["TpuV4Settings"]


@dataclass(frozen=True)
class TpuV4Settings:
    """A 3D torus of cubes of chips behind optical switches."""

    family: Literal["tpu_v4"]
    """Which network family this is."""

    cube_side: Annotated[int, AtLeast(1)]
    """Chips on a side of a cube."""

    x_cubes: Annotated[int, AtLeast(1)]
    """Cubes along x."""

    y_cubes: Annotated[int, AtLeast(1)]
    """Cubes along y."""

    z_cubes: Annotated[int, AtLeast(1)]
    """Cubes along z."""

    n: Annotated[int, AtLeast(1)]
    """Parallel ports on each of the 6 sides of a chip."""

    ocs_radix: Annotated[int, AtLeast(2)] | None
    """Ports of an optical switch; null: just enough, two for each cube."""

    port_gbps: Annotated[float, Positive()]
    """Rate of an external port in one direction, in 10^9 bit/s."""

    internal_latency_ns: Annotated[float, NonNegative()]
    """Time of flight of a link inside a cube, in nanoseconds."""

    external_latency_ns: Annotated[float, NonNegative()]
    """Time of flight of an optical circuit, in nanoseconds."""

    def __post_init__(self) -> None:
        for name, cubes in zip(("x_cubes", "y_cubes", "z_cubes"), self.cubes_each, strict=True):
            if cubes * self.cube_side < 2:
                raise SettingsError(
                    name,
                    f"got {cubes} with cube_side = 1; allowed: a ring of at least 2 chips; the"
                    " nearest is 2, or cube_side 2",
                )
        if self.ocs_radix is not None and self.ocs_radix < 2 * self.cubes:
            raise SettingsError(
                "ocs_radix",
                f"got {self.ocs_radix}; allowed: at least {2 * self.cubes}, two ports for each of"
                f" {self.cubes} cubes (or at most {self.ocs_radix // 2} cubes for this radix)",
            )

    @property
    def cubes_each(self) -> tuple[int, int, int]:
        """Cubes in x, y and z."""
        return self.x_cubes, self.y_cubes, self.z_cubes

    @property
    def cubes(self) -> int:
        return self.x_cubes * self.y_cubes * self.z_cubes

    @property
    def lengths(self) -> tuple[int, int, int]:
        """Chips around the rings of x, y and z."""
        return (
            self.cube_side * self.x_cubes,
            self.cube_side * self.y_cubes,
            self.cube_side * self.z_cubes,
        )

    @property
    def chips(self) -> int:
        return self.cubes * self.cube_side**3

    @property
    def optical_switches(self) -> int:
        return 3 * self.cube_side**2 * self.n
