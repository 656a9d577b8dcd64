"""A finished run as a Workflow Run RO-Crate: outputs, jobs and inputs.

The crate is the results folder of an experiment. Its metadata list every output file
with its digest, and for each job an action: the stage with the digest of its code and
its packages, inputs, outputs, times, and the record of the job.
Profiles: Process Run Crate and Workflow Run Crate 0.5, Workflow RO-Crate 1.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

_PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
#: Terms of the profiles that RO-Crate's own context lacks.
_TERM = "https://w3id.org/ro/terms/workflow-run#"
_TERMS = {name: f"{_TERM}{name}" for name in ("sha256", "resourceUsage")}
_COMPLETED = "http://schema.org/CompletedActionStatus"
_LICENSE = "https://spdx.org/licenses/Apache-2.0"
_FORMATS = {
    ".csv": "text/csv",
    ".html": "text/html",
    ".json": "application/json",
    ".parquet": "application/vnd.apache.parquet",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}


def run_crate(
    *,
    experiment: str,
    folder: str,
    workflow: str,
    config: str,
    report: str,
    records: Mapping[str, Mapping[str, Any]],
    stages: Mapping[str, str],
) -> dict[str, Any]:
    """The crate's metadata (JSON-LD) as plain data.

    ``folder`` is the results folder as the records write it (``results/quick``);
    ``workflow``, ``config``, ``report`` and the keys of ``records`` are paths below it.
    ``records`` holds the records of the jobs (:func:`railx.provenance.job_record`),
    ``stages`` has a description of each stage. Raises ValueError without a record.
    """
    from rocrate.rocrate import ROCrate

    if not records:
        raise ValueError("records: got none; allowed: the record of one job or more")
    ended = max(record["ended_utc"] for record in records.values())
    crate = ROCrate(version="1.1")
    crate.metadata.extra_terms.update(_TERMS)
    crate.name = f"RailX Lab: experiment {experiment}"
    crate.description = (
        "Claims of papers on reconfigurable networks for training large models, computed again and"
        " judged: result tables, figures, verdicts and how each of them was made."
    )
    crate.datePublished = ended
    crate.license = _entity(crate, _LICENSE, "CreativeWork", "Apache-2.0")
    crate.root_dataset["conformsTo"] = [
        _entity(crate, profile, "CreativeWork", name) for profile, name in _PROFILES.items()
    ]
    main = crate.add_workflow(dest_path=workflow, main=True, lang="snakemake")
    main["name"] = "Reproduction pipeline"
    main["encodingFormat"] = "text/plain"
    commits = sorted({record["commit"] for record in records.values() if record["commit"]})
    if commits:
        main["version"] = ", ".join(commits)
    files = _Files(crate, folder)
    jobs = [
        _add_job(crate, files, folder, path, record, stages)
        for path, record in sorted(records.items())
    ]
    run = crate.add_action(
        main,
        identifier="#run",
        object=[files.file(f"{folder}/{config}")],
        result=[files.file(f"{folder}/{report}")],
        properties={
            "name": f"Run of experiment {experiment}",
            "description": f"All {len(records)} jobs of the experiment",
            "startTime": min(record["started_utc"] for record in records.values()),
            "endTime": ended,
            "actionStatus": _COMPLETED,
        },
    )
    crate.root_dataset["mentions"] = [run, *jobs]
    metadata: dict[str, Any] = crate.metadata.generate()
    return metadata


class _Files:
    """The input and output files of jobs, an entity per file."""

    def __init__(self, crate: Any, folder: str) -> None:
        self._crate = crate
        self._folder = f"{folder}/"
        self._entities: dict[str, Any] = {}

    def file(self, path: str, digest: str = "") -> Any:
        """A file of the crate, or a reference to a file outside of it."""
        inside = path.startswith(self._folder)
        identifier = path.removeprefix(self._folder) if inside else f"#file-{path}"
        if identifier not in self._entities:
            self._entities[identifier] = (
                self._crate.add_file(dest_path=identifier)
                if inside
                else _entity(self._crate, identifier, "CreativeWork", path)
            )
        entity = self._entities[identifier]
        if digest:
            entity["sha256"] = digest
        kind = _FORMATS.get(PurePosixPath(path).suffix)
        if inside and kind:
            entity["encodingFormat"] = kind
        return entity

    def files(self, digests: Mapping[str, str]) -> list[Any]:
        """The entities of paths with their digests."""
        return [self.file(path, digest) for path, digest in digests.items()]


def _add_job(
    crate: Any,
    files: _Files,
    folder: str,
    path: str,
    record: Mapping[str, Any],
    stages: Mapping[str, str],
) -> Any:
    name = "/".join(filter(None, (record["stage"], record["item"])))
    software = "SoftwareApplication"
    stage = _entity(
        crate,
        f"#stage-{record['stage']}-{record['code']}",
        software,
        f"stage {record['stage']}",
        description=stages.get(record["stage"], ""),
        softwareVersion=record["code"],
    )
    stage["softwareRequirements"] = [
        _entity(crate, f"#package-{name}-{version}", software, name, softwareVersion=version)
        for name, version in record["packages"].items()
    ]
    action = crate.add_action(
        stage,
        identifier=f"#job-{name}",
        object=files.files(record["inputs"]),
        result=files.files(record["outputs"]),
        properties={
            "name": f"Job {name}",
            "description": stages.get(record["stage"], name),
            "startTime": record["started_utc"],
            "endTime": record["ended_utc"],
            "actionStatus": _COMPLETED,
        },
    )
    action["subjectOf"] = files.file(f"{folder}/{path}")
    action["resourceUsage"] = _usage(crate, name, record)
    return action


def _usage(crate: Any, name: str, record: Mapping[str, Any]) -> list[Any]:
    """Machine, lock, config and load of a job as property values."""
    values = {
        **{key: record[key] for key in ("config", "lock")},
        "processor": record["cpu"],
        **{key: record[key] for key in ("cores", "memory_gb", "python")},
        **{f"load_{time}": record["load"][time] for time in ("before", "after")},
    }
    return [
        _entity(crate, f"#job-{name}-{key}", "PropertyValue", key, value=value)
        for key, value in values.items()
        if value is not None
    ]


def _entity(crate: Any, identifier: str, kind: str, name: str, **properties: Any) -> Any:
    """The entity of this identifier, which is added once."""
    from rocrate.model.contextentity import ContextEntity

    entity = crate.dereference(identifier)
    if entity is not None:
        return entity
    properties = {"@type": kind, "name": name, **properties}
    return crate.add(ContextEntity(crate, identifier, properties=properties))
