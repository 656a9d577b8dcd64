"""What a 3D torus without switches costs."""

from __future__ import annotations

from dataclasses import replace

from railx.families.torus_3d.settings import Torus3DSettings
from railx.vocabulary.counts import Bill, Ports, torus_boards, torus_ports

__all__ = ["BILL", "ports", "resize"]


def ports(settings: Torus3DSettings) -> Ports:
    """What the torus is built of, and its bandwidths in ports per chip."""
    return torus_ports(
        (settings.x_scale, settings.y_scale, settings.z_scale),
        board_side=settings.board_side,
        n=settings.n,
        port_gbps=settings.port_gbps,
    )


def resize(settings: Torus3DSettings, chips: int) -> Torus3DSettings:
    """The torus of whole boards nearest to a cube that holds the chips."""
    x, y, z = torus_boards(chips, 3, settings.board_side)
    return replace(settings, x_scale=x, y_scale=y, z_scale=z)


BILL = Bill(ports=ports, resize=resize)
