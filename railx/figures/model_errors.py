"""Models against simulations and measurements: points around a diagonal, and errors."""

from __future__ import annotations

import itertools
from statistics import median

from railx.figures.figure import Canvas, CanvasSettings, Choice, Drawn, Tables, figure, reads
from railx.figures.marks import PUBLISHED_LINE, dot
from railx.figures.panels import diagonal, name_rows, share_legend, ticks, tiles
from railx.figures.tables import records, where
from railx.figures.theme import GREY, INK, PALETTE, colours, label
from railx.figures.words import counted, phrases, quantity, span, spoken

# Flow model against packet simulator, and their ratio

_MARKERS = "os^DvPX"
_MODELS = ["flow_flits_per_chip_cycle", "packet_flits_per_chip_cycle"]


@figure("Flow model against packet simulator", "railx", height=5.4)
@reads(
    comparison="agreement.comparison: topology traffic routing load_over_bound"
    " flow_flits_per_chip_cycle packet_flits_per_chip_cycle ratio flow_fidelity packet_fidelity"
)
def agreement(settings: CanvasSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Throughput of the flow model against the packet simulator's, and their ratio.

    Colour by topology, shape by traffic, hollow for balanced routing.
    """
    rows = tables.read("comparison")
    colour = colours(rows["topology"])
    marker = dict(zip(rows["traffic"].unique(), _MARKERS * 3, strict=False))
    routings = list(rows["routing"].unique())
    subtitle = """Left: what arrives in both models. Right: packets over flows; below 1 on the load
        axis no link is overloaded."""
    fidelities = [*rows["flow_fidelity"], *rows["packet_fidelity"]]
    with canvas(subtitle, fidelities, shows={"flow": "across", "packet": "up"}) as page:
        both, ratio = tiles(page, ("Throughput", "Packets over flows"), 2, settings)
        groups = list(rows.groupby(["topology", "traffic", "routing"], sort=False))
        for position, (key, part) in enumerate(groups):
            topology, traffic, routing = map(str, key)
            fill = "full" if routing == routings[0] else "none"
            style = dot(colour[topology], 6, marker=marker[traffic], fillstyle=fill, alpha=0.85)
            line = part.sort_values("load_over_bound")
            both.plot(line[_MODELS[0]], line[_MODELS[1]], **style)
            # Points of equal load are drawn side by side, in the order of the groups.
            aside = 1 + 0.16 * (position / max(len(groups) - 1, 1) - 0.5) * 2
            ratio.plot(line["load_over_bound"] * aside, line["ratio"], **style)
        diagonal(both, rows[_MODELS])
        both.set_xlabel("Flow model (flits/chip/cycle)")
        both.set_ylabel("Packet simulator (flits/chip/cycle)")
        both.tick_params(axis="x", pad=6)
        ratio.axhline(1, color=INK, linewidth=1, zorder=1)
        ratio.axvline(1, color=GREY, linewidth=1, linestyle=":", zorder=1)
        ratio.set_xlabel("Offered load / load that fills the busiest link")
        ratio.set_ylabel("Packet simulator / flow model")
        ratio.set_ylim(0, max(1.2, 1.05 * float(rows["ratio"].max())))
        ticks(ratio.xaxis, sorted(set(rows["load_over_bound"])), "{x:g}", 10)
        legend = {label(name): {"color": colour[name], "linewidth": 4} for name in colour}
        legend |= {label(name): dot(GREY, marker=mark) for name, mark in marker.items()}
        for name in routings if len(routings) > 1 else ():
            style = {} if name == routings[0] else {"fillstyle": "none"}
            legend[f"Routing {name}"] = dot(GREY, **style)
        share_legend(page, legend, 5)
    ratios = rows.groupby(["topology", "traffic"], sort=False)["ratio"].apply(span).reset_index()
    alternative = f"""Throughput of packets over that of flows, around the diagonal. Ratios:
        {phrases(ratios, "{topology:spoken}, {traffic:lower} {ratio}")}."""
    free = rows["load_over_bound"] < 1
    seeds = rows["seed"].nunique() if "seed" in rows.columns else 1
    parts = []
    for part, region in (
        (rows[free], "Where no link is overloaded"),
        (rows[~free], "Beyond the load that fills the busiest link"),
    ):
        if len(part):
            worst = part.iloc[int((part["ratio"] - 1).abs().to_numpy().argmax())]
            parts.append(f"""{region} packets bring {span(100 * part["ratio"])} % of what flows do,
                median {quantity(100 * float(part["ratio"].median()))} %; farthest apart are
                {spoken(worst["topology"])} under {label(worst["traffic"]).lower()} traffic,
                {worst["routing"]} routing, at {worst["load_over_bound"]:g} times that load.""")
    topologies = counted(rows["topology"].nunique(), "topology", "topologies")
    caption = f"""The same traffic, routing and offered load in the flow model and in the packet
        simulator: {counted(len(rows), "point")} on {topologies}, {counted(seeds, "seed")}.
        {" ".join(parts)} Packets that wait behind others in finite buffers cost throughput, which
        the flow model does not see."""
    return Drawn(caption, alternative, rows)


# Time and memory of a layer

#: What is predicted: its column of errors and whether layers are recomputed.
_KINDS = {
    "time": ("error", False),
    "time,\nrecomputed": ("error", True),
    "memory": ("memory_error", False),
    "memory,\nrecomputed": ("memory_error", True),
}


@figure("Cost model against measured layers", "infinipipe", height=4.8)
@reads(
    points="profile.points: profile model part degree context tokens checkpointed forward_ms"
    " backward_ms kept_bytes held_out predicted_ms error predicted_kept_bytes memory_error"
    " fidelity",
    published="infinipipe.csv: id value",
)
def cost_model_error(settings: Choice, tables: Tables, canvas: Canvas) -> Drawn:
    """Predicted times and memory of measured layers."""
    rows = where(tables.read("points", "profile", settings.only), part="layer")
    rows = rows.assign(measured_ms=rows["forward_ms"] + rows["backward_ms"])
    allowed = float(tables.values("published")["cost_model_error_most"])
    fresh = where(rows, held_out=True)
    unseen = {
        name: [*(100 * where(fresh, checkpointed=recomputed)[column].dropna().astype(float))]
        for name, (column, recomputed) in _KINDS.items()
    }
    subtitle = """Left: forward and backward pass of a layer. Right: how far predictions are off
        where the fit has not seen the point."""
    with canvas(subtitle, rows["fidelity"]) as page:
        times, errors = tiles(page, ("Time of a layer", "Error"), 2, settings)
        for recomputed, held_out in itertools.product((False, True), repeat=2):
            part = where(rows, checkpointed=recomputed, held_out=held_out)
            style = dot(PALETTE[int(recomputed)], fillstyle="full" if held_out else "none")
            times.plot(part["measured_ms"], part["predicted_ms"], alpha=0.85, **style)
        diagonal(times, rows[["measured_ms", "predicted_ms"]])
        times.set(xlabel="Measured (ms)", ylabel="Predicted (ms)")
        for position, (name, percent) in enumerate(unseen.items()):
            last = max(len(percent) - 1, 1)
            x = [position + 0.3 * (index / last - 0.5) for index in range(len(percent))]
            errors.plot(x, percent, alpha=0.85, **dot(PALETTE[int(_KINDS[name][1])]))
            if percent:
                ends = [position - 0.25, position + 0.25]
                errors.plot(ends, [median(percent)] * 2, color=INK, linewidth=2)
        errors.axhline(100 * allowed, zorder=4, **PUBLISHED_LINE)
        most = max(100 * allowed, *itertools.chain(*unseen.values()))
        errors.set(ylim=(-0.02 * most, 1.1 * most), ylabel="Error of unseen points (%)")
        errors.set_xticks(range(len(_KINDS)), list(_KINDS))
        legend = {
            "nothing recomputed": {"color": PALETTE[0], "linewidth": 4},
            "recomputed": {"color": PALETTE[1], "linewidth": 4},
            "part of the fit": dot(GREY, fillstyle="none"),
            "unseen": dot(GREY),
            "median": {"color": INK, "linewidth": 2},
            "InfiniPipe, typically below": PUBLISHED_LINE,
        }
        share_legend(page, legend, 6)
    facts = "; ".join(
        f"{name.replace(chr(10), ' ')} {quantity(median(percent))} %, at most"
        f" {quantity(max(percent))} % of {counted(len(percent), 'point')}"
        for name, percent in unseen.items()
        if percent
    )
    caption = f"""Slices of a layer of {", ".join(map(label, rows["model"].unique()))}, as measured
        and as the fitted cost model predicts them. Median errors of points that the fit has not
        seen: {facts}. InfiniPipe says typically below {quantity(100 * allowed)} % of its own."""
    alternative = f"Predicted over measured time around the diagonal, and errors: {facts}."
    return Drawn(caption, alternative, rows)


# Training steps measured by others

_UNITS = {"seconds": "Time of a step (s)", "gib": "Memory of a device (GiB)"}


@figure("The model of a training step against measured runs", "all", height=4.2)
@reads(
    rows="validation.rows: set device precision quantity measured ours fidelity",
    errors="validation.errors: set quantity group rows left_out mean_error mean_error_roofline"
    " fidelity",
)
def step_model(settings: CanvasSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """The model of a step: measured against modelled, and mean errors by set."""
    rows, errors = tables.read("rows"), where(tables.read("errors"), group="all")
    timed = errors["set"].isin(where(errors, quantity="seconds")["set"])
    memory = (timed & (errors["quantity"] == "gib")).map({True: ", memory", False: ""})
    errors = errors.assign(words=errors["set"].map(label) + memory)
    colour = colours(rows["set"])
    subtitle = """Left and middle: a dot a run, on the line both agree. Right: mean errors on rows
        that were not fitted."""
    note = "Measured by others: resources/measured has the rows with their sources"
    with canvas(subtitle, rows["fidelity"], note) as page:
        panels = page.subplots(1, 3, width_ratios=(1, 1, 1.1))
        for axes, (kind, title) in zip(panels, _UNITS.items(), strict=False):
            part = where(rows, quantity=kind)
            for name, of_set in part.groupby("set", sort=False):
                style = dot(colour[str(name)], 4, alpha=0.6)
                axes.plot(of_set["measured"], of_set["ours"], **style)
            if len(part):
                diagonal(axes, part[["measured", "ours"]])
            axes.set(title=title, xlabel="Measured", ylabel="Model")
        for position, row in enumerate(records(errors)):
            panels[2].plot(100 * row["mean_error"], position, **dot(colour[row["set"]], 7))
            if row["quantity"] == "seconds":
                plain = 100 * row["mean_error_roofline"]
                panels[2].plot(plain, position, **dot(GREY, 7, fillstyle="none"))
        name_rows(panels[2], list(errors["words"]))
        panels[2].set(title="Mean error", xlabel="Error (%)")
        panels[2].set_xlim(left=0)
        legend = {label(name): dot(shade, 6) for name, shade in colour.items()}
        legend["Plain roofline"] = dot(GREY, 7, fillstyle="none")
        share_legend(page, legend, 4)
    means = phrases(errors, "{words} {mean_error:q%} ({left_out} of {rows} rows)")
    caption = f"""{counted(len(rows), "measured number")} of {counted(rows["set"].nunique(), "set")}
        against the model of a step. Mean absolute relative errors on rows that were not fitted:
        {means}. Where every row was fitted, as with low precisions, the error is that of the
        fit."""
    alternative = f"Model over measurement around the diagonal. Mean errors: {means}."
    return Drawn(caption, alternative, rows)
