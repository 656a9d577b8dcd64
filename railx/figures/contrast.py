"""Contrast of colours, and the colour that has the same on a dark background.

Contrast is that of the Web Content Accessibility Guidelines, 1 to 21. Every colour is
taken to one of its hue (OKLab) that stands out from the dark background at least as
much as the first does from white. What is readable in one is readable in the other, on
coloured areas too.
"""

from __future__ import annotations

import functools
import math

#: The page's background in dark mode.
DARK_BACKGROUND = "#15191e"
#: Light colours on dark look duller than their contrast says: it is raised to this
#: power, up to that of near-white text, or of the lightest that still has a hue.
_POWER, _MOST, _MOST_WITH_HUE = 1.2, 15.8, 8.5
#: Distance from grey in OKLab above which a colour has a hue.
_HUED = 0.04


def luminance(colour: str) -> float:
    """Relative luminance of a colour ``#rrggbb``, 0 to 1."""
    red, green, blue = _linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(entry: str, other: str) -> float:
    """Contrast of two colours ``#rrggbb``, 1 to 21."""
    low, high = sorted((luminance(entry), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@functools.cache
def dark_colour(colour: str) -> str:
    """The colour of this hue with the contrast to dark that this one has to white."""
    _, along, across = _to_oklab(_linear(colour))
    most = _MOST_WITH_HUE if math.hypot(along, across) > _HUED else _MOST
    stands_out = min(contrast(colour, "#ffffff") ** _POWER, most)
    requested = stands_out * (luminance(DARK_BACKGROUND) + 0.05) - 0.05
    if requested <= luminance(DARK_BACKGROUND) * 1.001:
        return DARK_BACKGROUND
    low, high = 0.0, 1.0
    for _ in range(24):
        middle = (low + high) / 2
        if luminance(_inside(middle, along, across)) < requested:
            low = middle
        else:
            high = middle
    return _inside(high, along, across)


@functools.cache
def readable(colour: str, ratio: float = 4.5) -> str:
    """The colour ``#rrggbb``, darkened until text in it stands out from white."""
    channels = _linear(colour)
    for step in range(101):
        shade = tuple(channel * (1 - step / 100) for channel in channels)
        text = "#" + "".join(f"{round(255 * _encoded(channel)):02x}" for channel in shade)
        if contrast(text, "#ffffff") >= ratio:
            break
    return text


def _inside(lightness: float, along: float, across: float) -> str:
    """The colour with as much of its chroma as a screen can show at this lightness."""
    for step in range(21):
        share = 1 - step / 20
        channels = _from_oklab(lightness, along * share, across * share)
        if all(-1e-6 <= channel <= 1 + 1e-6 for channel in channels):
            break
    return "#" + "".join(f"{round(255 * _encoded(channel)):02x}" for channel in channels)


def _linear(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return _decoded(red), _decoded(green), _decoded(blue)


def _decoded(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else float(((value + 0.055) / 1.055) ** 2.4)


def _encoded(value: float) -> float:
    value = min(max(value, 0.0), 1.0)
    return 12.92 * value if value <= 0.0031308 else float(1.055 * value ** (1 / 2.4) - 0.055)


def _to_oklab(channels: tuple[float, float, float]) -> tuple[float, float, float]:
    """OKLab of linear sRGB, by its published matrices (Ottosson, 2020)."""
    red, green, blue = channels
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    medium = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short,
    )


def _from_oklab(lightness: float, along: float, across: float) -> tuple[float, float, float]:
    long = (lightness + 0.3963377774 * along + 0.2158037573 * across) ** 3
    medium = (lightness - 0.1055613458 * along - 0.0638541728 * across) ** 3
    short = (lightness - 0.0894841775 * along - 1.2914855480 * across) ** 3
    return (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
