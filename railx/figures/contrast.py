"""Contrast of colours, and the colour that has the same on a dark background.

Contrast is that of the Web Content Accessibility Guidelines, 1 to 21. Every colour is
taken to one of its hue that stands out from the dark background at least as much as the
first does from white. What is readable in one is readable in the other, on coloured
areas too.
"""

from __future__ import annotations

import functools

#: The page's background in dark mode.
DARK_BACKGROUND = "#15191e"
#: Light colours on dark look duller than their contrast says: it is raised to this
#: power, up to that of near-white text, or of the lightest that still has a hue.
_POWER, _MOST, _MOST_WITH_HUE = 1.2, 15.8, 8.5
#: Difference of red, green and blue above which a colour has a hue.
_HUED = 0.1


def luminance(colour: str) -> float:
    """Relative luminance of a colour ``#rrggbb``, 0 to 1."""
    from seaborn.utils import relative_luminance

    return float(relative_luminance(colour))


def contrast(entry: str, other: str) -> float:
    """Contrast of two colours ``#rrggbb``, 1 to 21."""
    low, high = sorted((luminance(entry), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@functools.cache
def dark_colour(colour: str) -> str:
    """The colour of this hue with the contrast to dark that this one has to white."""
    most = _MOST_WITH_HUE if _spread(colour) > _HUED else _MOST
    stands_out = min(contrast(colour, "#ffffff") ** _POWER, most)
    requested = stands_out * (luminance(DARK_BACKGROUND) + 0.05) - 0.05
    if requested <= luminance(DARK_BACKGROUND) * 1.001:
        return DARK_BACKGROUND
    return next(shade for shade in _shades(colour) if luminance(shade) >= requested)


@functools.cache
def readable(colour: str, ratio: float = 4.5) -> str:
    """The colour ``#rrggbb``, darkened until text in it stands out from white."""
    shades = (colour, *reversed(_shades(colour)))
    return next(shade for shade in shades if contrast(shade, "#ffffff") >= ratio)


def _spread(colour: str) -> float:
    """How far red, green and blue are apart, 0 (grey) to 1."""
    from matplotlib.colors import to_rgb

    return max(to_rgb(colour)) - min(to_rgb(colour))


def _shades(colour: str) -> list[str]:
    """The colours of this hue from dark to light, as far from grey as they can be."""
    from matplotlib.colors import to_hex
    from seaborn import set_hls_values

    lightness = [step / 255 for step in range(1, 255)]
    saturation = [min(1.0, _spread(colour) / (1 - abs(2 * light - 1))) for light in lightness]
    shades = zip(lightness, saturation, strict=True)
    return [to_hex(set_hls_values(colour, l=light, s=share)) for light, share in shades]
