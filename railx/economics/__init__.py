"""What the networks cost and what power they draw: price catalogue, bills of materials, sensitivity to prices."""

from railx.economics.bill import bill_of_materials, cost_summary
from railx.economics.catalogue import COMPONENTS, Catalogue, Price, read_catalogue
from railx.economics.designs import (
    NetworkCounts,
    count_network,
    in_node_lanes_per_chip,
    optical_switches,
    railx_all_to_all_ports,
    railx_external_hops,
)
from railx.economics.sensitivity import price_sensitivity
from railx.economics.settings import (
    EconomicsSettings,
    FatTreeSettings,
    NetworkDesign,
    OpusRailsSettings,
    RailOptimisedSettings,
    RailXSettings,
    SensitivitySettings,
)

__all__ = [
    "COMPONENTS",
    "Catalogue",
    "EconomicsSettings",
    "FatTreeSettings",
    "NetworkCounts",
    "NetworkDesign",
    "OpusRailsSettings",
    "Price",
    "RailOptimisedSettings",
    "RailXSettings",
    "SensitivitySettings",
    "bill_of_materials",
    "cost_summary",
    "count_network",
    "in_node_lanes_per_chip",
    "optical_switches",
    "price_sensitivity",
    "railx_all_to_all_ports",
    "railx_external_hops",
    "read_catalogue",
]
