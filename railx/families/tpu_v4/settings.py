"""Settings of the family ``tpu_v4``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive, SettingsError

__all__ = ["TpuV4Settings"]


@dataclass(frozen=True)
class TpuV4Settings:
    """``x_cubes`` by ``y_cubes`` by ``z_cubes`` cubes with ``cube_side`` chips a side,
    a torus of cube_side times as many chips.

    ``n``: parallel ports on each of the 6 sides of a chip. ``ocs_radix``: ports of an
    optical switch; null: just enough, two for each cube. ``internal_latency_ns``:
    inside a cube; ``external_latency_ns``: of a circuit.
    """

    family: Literal["tpu_v4"]
    cube_side: Annotated[int, AtLeast(1)]
    x_cubes: Annotated[int, AtLeast(1)]
    y_cubes: Annotated[int, AtLeast(1)]
    z_cubes: Annotated[int, AtLeast(1)]
    n: Annotated[int, AtLeast(1)]
    ocs_radix: Annotated[int, AtLeast(2)] | None
    port_gbps: Annotated[float, Positive()]
    internal_latency_ns: Annotated[float, NonNegative()]
    external_latency_ns: Annotated[float, NonNegative()]

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
