"""Colours and labels that all figures share.

A topology family, planner, system or fabric mode has one name and one colour in every
figure. The colour-blind can tell the colours apart, and they are dark enough to be seen
on white. The plotting libraries are imported when something is drawn.

On a dark background every colour is taken to one of its hue that stands out from it at
least as much as the first does from white, by the contrast of the Web Content
Accessibility Guidelines, 1 to 21. What is readable in one is readable in the other, on
coloured areas too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any

#: The order in which unnamed things take their colours. Each has a contrast of 3 or
#: more with white.
PALETTE: tuple[str, ...] = (
    *("#0072b2", "#b58a13", "#33825a", "#cf73a1"),
    *("#004b68", "#ce3700", "#6f4000", "#573a99"),
)
INK = "#22272e"
#: Label of the artists that :func:`railx.figures.canvas.settle` moves apart.
APART = "apart"
GREY = "#626a76"
#: Lines that only guide the eye: grid, edges of panels.
FAINT = "#868e99"
#: Width of every line of data.
LINE_POINTS = 1.8

_NAMED = {
    **dict.fromkeys(("fat_tree", "rail_optimised", "static", "electrical"), GREY),
    **dict.fromkeys(("railx_hyperx", "provisioned"), PALETTE[0]),
    **dict.fromkeys(("opus_rails", "on_demand"), PALETTE[5]),
    "railx_torus": PALETTE[4],
    "torus_2d": PALETTE[1],
    "flexsp": PALETTE[2],
    "pipeline": PALETTE[3],
}
#: What is written otherwise than its name; names of the papers are as they write them.
_LABELS = {
    "gpt3_1T": "GPT-3 1T",
    "electrical_switch_port": "Electrical port",
    "vit_era5": "ViT on ERA5",
    "vtrain_single": "Megatron, one node (vTrain)",
    "vtrain_multi": "Megatron, several nodes (vTrain)",
    "selene": "Megatron on Selene",
    "selene_memory": "Activations on Selene, computed",
    "mlperf": "GPT-3 175B (MLPerf)",
    "mosaic": "FSDP (llm-foundry)",
    "nemo": "Megatron-Bridge",
    "railx_hyperx": "RailX 2D HyperX",
    "torus_2d": "2D torus",
    "torus_3d": "3D torus",
    "tpu_v4": "TPUv4",
    "dragonfly_plus": "Dragonfly+",
    "cloudmatrix": "CloudMatrix384",
    "hpn": "HPN 7.0",
    "khop_ring": "K-hop ring",
    "nvl72_rails": "NVL72 with rails",
    "stdlib": "Python standard library",
    **{
        re.sub("[ -]", "_", text.lower()): text
        for text in (
            *("CommonCrawl", "CommonCrawl-like", "Dense 405B", "Dense 70B", "Dragonfly"),
            *("Fat tree", "FlexSP", "GB200", "GitHub", "GitHub-like", "H200", "HammingMesh"),
            *("HyperX", "InfiniPipe", "MixNet", "OCS port", "Opus", "Opus 400G", "Opus rails"),
            *("Pipeline", "PolarFly", "PolarStar", "Rail-only", "Rail-optimised", "RailX"),
            *("RailX Dragonfly", "RailX mixed", "RailX split", "RailX torus"),
            *("RailX twisted torus", "Slim Fly", "Static", "TopoOpt", "UB-Mesh", "Wikipedia"),
        )
    },
}
MODE_LABELS = {
    "electrical": "Electrical (no switching)",
    "on_demand": "On demand",
    "provisioned": "Provisioned",
}
#: Their colours.
MODE_COLOURS: dict[Any, str] = {mode: _NAMED[mode] for mode in MODE_LABELS}
#: Modes of a fabric that switches.
MODES = ("on_demand", "provisioned")
#: The jobs that Opus ran on Perlmutter.
OPUS_JOBS = {
    "llama16": "Llama-3 8B, 16 GPUs",
    "llama64": "Llama-3 8B, 64 GPUs",
    "deepseek3d": "DeepSeek, DP, PP and TP",
}
#: Beginnings of families that are marked among rivals: RailX, and photonic rails.
RAIL_FAMILIES = ("railx", "opus_rails")
#: Bases on which networks are compared.
BASES = {"equal_bandwidth": "equal bandwidth", "equal_cost": "equal cost"}
#: Baselines of the papers on sequences of varying length: name and colour.
SYSTEMS: dict[str, tuple[str, str]] = {
    "megatron": ("Megatron-LM", GREY),
    "deepspeed": ("DeepSpeed", PALETTE[1]),
    "flexsp_batch_ada": ("BatchAda", PALETTE[4]),
    "flexsp": ("FlexSP", PALETTE[2]),
    "seq1f1b": ("Seq1F1B", PALETTE[3]),
}
#: The page's background in dark mode.
DARK_BACKGROUND = "#15191e"
#: Light colours on dark look duller than their contrast says: it is raised to this
#: power, up to that of near-white text, or of the lightest that still has a hue.
_POWER, _MOST, _MOST_WITH_HUE = 1.2, 15.8, 8.5
#: Difference of red, green and blue above which a colour has a hue.
_HUED = 0.1


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name: the one fixed for it, else the next of the palette.

    ``fat_tree_full`` takes that of ``fat_tree``.
    """
    chosen: dict[str, str] = {}
    distinct = list(dict.fromkeys(names))
    for name in distinct:
        fixed = _NAMED.get(_stem(name, _NAMED))
        if fixed is not None and fixed not in chosen.values():
            chosen[name] = fixed
    free = [colour for colour in PALETTE if colour not in chosen.values()] or list(PALETTE)
    others = [name for name in distinct if name not in chosen]
    chosen |= {name: free[i % len(free)] for i, name in enumerate(others)}
    return {name: chosen[name] for name in distinct}


