"""The stages, each a module with its ``STAGE``, and the files of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

from railx.places import in_repository
from workflow.outputs import Table
from workflow.stage import Config, FromStage, Stage, Tracked

#: The modules, in the order in which a reader follows them.
_NAMES = (
    *("topology", "metrics", "circuits", "transition", "network", "seeds"),
    *("packets", "agreement", "bandwidth", "mapping", "switched", "tenancy"),
    *("economics", "corpus", "profile", "plan", "buckets", "underlay"),
    *("training", "replay", "live", "steps", "validation", "scaling", "arena"),
    *("design", "recorded"),
    *("evidence", "figure", "report", "crate", "tracking"),
)
#: What the model of a training step reads, and the models that it knows by name.
STEP_MODEL = tuple(
    Path("resources/performance") / f"{name}.yaml" for name in ("constants", "devices", "programs")
)
MODELS = Path("resources/performance/models.yaml")
#: Every stage by name, filled below: stages may ask about all others.
STAGES: dict[str, Stage] = {}


def results_folder(experiment: Config) -> Path:
    """Where the results of an experiment stand."""
    return _path("results", str(experiment["name"]))


def stage_of(output: str) -> Stage:
    """The stage that makes an output such as ``network.bounds``; else ValueError."""
    name, _, key = output.partition(".")
    if name not in STAGES:
        raise ValueError(f"{output}: no such stage; allowed: {', '.join(STAGES)}")
    STAGES[name].pattern(key)
    return STAGES[name]


def files_of(experiment: Config, output: str, only: Sequence[str] = ()) -> dict[str, Path]:
    """The files of an output by item (of ``only``, or all); "" without items."""
    stage, key = stage_of(output), output.partition(".")[2]
    names = tuple(only) or stage.items(experiment)
    folder = str(results_folder(experiment))
    return {name: _path(folder, stage.path(key, name)) for name in names}


@cache
def _path(folder: str, name: str) -> Path:
    """A path below a folder; a dry run asks for each of thousands several times."""
    return Path(folder, name)


def inputs_of(stage: Stage, experiment: Config, item: str = "") -> dict[str, Path | list[Path]]:
    """The files that a stage reads for an item, by name."""
    return {
        name: _paths(experiment, source) for name, source in stage.inputs(experiment, item).items()
    }


def _paths(experiment: Config, source: FromStage | Path | Sequence[Path]) -> Path | list[Path]:
    if isinstance(source, Path):
        return shipped(source)
    if not isinstance(source, FromStage):
        return [shipped(path) for path in source]
    names = (source.items,) if isinstance(source.items, str) else source.items
    files = list(files_of(experiment, source.output, names).values()) if names else []
    return files[0] if isinstance(source.items, str) else files


def shipped(path: Path) -> Path:
    """Where a file is that a setting names: resources come with the code."""
    return in_repository(path) if path.parts[:1] == ("resources",) else path


def named_files(settings: Any) -> list[Path]:
    """The files that settings name by a key ``path``, at any depth."""
    if not isinstance(settings, Mapping):
        return []
    path = settings.get("path")
    below = [file for value in settings.values() for file in named_files(value)]
    return below if path is None else [Path(path), *below]


def resource_files(folder: str) -> list[Path]:
    """The tables and catalogues in a folder of resources/, sorted."""
    paths = in_repository(f"resources/{folder}").iterdir()
    return sorted(path for path in paths if path.suffix in (".csv", ".yaml"))


def claim_files(experiment: Config, before: str = "") -> list[Path]:
    """The files that verdicts and SQL may read, of all stages or those before one."""
    return [
        path
        for name in takewhile(lambda name: name != before, STAGES)
        for key, output in STAGES[name].outputs.items()
        if output.claims
        for path in files_of(experiment, f"{name}.{key}").values()
    ]


def claim_tables(experiment: Config, folder: Path) -> list[str]:
    """The files of :func:`claim_files` that are in ``folder``, by their path below it.

    ``folder`` has the results, which may stand elsewhere than the experiment says.
    """
    below = results_folder(experiment)
    names = [str(file.relative_to(below)) for file in claim_files(experiment)]
    return [name for name in names if (folder / name).is_file()]


def printed_tables(experiment: Config) -> list[dict[str, str]]:
    """The tables that the report prints: title, path below the results, and kind.

    The kind is the title without the item, the same for all items of a stage.
    """
    return [
        {
            "title": output.printed.replace("{item}", item),
            "path": stage.path(key, item),
            "kind": output.printed.replace("{item}", f"each {stage.item.wildcard}")
            if stage.item
            else "",
        }
        for stage in STAGES.values()
        for key, output in stage.outputs.items()
        if isinstance(output, Table) and output.printed
        for item in stage.items(experiment)
    ]


def tracked_results(experiment: Config) -> list[dict[str, Any]]:
    """Every result of an experiment that becomes a tracked run, as plain data."""
    return [_tracked(*job, experiment) for job in _tracked_jobs(experiment)]


def _tracked_jobs(experiment: Config) -> list[tuple[Stage, Tracked, str]]:
    return [
        (stage, stage.tracked, item)
        for stage in STAGES.values()
        if stage.tracked is not None
        for item in stage.items(experiment)
    ]


def _tracked(stage: Stage, tracked: Tracked, item: str, experiment: Config) -> dict[str, Any]:
    folder = results_folder(experiment)
    return {
        "stage": stage.name,
        "name": item or tracked.name,
        "settings": stage.settings(experiment, item),
        "code": code_of(stage, experiment, item),
        "inputs": list(map(str, _digested_inputs(stage, experiment, item))),
        "outputs": [str(folder / stage.path(key, item)) for key in stage.outputs],
        "numbers": str(folder / stage.path(tracked.numbers, item)) if tracked.numbers else "",
        "artifacts": [str(folder / stage.path(key, item)) for key in tracked.artifacts],
        "history": [
            {**asdict(history), "output": str(folder / stage.path(history.output, item))}
            for history in tracked.history
        ],
        "verdicts": str(folder / stage.path(tracked.verdicts, item)) if tracked.verdicts else "",
        "fidelity": tracked.fidelity,
        "modules": _modules(stage, experiment, item),
        "packages": packages_of(stage, experiment, item),
        "benchmark": str(folder / "benchmarks" / f"{_job_name(stage, item)}.tsv"),
    }


def tracked_files(experiment: Config) -> list[Path]:
    """The numbers, inputs and artifacts of all tracked runs, each once, sorted."""
    folder = str(results_folder(experiment))
    files: set[Path] = set()
    for stage, tracked, item in _tracked_jobs(experiment):
        files.update(_digested_inputs(stage, experiment, item))
        keys = filter(None, (tracked.numbers, *tracked.artifacts))
        files.update(_path(folder, stage.path(key, item)) for key in keys)
    return sorted(files, key=str)


def _digested_inputs(stage: Stage, experiment: Config, item: str) -> list[Path]:
    """The files that a stage reads for an item; a folder's digest is its corpus's."""
    digested: list[Path] = []
    for source in stage.inputs(experiment, item).values():
        files = _paths(experiment, source)
        paths = [files] if isinstance(files, Path) else files
        made = isinstance(source, FromStage)
        digested += [path for path in paths if made or not path.is_dir()]
    return digested


def code_of(stage: Stage, experiment: Config, item: str = "") -> str:
    """The digest of what a stage imports and of packages: a change reruns it."""
    from workflow.digest import code_digest

    return code_digest(*_modules(stage, experiment, item))


def packages_of(stage: Stage, experiment: Config, item: str = "") -> dict[str, str]:
    """The versions of the third-party packages that a stage imports."""
    from workflow.digest import package_versions

    return package_versions(*_modules(stage, experiment, item))


def _modules(stage: Stage, experiment: Config, item: str) -> list[str]:
    return [f"workflow.stages.{stage.name}", *stage.modules(experiment, item)]


def provenance_path(stage: Stage, item: str = "") -> str:
    """Where the record of a job stands below the results of an experiment."""
    return f"provenance/{_job_name(stage, item)}.json"


def _job_name(stage: Stage, item: str) -> str:
    return f"{stage.name}/{item}" if item else stage.name


def provenance_files(experiment: Config, before: str = "") -> list[Path]:
    """The records of all jobs of an experiment, or of those before a stage."""
    return [
        results_folder(experiment) / provenance_path(STAGES[name], item)
        for name in takewhile(lambda name: name != before, STAGES)
        for item in STAGES[name].items(experiment)
    ]


STAGES.update({name: import_module(f"workflow.stages.{name}").STAGE for name in _NAMES})
