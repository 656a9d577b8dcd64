"""What the networks cost and what power they draw: price catalogue, bills of materials,
scale, where the cost claims hold.
"""

from railx.economics.bill import bill_of_materials, cost_summary, price_network
from railx.economics.catalogue import COMPONENTS, Catalogue, Price, read_catalogue
from railx.economics.claim_map import CLAIMS, claim_map
from railx.economics.designs import (
    NetworkCounts,
    chips_of,
    count_network,
    in_node_lanes_per_chip,
    optical_switches,
    railx_all_to_all_ports,
    railx_external_hops,
)
from railx.economics.scale import cost_by_scale
from railx.economics.scaling import at_scale
from railx.economics.sensitivity import price_sensitivity
from railx.economics.settings import (
    ClaimMapSettings,
    CubesSettings,
    DragonflySettings,
    EconomicsSettings,
    FatTreeSettings,
    HammingMeshSettings,
    HyperXSettings,
    NetworkDesign,
    OpusRailsSettings,
    RailOptimisedSettings,
    RailsSettings,
    RailXSettings,
    ScaleSettings,
    SensitivitySettings,
    TorusSettings,
)

__all__ = [
    "CLAIMS",
    "COMPONENTS",
    "Catalogue",
    "ClaimMapSettings",
    "CubesSettings",
    "DragonflySettings",
    "EconomicsSettings",
    "FatTreeSettings",
    "HammingMeshSettings",
    "HyperXSettings",
    "NetworkCounts",
    "NetworkDesign",
    "OpusRailsSettings",
    "Price",
    "RailOptimisedSettings",
    "RailXSettings",
    "RailsSettings",
    "ScaleSettings",
    "SensitivitySettings",
    "TorusSettings",
    "at_scale",
    "bill_of_materials",
    "chips_of",
    "claim_map",
    "cost_by_scale",
    "cost_summary",
    "count_network",
    "in_node_lanes_per_chip",
    "optical_switches",
    "price_network",
    "price_sensitivity",
    "railx_all_to_all_ports",
    "railx_external_hops",
    "read_catalogue",
]