def degree_colours(degrees: Iterable[int], largest: int) -> dict[int, str]:
    """Colours of sequence-parallel degrees, light to dark.

    They darken with the logarithm of the degree up to ``largest``. The scale belongs to
    ``largest`` alone, so that two plans on the same devices can be compared.
    """
    import seaborn as sns

    steps = max(largest.bit_length(), 2)
    scale = sns.color_palette("YlGnBu", n_colors=steps + 3).as_hex()[2:]
    last = len(scale) - 1
    return {degree: scale[min(degree.bit_length() - 1, last)] for degree in sorted(set(degrees))}


def label(name: Any) -> str:
    """A name as a reader sees it.

    Names of the papers are as they write them (also in front of a longer name), others
    have spaces.
    """
    text = str(name)
    if text in MODE_LABELS:
        return MODE_LABELS[text]
    stem = _stem(text, _LABELS)
    rest = text[len(stem) :].strip("_")
    rest = _LABELS.get(rest, rest.replace("_", " "))
    if not stem:
        return rest[:1].upper() + rest[1:]
    return f"{_LABELS[stem]}, {rest}" if rest else _LABELS[stem]


def on_rails(name: str) -> bool:
    """Whether a network is marked among rivals."""
    return name.startswith(RAIL_FAMILIES)


def lighter(colour: str, share: float) -> tuple[float, float, float]:
    """The colour mixed with ``share`` (0 to 1) of white."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(colour)
    return (red + (1 - red) * share, green + (1 - green) * share, blue + (1 - blue) * share)


def text_colour(fill: str) -> str:
    """White or ink, whichever stands out more from a filled area ``#rrggbb``."""
    return max(("#ffffff", INK), key=lambda text: contrast(text, fill))


def _stem(name: str, names: Iterable[str]) -> str:
    """The longest of ``names`` that ``name`` begins with as entire words, or empty."""
    stems = (stem for stem in names if name == stem or name.startswith(f"{stem}_"))
    return max(stems, key=len, default="")


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
