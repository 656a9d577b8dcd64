"""Settings of the bills of materials: which networks, at which prices, over which
sizes.

Every network of the union ``NetworkDesign`` is fully sized;
``railx.economics.scaling.at_scale`` resizes it with the ports per chip kept.
``price_set`` null takes the experiment's price set, ``copper_price_set`` null stands
where there is no copper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import (
    AtLeast,
    Between,
    Fraction,
    NonNegative,
    NotEmpty,
    Positive,
    SettingsError,
)

__all__ = [
    "ClaimMapSettings",
    "CubesSettings",
    "DragonflySettings",
    "EconomicsSettings",
    "FatTreeSettings",
    "HammingMeshSettings",
    "HyperXSettings",
    "NetworkDesign",
    "OpusRailsSettings",
    "RailOptimisedSettings",
    "RailXSettings",
    "RailsSettings",
    "ScaleSettings",
    "SensitivitySettings",
    "TorusSettings",
    "largest_tree",
]

Sizes = Annotated[tuple[Annotated[int, AtLeast(2)], ...], NotEmpty()]


@dataclass(frozen=True)
class RailXSettings:
    """RailX: nodes of m x m chips with n ports a side, r = m n rails a side, on a grid
    around optical switches of R ports.

    ``setting`` is what the optical switches are set to; the hardware is the same.
    ``row`` and ``column`` are the logical sizes that the nodes of one row (one column)
    of the grid are arranged in, at most R/2 nodes in all: one number for the 2D HyperX,
    the tori and the Dragonfly (``row`` = nodes of a group, ``column`` = groups); two or
    more for a HyperX whose dimensions are split. ``in_node_width`` is the width of a
    link inside the node in external ports; these links are priced nowhere (no source
    has a price), it only serves break-even prices.
    """

    design: Literal["railx"]
    setting: Literal["hyperx", "torus", "twisted_torus", "dragonfly"]
    m: Annotated[int, AtLeast(1)]
    n: Annotated[int, AtLeast(1)]
    optical_switch_radix: Annotated[int, AtLeast(4)]
    row: Sizes
    column: Sizes
    port_gbps: Annotated[float, Positive()]
    in_node_width: Annotated[float, Positive()]
    price_set: str | None

    def __post_init__(self) -> None:
        rails, line = self.m * self.n, self.optical_switch_radix // 2
        for key in ("row", "column"):
            sizes: tuple[int, ...] = getattr(self, key)
            all_to_all = self.setting == "hyperx" or (self.setting == "dragonfly" and key == "row")
            if self.setting != "hyperx" and len(sizes) > 1:
                raise SettingsError(
                    key, f"got {list(sizes)}; allowed: one number in the setting {self.setting}"
                )
            needed = sum(size - 1 for size in sizes)
            if all_to_all and needed > rails:
                raise SettingsError(
                    key,
                    f"got {list(sizes)}; allowed: the sizes less one together at most m n = {rails}"
                    f" rails; the nearest single size is {rails + 1}",
                )
            if math.prod(sizes) > line:
                raise SettingsError(
                    key,
                    f"got {list(sizes)}; allowed: at most R/2 = {line} nodes in a line; the nearest"
                    f" single size is {line}",
                )
        if self.setting == "twisted_torus" and self.row[0] != 2 * self.column[0]:
            raise SettingsError(
                "row",
                f"got {list(self.row)}; allowed: twice the column; the nearest is"
                f" {2 * self.column[0]} by {self.column[0]}",
            )


@dataclass(frozen=True)
class TorusSettings:
    """Torus without switches: nodes of m chips along each dimension, ``sizes`` nodes
    per dimension, n ports on each side of a chip.

    Links between nodes have a transceiver at both ends; links inside a node (m > 1) are
    in no bill, as for RailX.
    """

    design: Literal["torus"]
    m: Annotated[int, AtLeast(1)]
    n: Annotated[int, AtLeast(1)]
    sizes: Sizes
    port_gbps: Annotated[float, Positive()]
    price_set: str | None

    def __post_init__(self) -> None:
        if not 2 <= len(self.sizes) <= 3:
            raise SettingsError("sizes", f"got {len(self.sizes)} dimensions; allowed: 2 or 3")


@dataclass(frozen=True)
class CubesSettings:
    """TPUv4-like: cubes of ``edge``^3 chips, every external face link through an
    optical switch that all cubes share.

    ``sizes``: cubes per dimension of the 3D torus they are set to, at most R/2 cubes in
    all; n ports on each of a chip's 6 sides.
    """

    design: Literal["tpu_v4"]
    edge: Annotated[int, AtLeast(1)]
    n: Annotated[int, AtLeast(1)]
    sizes: tuple[Annotated[int, AtLeast(1)], Annotated[int, AtLeast(1)], Annotated[int, AtLeast(1)]]
    optical_switch_radix: Annotated[int, AtLeast(2)]
    port_gbps: Annotated[float, Positive()]
    price_set: str | None

    def __post_init__(self) -> None:
        largest = self.optical_switch_radix // 2
        if math.prod(self.sizes) > largest:
            raise SettingsError(
                "sizes", f"got {math.prod(self.sizes)} cubes; allowed: at most R/2 = {largest}"
            )


@dataclass(frozen=True)
class HammingMeshSettings:
    """HammingMesh: boards of m x m chips with n ports a side; every line of chips has a
    switch network that joins its boards.

    A line of 2 x boards ends is one switch where they fit, else a two-level tree with
    ``taper`` uplinks per downlink. ``copper_rows`` makes the cables from the boards to
    the row switches copper (one dimension within reach of copper, as in HammingMesh's
    own bill).
    """

    design: Literal["hammingmesh"]
    m: Annotated[int, AtLeast(1)]
    n: Annotated[int, AtLeast(1)]
    row_boards: Annotated[int, AtLeast(2)]
    column_boards: Annotated[int, AtLeast(2)]
    switch_radix: Annotated[int, AtLeast(4)]
    taper: Annotated[float, Fraction()]
    copper_rows: bool
    port_gbps: Annotated[float, Positive()]
    price_set: str | None
    copper_price_set: str | None

    def __post_init__(self) -> None:
        largest = self.switch_radix**2 // 4
        for key in ("row_boards", "column_boards"):
            if getattr(self, key) > largest:
                raise SettingsError(
                    key,
                    f"got {getattr(self, key)}; allowed: at most {largest} boards a line with two"
                    f" levels of {self.switch_radix}-port switches; the nearest is {largest}",
                )
        _needs_copper_prices(self.copper_rows, self.copper_price_set, "copper_rows")


@dataclass(frozen=True)
class FatTreeSettings:
    """Fat tree; each of the ports of a chip is an end port of it, in a plane of its
    own.

    ``taper``: uplinks per downlink of a leaf, 1 for a non-blocking tree.
    ``copper_to_leaf`` replaces the two transceivers between chip and leaf by one copper
    cable, priced in ``copper_price_set``.
    """

    design: Literal["fat_tree"]
    chips: Annotated[int, AtLeast(2)]
    ports_per_chip: Annotated[int, AtLeast(1)]
    port_gbps: Annotated[float, Positive()]
    tiers: Annotated[int, Between(1, 5)]
    switch_radix: Annotated[int, AtLeast(2)]
    taper: Annotated[float, Fraction()]
    copper_to_leaf: bool
    price_set: str | None
    copper_price_set: str | None

    def __post_init__(self) -> None:
        _needs_even_radix(self.switch_radix)
        _fits_tree("chips", self.chips, self.tiers, self.switch_radix, self.taper)
        _needs_copper_prices(self.copper_to_leaf, self.copper_price_set, "copper_to_leaf")


@dataclass(frozen=True)
class RailsSettings:
    """Rails of electrical switches: a rail joins the chips of equal rank of all nodes,
    each port of a chip in a plane of its own.

    ``joined``: a common top tier joins the rails (rail-optimised), so that the whole is
    a fat tree over all chips; without it (rail-only) each rail is a tree of its own and
    traffic between rails first moves inside the node. ``tiers``: of the tree.
    """

    design: Literal["rails"]
    joined: bool
    chips: Annotated[int, AtLeast(2)]
    chips_per_node: Annotated[int, AtLeast(1)]
    ports_per_chip: Annotated[int, AtLeast(1)]
    port_gbps: Annotated[float, Positive()]
    tiers: Annotated[int, Between(1, 5)]
    switch_radix: Annotated[int, AtLeast(2)]
    price_set: str | None

    def __post_init__(self) -> None:
        _needs_even_radix(self.switch_radix)
        g = self.chips_per_node
        if self.chips % g:
            below, above = max(1, self.chips // g) * g, (self.chips // g + 1) * g
            raise SettingsError(
                "chips",
                f"got {self.chips}; allowed: whole nodes of {g} chips; the nearest are {below} and"
                f" {above}",
            )
        _fits_tree(
            "chips",
            self.chips if self.joined else self.chips // g,
            self.tiers,
            self.switch_radix,
            1.0,
        )


@dataclass(frozen=True)
class DragonflySettings:
    """Balanced Dragonfly of switches (Kim 2008): p terminals, 2p switches a group, p
    global ports a switch; a plane per chip port.

    ``copper_in_group`` makes the links from chips to switches and those inside a group
    copper.
    """

    design: Literal["dragonfly"]
    groups: Annotated[int, AtLeast(2)]
    terminals: Annotated[int, AtLeast(1)]
    ports_per_chip: Annotated[int, AtLeast(1)]
    port_gbps: Annotated[float, Positive()]
    copper_in_group: bool
    price_set: str | None
    copper_price_set: str | None

    def __post_init__(self) -> None:
        largest = 2 * self.terminals**2 + 1
        if self.groups > largest:
            raise SettingsError(
                "groups",
                f"got {self.groups}; allowed: at most 2 p^2 + 1 = {largest}, one link to every"
                f" group; the nearest is {largest}",
            )
        _needs_copper_prices(self.copper_in_group, self.copper_price_set, "copper_in_group")


@dataclass(frozen=True)
class HyperXSettings:
    """HyperX of switches (Ahn 2009): ``size`` switches along each dimension, all joined
    along it; a plane per chip port.
    """

    design: Literal["hyperx"]
    dimensions: Annotated[int, Between(1, 5)]
    size: Annotated[int, AtLeast(2)]
    terminals: Annotated[int, AtLeast(1)]
    switch_radix: Annotated[int, AtLeast(2)]
    ports_per_chip: Annotated[int, AtLeast(1)]
    port_gbps: Annotated[float, Positive()]
    price_set: str | None

    def __post_init__(self) -> None:
        spare = self.switch_radix - self.dimensions * (self.size - 1)
        if self.terminals > spare:
            raise SettingsError(
                "terminals",
                f"got {self.terminals}; allowed: at most {spare}, what {self.dimensions} dimensions"
                " leave of the switch",
            )


@dataclass(frozen=True)
class RailOptimisedSettings:
    """Electrical rail-optimised network as counted by the Opus artifact: a two-level
    tree per rail, joined by a common spine.
    """

    design: Literal["rail_optimised"]
    servers: Annotated[int, AtLeast(2)]
    gpus_per_server: Annotated[int, AtLeast(1)]
    port_gbps: Annotated[float, Positive()]
    switch_side_transceivers: bool
    price_set: str | None


@dataclass(frozen=True)
class OpusRailsSettings:
    """Photonic rails as counted by the Opus artifact: one OCS per rail, two OCS ports
    and one transceiver per port of a GPU.
    """

    design: Literal["opus_rails"]
    servers: Annotated[int, AtLeast(2)]
    gpus_per_server: Annotated[int, AtLeast(1)]
    ports_per_gpu: Annotated[int, AtLeast(1)]
    port_gbps: Annotated[float, Positive()]
    ocs_ports_per_gpu: Annotated[int, AtLeast(1)]
    transceivers_per_gpu: Annotated[int, AtLeast(1)]
    optical_switch_radix: Annotated[int, AtLeast(2)]
    price_set: str | None

    def __post_init__(self) -> None:
        largest = self.optical_switch_radix // self.ocs_ports_per_gpu
        if self.servers > largest:
            raise SettingsError(
                "servers",
                f"got {self.servers}; allowed: at most {largest}, whose GPUs of one rail fit a"
                f" switch; the nearest is {largest}",
            )


NetworkDesign = (
    RailXSettings
    | FatTreeSettings
    | RailOptimisedSettings
    | OpusRailsSettings
    | TorusSettings
    | CubesSettings
    | HammingMeshSettings
    | RailsSettings
    | DragonflySettings
    | HyperXSettings
)


@dataclass(frozen=True)
class SensitivitySettings:
    """Under which prices the three cost claims of RailX hold.

    ``railx`` and ``fat_trees`` name entries of ``networks``. The price sets are
    compared as they are; the two lists of ratios span a grid of prices relative to the
    transceiver of the default set. ``routed_over_ideal`` is the share of the ideal
    all-to-all throughput that the published minimal routing reaches. The limits are the
    abstract's.
    """

    railx: str
    fat_trees: Annotated[tuple[str, ...], NotEmpty()]
    price_sets: Annotated[tuple[str, ...], NotEmpty()]
    ocs_port_over_transceiver: tuple[Annotated[float, NonNegative()], ...]
    switch_port_over_transceiver: tuple[Annotated[float, Positive()], ...]
    routed_over_ideal: Annotated[float, Fraction()]
    injection_cost_limit: Annotated[float, Fraction()]
    all_to_all_cost_limit: Annotated[float, Fraction()]
    absolute_cost_usd: Annotated[float, Positive()]
    absolute_cost_tolerance: Annotated[float, Fraction()]


@dataclass(frozen=True)
class ScaleSettings:
    """Cost and power over the number of chips at equal injection bandwidth.

    ``networks`` and ``reference`` name entries of the networks; each is resized to
    every number in ``chips`` that its family reaches.
    """

    networks: Annotated[tuple[str, ...], NotEmpty()]
    reference: str
    chips: Annotated[tuple[Annotated[int, AtLeast(2)], ...], NotEmpty()]
    price_sets: Annotated[tuple[str, ...], NotEmpty()]
    injection_gb_s_per_chip: Annotated[float, Positive()]


@dataclass(frozen=True)
class ClaimMapSettings:
    """Where the cost claims hold over price ratios, and what moves their boundary.

    ``ocs_port_over_transceiver`` and ``switch_port_over_transceiver`` are the axes of
    the map at the base case (``sensitivity.railx`` against
    ``sensitivity.fat_trees[0]``). The other lists are changed one at a time: side of
    the RailX node, ports a side, chips, share of the ideal all-to-all that routing
    reaches, price of an in-node lane (one external port wide) over a transceiver, and
    tiers, cable to the leaf over transceiver (2: a transceiver at both ends) and taper
    of the fat tree.
    """

    ocs_port_over_transceiver: Annotated[tuple[Annotated[float, NonNegative()], ...], NotEmpty()]
    switch_port_over_transceiver: Annotated[tuple[Annotated[float, NonNegative()], ...], NotEmpty()]
    m: tuple[Annotated[int, AtLeast(1)], ...]
    n: tuple[Annotated[int, AtLeast(1)], ...]
    chips: tuple[Annotated[int, AtLeast(2)], ...]
    all_to_all_share: tuple[Annotated[float, Fraction()], ...]
    in_node_lane_over_transceiver: tuple[Annotated[float, NonNegative()], ...]
    tiers: tuple[Annotated[int, Between(1, 5)], ...]
    leaf_cable_over_transceiver: tuple[Annotated[float, NonNegative()], ...]
    taper: tuple[Annotated[float, Fraction()], ...]


@dataclass(frozen=True)
class EconomicsSettings:
    """Bills of materials: the catalogue file (CSV), the price set that holds unless a
    network names its own, the networks.
    """

    catalogue: Annotated[str, NotEmpty()]
    price_set: Annotated[str, NotEmpty()]
    networks: Annotated[dict[str, NetworkDesign], NotEmpty()]
    sensitivity: SensitivitySettings
    scale: ScaleSettings
    claim_map: ClaimMapSettings

    def __post_init__(self) -> None:
        names = ", ".join(self.networks)
        railx_design = self.networks.get(self.sensitivity.railx)
        if not (isinstance(railx_design, RailXSettings) and railx_design.setting == "hyperx"):
            railx = ", ".join(
                name for name, design in self.networks.items() if isinstance(design, RailXSettings)
            )
            raise SettingsError(
                "sensitivity.railx",
                f"got {self.sensitivity.railx!r}; allowed: {railx or f'a railx of {names}'}",
            )
        trees = [
            name for name, design in self.networks.items() if isinstance(design, FatTreeSettings)
        ]
        for name in self.sensitivity.fat_trees:
            if name not in trees:
                raise SettingsError(
                    "sensitivity.fat_trees",
                    f"got {name!r}; allowed: {', '.join(trees) or f'a fat_tree of {names}'}",
                )
        for name in self.scale.networks:
            if name not in self.networks:
                raise SettingsError("scale.networks", f"got {name!r}; allowed: {names}")
        if self.scale.reference not in trees:
            raise SettingsError(
                "scale.reference", f"got {self.scale.reference!r}; allowed: {', '.join(trees)}"
            )


def _needs_even_radix(radix: int) -> None:
    if radix % 2:
        raise SettingsError(
            "switch_radix",
            f"got {radix}; allowed: an even number (half of the ports face up); the nearest are"
            f" {radix - 1} and {radix + 1}",
        )


def _fits_tree(key: str, ends: int, tiers: int, radix: int, taper: float) -> None:
    largest = largest_tree(tiers, radix, taper)
    if ends > largest:
        raise SettingsError(
            key,
            f"got {ends}; allowed: at most {largest} with {tiers} tiers of {radix}-port switches"
            f" (every port of a chip has a plane of its own); the nearest is {largest}",
        )


def largest_tree(tiers: int, radix: int, taper: float) -> int:
    """Most end ports of a tree: 2 (k/2)^T, times the downlinks of a tapered leaf over
    k/2; one tier has no uplinks to taper.
    """
    if tiers == 1:
        return radix
    return int(int(radix / (1 + taper)) * 2 * (radix // 2) ** (tiers - 1))


def _needs_copper_prices(copper: bool, price_set: str | None, key: str) -> None:
    if copper and price_set is None:
        raise SettingsError(
            "copper_price_set",
            f"is null; allowed: a price set with a copper_cable when {key} is true",
        )
