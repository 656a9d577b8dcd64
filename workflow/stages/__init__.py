"""The stages of the pipeline, each a module with its declaration ``STAGE``."""

from importlib import import_module

from workflow.registry import (
    STAGES,
    claim_files,
    claim_tables,
    code_of,
    files_of,
    inputs_of,
    packages_of,
    printed_tables,
    provenance_files,
    provenance_path,
    results_folder,
    shipped,
    stage_of,
    tracked_files,
    tracked_results,
    wildcards,
)

__all__ = [
    "STAGES",
    "claim_files",
    "claim_tables",
    "code_of",
    "files_of",
    "inputs_of",
    "packages_of",
    "printed_tables",
    "provenance_files",
    "provenance_path",
    "results_folder",
    "shipped",
    "stage_of",
    "tracked_files",
    "tracked_results",
    "wildcards",
]

#: The modules, in the order in which a reader follows them.
_NAMES = (
    *("topology", "metrics", "circuits", "transition", "network", "seeds"),
    *("packets", "agreement", "bandwidth", "mapping", "switched", "tenancy"),
    *("economics", "corpus", "profile", "plan", "buckets", "underlay"),
    *("training", "replay", "live", "steps", "validation", "scaling", "arena"),
    *("design", "recorded"),
    *("evidence", "figure", "report", "crate", "tracking"),
)
STAGES.update({name: import_module(f"workflow.stages.{name}").STAGE for name in _NAMES})
