"""Plans of many devices: the best of all, and sharded replicas with small degrees."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from railx.figures.figure import Canvas, CanvasSettings, Drawn, Tables, figure, reads
from railx.figures.panels import entries, share_legend, ticks, tiles
from railx.figures.tables import where
from railx.figures.theme import PALETTE, colours, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import fidelity_line, phrases

# Best plans of arXiv 2410.00273: sizes, the fast domain, resources

#: Sweeps over a resource by the name that the table gives them.
_RESOURCES = ("operations", "memory bandwidth", "memory capacity", "network bandwidth")


@dataclass(frozen=True)
class PlansAtScaleSettings(CanvasSettings):
    """Throughput of the best plans over devices, fast domains and resources."""

    model: str = "gpt3_1T"
    """The model of the panel of resources."""


@figure("Best plans over devices, fast domain and resources", "performance", height=4.4)
@reads(
    sweeps="scaling.sweeps: sweep model division devices domain_devices factor sequences_per_s"
    " fidelity"
)
def plans_at_scale(settings: PlansAtScaleSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One line a model: the best of all divisions of its products."""
    # Of every point the division with the most throughput.
    point = ["sweep", "model", "devices", "domain_devices", "factor"]
    rows = tables.read("sweeps").sort_values("sequences_per_s", ascending=False, kind="stable")
    rows = rows.drop_duplicates(point).sort_values(point, kind="stable")
    colour = colours(rows["model"])
    subtitle = """Left: sequences a second over devices. Middle: over the size of the fast domain,
        against the smallest. Right: one resource scaled."""
    with canvas(subtitle, fidelity_line(rows["fidelity"])) as page:
        titles = ("Strong scaling", "Fast domain", "Resources")
        sizes, domains, resources = tiles(page, titles, 3, settings)
        for model, part in rows.groupby("model", sort=False):
            style = {"color": colour[str(model)], "marker": "o", "label": label(model)}
            line = where(part, sweep="devices")
            sizes.plot(line["devices"], line["sequences_per_s"], **style)
            line = where(part, sweep="domain")
            first = line["sequences_per_s"].iloc[0]
            domains.plot(line["domain_devices"], line["sequences_per_s"] / first, **style)
        of_model = where(rows, model=settings.model)
        for shade, resource in zip(PALETTE[2:], _RESOURCES, strict=False):
            line = where(of_model, sweep=resource)
            usual = where(line, factor=1.0)["sequences_per_s"].iloc[0]
            style = {"color": shade, "marker": "s", "label": label(resource)}
            resources.plot(line["factor"], line["sequences_per_s"] / usual, **style)
        _logarithmic(sizes, where(rows, sweep="devices")["devices"])
        sizes.set(yscale="log", xlabel="Devices", ylabel="Sequences/s")
        ticks(sizes.yaxis)
        _logarithmic(domains, where(rows, sweep="domain")["domain_devices"])
        domains.set(xlabel="Devices of the domain", ylabel="Throughput over the first")
        _logarithmic(resources, where(of_model, sweep=_RESOURCES[0])["factor"])
        resources.set(xlabel="Times the resource", ylabel="Throughput over that of 1 x")
        share_legend(page, {**entries(sizes), **entries(resources)}, 3)
    largest = rows[rows["sweep"] == "devices"].groupby("model", sort=False).tail(1)
    best = phrases(largest, "{model:spoken} {sequences_per_s:q} sequences/s on {devices:,.0f}")
    gains = phrases(_gains(of_model), "{sweep} {gain:.2f} times")
    caption = f"""The fastest of all plans (1D, SUMMA or context, degrees, micro-batch, placement in
        the fast domain) on B200 with the constants of arXiv 2410.00273. At the largest size:
        {best}. {label(settings.model)} with the most of a resource: {gains}."""
    alternative = f"Lines of throughput. {best}. With the most of a resource: {gains}."
    return Drawn(caption, alternative, rows)


def _gains(rows: DataFrame) -> DataFrame:
    """Throughput with the largest factor over that with factor 1, by resource."""
    scaled = rows[rows["sweep"].isin(_RESOURCES)]
    usual = where(scaled, factor=1.0).set_index("sweep")["sequences_per_s"]
    most = where(scaled, factor=scaled["factor"].max()).set_index("sweep")["sequences_per_s"]
    gains: DataFrame = (most / usual).rename("gain").reset_index()
    return gains


def _logarithmic(axes: Axes, values: Iterable[float]) -> None:
    """A logarithmic axis with a tick at every value, or at every second of many."""
    at = sorted(set(values))
    ticks(axes.xaxis, at[:: 1 if len(at) <= 5 else 2], "{x:g}", 2)


# FSDP among many devices


@dataclass(frozen=True)
class ShardedReplicasSettings(CanvasSettings):
    """Throughput of a device under FSDP and with small degrees, by network."""

    device: str = "h100_80gb"
    """The device."""


@figure(
    "FSDP from one node to 2,048 devices, and small degrees beside it", "performance", height=4.2
)
@reads(
    sharded="scaling.sharded: network device devices tensor pipeline tokens_per_s_device"
    " exposed_share fastest fidelity"
)
def sharded_replicas(settings: ShardedReplicasSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """FSDP dashed, the best degrees solid; a colour for a network."""
    rows = where(tables.read("sharded"), device=settings.device)
    alone = where(rows, tensor=1, pipeline=1)
    fastest = where(rows, fastest=True)
    colour = colours(rows["network"])
    subtitle = """Left: throughput of a device over devices; dashed is FSDP alone, solid the fastest
        degrees. Right: the share of the step that is exposed under FSDP alone."""
    with canvas(subtitle, fidelity_line(rows["fidelity"])) as page:
        titles = ("Throughput", "Exposed, FSDP alone")
        speed, exposed = tiles(page, titles, 2, settings, "Devices")
        for network in dict.fromkeys(rows["network"]):
            shade = {"color": colour[network], "marker": "o"}
            line = where(fastest, network=network)
            speed.plot(line["devices"], line["tokens_per_s_device"], **shade, label=label(network))
            line = where(alone, network=network)
            dashed = {**shade, "linestyle": "--", "fillstyle": "none"}
            speed.plot(line["devices"], line["tokens_per_s_device"], **dashed)
            exposed.plot(line["devices"], 100 * line["exposed_share"], **dashed)
        for axes in (speed, exposed):
            _logarithmic(axes, rows["devices"])
            axes.set_ylim(bottom=0)
        speed.set_ylabel("Tokens/s of a device")
        exposed.set_ylabel("Share of the step (%)")
        share_legend(page, entries(speed), 4)
    last = rows["devices"].max()
    ends = where(alone, devices=last)
    at_end = phrases(ends, "{network:spoken} {tokens_per_s_device:q} tokens/s of a device")
    best = where(fastest, devices=last)
    degrees = phrases(best, "{network:spoken} {tensor} x {pipeline}")
    caption = f"""Llama 2 7B, two sequences of 4,096 tokens a device, on
        {label(settings.device)}; all networks with the same bandwidth a device, so that those
        with one ring over all devices lie on one line. FSDP alone on {last:,} devices:
        {at_end}. Fastest tensor x pipeline degrees there: {degrees}."""
    return Drawn(caption, f"Lines of throughput. {at_end}. Degrees: {degrees}.", rows)
