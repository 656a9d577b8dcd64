"""What a 2D torus without switches costs."""

from __future__ import annotations

from dataclasses import replace

from railx.families.torus_2d.settings import Torus2DSettings
from railx.vocabulary.counts import Bill, Ports, torus_boards, torus_ports

__all__ = ["BILL", "ports", "resize"]


def ports(settings: Torus2DSettings) -> Ports:
    """What the torus is built of, and its bandwidths in ports per chip."""
    return torus_ports(
        (settings.x_scale, settings.y_scale),
        board_side=settings.board_side,
        n=settings.n,
        port_gbps=settings.port_gbps,
    )


def resize(settings: Torus2DSettings, chips: int) -> Torus2DSettings:
    """The torus of whole boards nearest to a square that holds the chips."""
    x, y = torus_boards(chips, 2, settings.board_side)
    return replace(settings, x_scale=x, y_scale=y)


BILL = Bill(ports=ports, resize=resize)
