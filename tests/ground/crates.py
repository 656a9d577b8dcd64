"""Required rules of the profiles that a run's crate names, held without a network.

Sources: RO-Crate 1.1, Workflow RO-Crate 1.0, Process Run Crate 0.5, Workflow Run Crate
0.5. With the published context of RO-Crate 1.1.3, roc-validator 0.13 misses nothing
required either; it is not among the locked packages, as it needs rich < 14. With the
context of RO-Crate 1.3, which the package rocrate ships, it refuses the types of the
main workflow: ComputationalWorkflow has another IRI there. These crates are 1.1.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["RULES", "Crate", "broken_rules"]

_ROOT, _DESCRIPTOR = "./", "ro-crate-metadata.json"
_CONTEXT = "https://w3id.org/ro/crate/1.1/context"
_RUN_TERMS = "https://w3id.org/ro/terms/workflow-run#"
#: Terms of the context of RO-Crate 1.1.3 that crates of runs use.
_TERMS = (
    "ComputationalWorkflow ComputerLanguage CreateAction CreativeWork Dataset File"
    " PropertyValue SoftwareApplication SoftwareSourceCode about actionStatus conformsTo"
    " datePublished description encodingFormat endTime hasPart identifier instrument"
    " license mainEntity mentions name object programmingLanguage result"
    " softwareRequirements softwareVersion startTime subjectOf url value version"
)
_ACTION_STATUS = frozenset(
    f"http://schema.org/{word}ActionStatus" for word in ("Completed", "Failed", "Active")
)
_PROFILES = (
    "https://w3id.org/ro/wfrun/process/0.5",
    "https://w3id.org/ro/wfrun/workflow/0.5",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0",
)


class Crate:
    """A crate's metadata, with its entities by identifier."""

    def __init__(self, metadata: Mapping[str, Any], folder: Path) -> None:
        self.metadata, self.folder = metadata, folder
        self.graph: list[dict[str, Any]] = metadata["@graph"]
        self.entities = {entity["@id"]: entity for entity in self.graph}

    def of_type(self, name: str) -> list[dict[str, Any]]:
        return [entity for entity in self.graph if name in _types(entity)]

    def linked(self, entity: Mapping[str, Any], term: str) -> list[dict[str, Any]]:
        """The entities that a property names."""
        return [self.entities.get(identifier, {}) for identifier in _links(entity.get(term))]


def _types(entity: Mapping[str, Any]) -> list[str]:
    return _list(entity.get("@type"))


