"""What cubes behind optical switches cost.

Every link on a face of a cube runs through an optical switch that all cubes share.
"""

from __future__ import annotations

from dataclasses import replace

from railx.families.tpu_v4.settings import TpuV4Settings
from railx.vocabulary.counts import Bill, Ports, smallest_size, torus_all_to_all_ports

__all__ = ["BILL", "ports", "resize"]


def ports(settings: TpuV4Settings) -> Ports:
    """What the cubes are joined by, and their bandwidths in ports per chip."""
    faces = 6 * settings.cube_side**2 * settings.n * settings.cubes
    return Ports(
        chips=settings.chips,
        port_gbps=settings.port_gbps,
        cables={"optical": faces},
        injection=6 * settings.n,
        all_to_all=torus_all_to_all_ports(settings.lengths, settings.n),
        bisection=4 * settings.n / max(settings.lengths),
        ocs_ports=faces,
    )


def resize(settings: TpuV4Settings, chips: int) -> TpuV4Settings:
    """The fewest cubes that hold the chips.

    Among equal numbers the shape with the most all-to-all bandwidth.
    """
    radix = 2 * settings.cubes if settings.ocs_radix is None else settings.ocs_radix
    most, least = radix // 2, -(-2 // settings.cube_side)
    options = (
        replace(settings, x_cubes=x, y_cubes=y, z_cubes=z)
        for z in range(least, most + 1)
        for y in range(z, most // z + 1)
        for x in range(y, most // (y * z) + 1)
    )
    return smallest_size(options, chips, ports, f"all cubes on every switch of {radix} ports")


BILL = Bill(ports=ports, resize=resize)
