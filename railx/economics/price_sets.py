"""Checks that price catalogues exist and contain the price sets of the settings."""

from __future__ import annotations

from typing import Protocol

from railx.economics.bill import bill_of_materials
from railx.economics.catalogue import Catalogue, read_catalogue
from railx.economics.settings import EconomicsSettings
from railx.errors import UserError
from railx.settings import SettingsError, check_names, to_dict

__all__ = ["check_price_set", "check_prices"]


class _Priced(Protocol):
    @property
    def catalogue(self) -> str: ...

    @property
    def price_set(self) -> str: ...


def check_price_set(settings: _Priced, key: str) -> None:
    """Refuse a missing catalogue or price set; SettingsError names the key below
    ``key``.
    """
    catalogue = _catalogue(settings.catalogue, f"{key}.catalogue")
    check_names(f"{key}.price_set", (settings.price_set,), catalogue.price_sets)


def check_prices(economics: EconomicsSettings, key: str = "economics") -> None:
    """Refuse missing price sets and catalogues; SettingsError names the key below
    ``key``.
    """
    catalogue = _catalogue(economics.catalogue, f"{key}.catalogue")
    asked = {
        "price_set": (economics.price_set,),
        "sensitivity.price_sets": economics.sensitivity.price_sets,
        "scale.price_sets": economics.scale.price_sets,
        **{
            f"networks.{name}.{field}": (price_set,)
            for name, network in economics.networks.items()
            for field in ("price_set", "copper_price_set")
            if (price_set := getattr(network, field)) is not None
        },
        **{
            f"rails.platforms.{name}.price_set": (platform.price_set,)
            for name, platform in economics.rails.platforms.items()
        },
    }
    for field, names in asked.items():
        check_names(f"{key}.{field}", names, catalogue.price_sets)
    for part in ("claim_map", "sensitivity"):
        for field, value in to_dict(getattr(economics, part)).items():
            if value == []:
                raise SettingsError(
                    f"{key}.{part}.{field}", "got an empty list; allowed: at least one value"
                )
    try:
        bill_of_materials(economics, catalogue)
    except SettingsError as error:
        raise error.under(key) from None


def _catalogue(path: str, key: str) -> Catalogue:
    try:
        return read_catalogue(path)
    except (UserError, OSError) as error:
        raise SettingsError(key, str(error)) from None