def _list(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _links(value: Any) -> list[str]:
    return [item["@id"] for item in _list(value) if isinstance(item, dict) and "@id" in item]


def _is_date(value: Any) -> bool:
    try:
        return bool(datetime.datetime.fromisoformat(value))
    except (TypeError, ValueError):
        return False


def _undefined(crate: Crate) -> Iterator[str]:
    base, own = crate.metadata["@context"]
    if base != _CONTEXT:
        yield f"context {base}"
    for term, iri in own.items():
        if iri != f"{_RUN_TERMS}{term}":
            yield f"{term}: {iri}"
    for entity in crate.graph:
        for term in {*_types(entity), *entity} - {"@id", "@type"} - {*_TERMS.split(), *own}:
            yield term


def _unresolved(crate: Crate) -> Iterator[str]:
    for entity in crate.graph:
        for term, value in entity.items():
            for item in _list(value) if not term.startswith("@") else ():
                if isinstance(item, dict) and set(item) != {"@id"}:
                    yield f"{entity['@id']} {term}: a nested entity"
            for link in _links(value):
                if link not in crate.entities and not re.match("https?://", link):
                    yield f"{entity['@id']} {term}: {link}"


def _files(crate: Crate) -> Iterator[str]:
    parts = set(_links(crate.entities[_ROOT].get("hasPart")))
    for entity in crate.of_type("File"):
        identifier = entity["@id"]
        if identifier not in parts:
            yield f"{identifier} in no hasPart"
        if not (crate.folder / identifier).is_file():
            yield f"{identifier} is no file"
    yield from sorted(parts - {entity["@id"] for entity in crate.of_type("File")})


def _root(crate: Crate) -> Iterator[str]:
    root = crate.entities.get(_ROOT, {})
    for term in ("name", "description", "license"):
        if not root.get(term):
            yield term
    if "Dataset" not in _types(root):
        yield "@type"
    if not _is_date(root.get("datePublished")):
        yield "datePublished"


def _descriptor(crate: Crate) -> Iterator[str]:
    descriptor = crate.entities.get(_DESCRIPTOR, {})
    if _types(descriptor) != ["CreativeWork"]:
        yield "@type"
    if _links(descriptor.get("about")) != [_ROOT]:
        yield "about"
    if "https://w3id.org/ro/crate/1.1" not in _links(descriptor.get("conformsTo")):
        yield "conformsTo"


def _profiles(crate: Crate) -> Iterator[str]:
    profiles = crate.linked(crate.entities[_ROOT], "conformsTo")
    described = {entity["@id"] for entity in profiles if "CreativeWork" in _types(entity)}
    yield from sorted(set(_PROFILES) - described)


def _main_workflow(crate: Crate) -> Iterator[str]:
    workflows = crate.linked(crate.entities[_ROOT], "mainEntity")
    if len(workflows) != 1:
        yield "mainEntity"
    for workflow in workflows:
        missing = {"File", "SoftwareSourceCode", "ComputationalWorkflow"} - set(_types(workflow))
        yield from sorted(missing)
        languages = crate.linked(workflow, "programmingLanguage")
        if not languages or "ComputerLanguage" not in _types(languages[0]):
            yield "programmingLanguage"
        if not any(
            workflow in crate.linked(action, "instrument")
            for action in crate.of_type("CreateAction")
        ):
            yield "no action of it"


def _actions(crate: Crate) -> Iterator[str]:
    programs = {"SoftwareApplication", "SoftwareSourceCode", "ComputationalWorkflow"}
    data = {"File", "Dataset", "Collection", "CreativeWork", "PropertyValue"}
    for action in crate.of_type("CreateAction"):
        name = action["@id"]
        instruments = crate.linked(action, "instrument")
        if not instruments or not all(programs & set(_types(tool)) for tool in instruments):
            yield f"{name} instrument"
        for term in ("object", "result"):
            if not all(data & set(_types(entity)) for entity in crate.linked(action, term)):
                yield f"{name} {term}"
        for term in ("startTime", "endTime"):
            if not _is_date(action.get(term)):
                yield f"{name} {term}"
        if action.get("actionStatus") not in _ACTION_STATUS:
            yield f"{name} actionStatus"
        if name not in _links(crate.entities[_ROOT].get("mentions")):
            yield f"{name} in no mentions"


def _identifiers(crate: Crate) -> Iterator[str]:
    counts = Counter(entity["@id"] for entity in crate.graph)
    yield from (identifier for identifier, count in counts.items() if count > 1)
    yield from (entity["@id"] for entity in crate.graph if not _types(entity))


#: What breaks each rule, by its name.
RULES: Mapping[str, Callable[[Crate], Iterator[str]]] = {
    "terms are defined by a context": _undefined,
    "entities are flat and references resolve": _unresolved,
    "identifiers are unique and typed": _identifiers,
    "the descriptor describes the root": _descriptor,
    "the root has its properties": _root,
    "files are parts of the root and lie in the folder": _files,
    "the root names its profiles": _profiles,
    "the main workflow has its types, a language and a run": _main_workflow,
    "actions have programs, files, times and a status": _actions,
}


def broken_rules(metadata: Mapping[str, Any], folder: Path) -> list[str]:
    """The rules that a crate in ``folder`` breaks, each with what breaks it."""
    crate = Crate(metadata, folder)
    return [f"{name}: {text}" for name, rule in RULES.items() for text in rule(crate)]
