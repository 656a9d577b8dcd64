"""Cost and power of networks: prices, bills of materials, cost over scale, cost claims.

The families count the components of networks (``railx.families.NAME.bill``).
"""

from railx.economics.bill import bill_of_materials, cost_by_scale, cost_summary, price_network
from railx.economics.catalogue import read_catalogue
from railx.economics.claim_map import claim_map
from railx.economics.pricing import Cost, NetworkPrice, node_links, price, total
from railx.economics.rails import rail_economics, rail_map
from railx.economics.sensitivity import price_sensitivity
from railx.economics.settings import EconomicsSettings, PricedNetwork

__all__ = [
    "Cost",
    "EconomicsSettings",
    "NetworkPrice",
    "PricedNetwork",
    "bill_of_materials",
    "claim_map",
    "cost_by_scale",
    "cost_summary",
    "node_links",
    "price",
    "price_network",
    "price_sensitivity",
    "rail_economics",
    "rail_map",
    "read_catalogue",
    "total",
]
