"""The W&B workspace and report of an experiment, as code, built with no network.

They name logged values only. Each panel draws one number of all results that
have it, so that two invocations lie over one another.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from railx.io import write_json
from railx.tracking.results import Curve, StageResult, verdict_counts
from railx.tracking.settings import TrackingSettings

VIEWS_SCHEMA = "railx.wandb_views/1"
#: What W&B knows of a run itself: its group is the invocation, its name the result.
_INVOCATION, _RESULT = "Group", "Name"


def logged_names(results: Sequence[StageResult], media: Iterable[str]) -> dict[str, Any]:
    """The names for panels, as plain JSON data.

    ``steps``: for what counts steps the curves that do, those of single repeats aside;
    ``curved``: the results with curves; ``verdicts``: those that occur; ``media``: keys
    of pictures and pages.
    """
    curves: dict[str, list[str]] = {}
    for result in results:
        for curve in result.curves:
            points = curves.setdefault(curve.step, [])
            if _shown(curve) and curve.name not in points:
                points.append(curve.name)
    return {
        "steps": curves,
        "curved": {
            result.title: [curve.name for curve in result.curves if _shown(curve)]
            for result in results
            if result.curves
        },
        "verdicts": sorted(verdict_counts(row for logged in results for row in logged.verdicts)),
        "jobs": any("seconds" in result.job for result in results),
        "media": list(media),
    }


def build_workspace(views: Mapping[str, Any]) -> Any:
    """The saved view of an experiment: runs by invocation, a section for each kind.

    ``views``: as :func:`write_views` stores them.
    """
    expr, panels, spaces = _library()
    names, sections = views["names"], []
    if names["verdicts"]:
        sections.append(("Verdicts", [_verdicts(names["verdicts"])]))
    for step, curves in names["steps"].items():
        for value, members in _by_value(curves).items():
            lines = [panels.LinePlot(title=name, x=step, y=[name]) for name in members]
            sections.append((f"{value} over {step}", lines))
    if names["media"]:
        media = [panels.MediaBrowser(title=key, media_keys=[key]) for key in names["media"]]
        sections.append(("Figures and pages", media))
    if names["jobs"]:
        seconds = panels.BarPlot(title="seconds", metrics=["job.seconds"])
        sections.append(("Duration of the jobs", [seconds]))
    return spaces.Workspace(
        entity=views["entity"] or "",
        project=views["project"],
        name=f"{views['experiment']} by invocation",
        sections=[
            spaces.Section(name=name, panels=drawn, is_open=index < 2)
            for index, (name, drawn) in enumerate(sections)
        ],
        runset_settings=spaces.RunsetSettings(
            filters=expr.And(expr.Tags().isin([views["experiment"]])),
            groupby=[expr.Metric(_INVOCATION), expr.Metric(_RESULT)],
        ),
    )


def build_report(views: Mapping[str, Any]) -> Any:
    """Overlaid invocations: a grid of panels for every result with curves."""
    expr, panels, _ = _library()
    names, owner = views["names"], {"project": views["project"], "entity": views["entity"] or ""}

    def runs(*also: Any) -> list[Any]:
        return [
            panels.Runset(
                **owner, name=name, filters=expr.And(expr.Metric(_INVOCATION) == name, *also)
            )
            for name in views["invocations"]
        ]

    step_of = {name: step for step, curves in names["steps"].items() for name in curves}
    blocks: list[Any] = []
    if names["verdicts"]:
        blocks += [
            panels.H2("Verdicts"),
            panels.PanelGrid(runsets=runs(), panels=[_verdicts(names["verdicts"])]),
        ]
    for title, curves in names["curved"].items():
        lines = [
            panels.LinePlot(title=value, x=step_of[members[0]], y=members)
            for value, members in _by_value(curves).items()
        ]
        only = expr.Metric(_RESULT) == title
        blocks += [panels.H2(title), panels.PanelGrid(runsets=runs(only), panels=lines)]
    return panels.Report(
        **owner,
        title=f"{views['experiment']}: {' and '.join(views['invocations'])}"[:128],
        description="Two invocations of the pipeline over one another",
        blocks=blocks,
        width="fluid",
    )


def _library() -> tuple[Any, Any, Any]:
    """wandb-workspaces: expressions, panels and blocks, workspaces."""
    with warnings.catch_warnings():
        # It is written for an older pydantic, and says so.
        warnings.simplefilter("ignore")
        import wandb_workspaces.expr as expr
        import wandb_workspaces.reports.v2 as panels
        import wandb_workspaces.workspaces as spaces
    return expr, panels, spaces


def _shown(curve: Curve) -> bool:
    """Whether a curve is not that of a single repeat, which has three parts."""
    return curve.name.count("/") == 1


def _by_value(curves: Iterable[str]) -> dict[str, list[str]]:
    """Curves by the number that they draw, the last part of their names."""
    values: dict[str, list[str]] = {}
    for name in curves:
        values.setdefault(name.rpartition("/")[2], []).append(name)
    return values


def _verdicts(verdicts: Sequence[str]) -> Any:
    _, panels, _ = _library()
    counts = [f"verdict_counts.{verdict}" for verdict in verdicts]
    return panels.BarPlot(title="verdicts", metrics=counts, orientation="h")


def write_views(
    path: str | Path,
    settings: TrackingSettings,
    experiment: str,
    names: Mapping[str, Any],
    invocations: Sequence[str],
) -> None:
    """Write both views as W&B stores them, and their sources."""
    views = {
        "schema": VIEWS_SCHEMA,
        "project": settings.project,
        "entity": settings.entity,
        "experiment": experiment,
        "invocations": list(invocations),
        "names": names,
    }
    # The models of the library itself: what its save() sends.
    models = {"workspace": build_workspace(views), "report": build_report(views)}
    write_json(path, views | {kind: _plain(model) for kind, model in models.items()})


def _plain(view: Any) -> Any:
    return json.loads(view._to_model().model_dump_json(by_alias=True, exclude_none=True))
