"""What stands in resources/, checked before any job.

Claims and papers, published numbers, expected verdicts; and every query of a claim
against the columns that the stages declare. What was found in order is remembered
(:mod:`railx.file_cache`) until a file of resources/ or the code changes.
"""

from __future__ import annotations

from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from railx import places
from railx.file_cache import cached
from workflow.cache_keys import cache_key, code_digest

if TYPE_CHECKING:
    import pyarrow as pa

    from railx.evidence import Claim, Paper

#: The folder of work where it has claims of its own, else what comes with the code.
_ROOT = places.WORK if (places.WORK / "resources" / "claims").is_dir() else places.SHIPPED
_ENDINGS = (".yaml", ".csv")


def check_resources(root: Path = _ROOT) -> None:
    """Check what stands in resources/; ValueError names the file, and row or claim."""
    read = [path for path in (root / "resources").rglob("*") if path.suffix in _ENDINGS]
    key = cache_key(["resources", version("duckdb"), code_digest()], read)
    folder = places.cache("resources") if root == _ROOT else root / ".cache" / "resources"
    cached(folder, key, partial(_check, root, read))


@cache
def all_claims() -> tuple[Claim, ...]:
    """Every claim of resources/claims, read once a process."""
    return _claims(_ROOT)


def all_papers(root: Path = _ROOT) -> dict[str, Paper]:
    """The papers of resources/papers.yaml."""
    from railx.evidence import read_papers

    return read_papers(root / "resources" / "papers.yaml")


def declared_tables() -> dict[str, pa.Schema | None]:
    """The tables that claims may name: their columns, as the stages declare them.

    In a name a star stands for the name of an item (``network.*.bounds``). A JSON
    object whose keys the stage does not declare has a schema of None.
    """
    from workflow.outputs import Json, Table, arrow_schema
    from workflow.stages import STAGES

    schemas: dict[str, pa.Schema | None] = {}
    for stage in STAGES.values():
        for key, output in stage.outputs.items():
            if output.claims:
                path = Path(stage.path(key, "*" if stage.item else "")).with_suffix("")
                columns = (
                    {**output.declared(), **output.optional}
                    if isinstance(output, Table)
                    else output.keys
                    if isinstance(output, Json)
                    else {}
                )
                schemas[".".join(path.parts)] = arrow_schema(columns) if columns else None
    return schemas


def _claims(root: Path) -> tuple[Claim, ...]:
    from railx.evidence import load_claims

    resources = root / "resources"
    return load_claims(resources / "claims", resources / "published", resources / "papers.yaml")


def _check(root: Path, files: list[Path]) -> dict[str, Any]:
    """Nothing to keep, where all of it is in order."""
    from railx import evidence

    for path in sorted(files):
        # The others, which are long, are read below.
        if path.suffix == ".yaml" and path.parent.name not in ("claims", "expected"):
            evidence.read_yaml(path)
    tables = evidence.published_tables(root / "resources" / "published", all_papers(root))
    claims = _claims(root)
    numbers = evidence.PublishedNumbers(root / "resources" / "published")
    lineage = evidence.read_lineage(root / "resources" / "lineage.yaml", numbers, tables, claims)
    evidence.check_rows_judged(claims, tables, frozenset().union(*lineage.rows.values()))
    evidence.check_queries(claims, declared_tables())
    ids = {claim.id for claim in claims}
    for path in sorted((root / "resources" / "expected").glob("*.yaml")):
        evidence.read_expected(path, ids)
    return {}
