"""Which network for which job at what price: networks and plans searched together."""

from railx.design.point import DesignPoint, evaluate
from railx.design.rates import RateStore
from railx.design.settings import DesignSettings, PointSettings

__all__ = ["DesignPoint", "DesignSettings", "PointSettings", "RateStore", "evaluate"]
