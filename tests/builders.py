"""What many tests build: choices of conf/ with changes, topologies from them, numbers
of resources/, and tables under the columns that their stages declare.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from railx.families import build_topology, check_topology, family_named
from railx.io import write_table
from railx.performance.layer_profile import Point, ProfileSettings, layer_points
from railx.settings import SettingsError, load
from railx.vocabulary.topology import NodeSettings, Topology
from railx.workload.batches import SampledBatch
from workflow.config import read_choice
from workflow.outputs import Table, arrow_schema, typed_array
from workflow.schemas import _Writer
from workflow.settings import groups
from workflow.stages import stage_of

__all__ = [
    "CATALOGUE",
    "CONF",
    "PUBLISHED",
    "ROOT",
    "SMALL_JOB",
    "build",
    "checked",
    "choice",
    "drawn_batch",
    "hyperx",
    "profile_row",
    "profile_rows",
    "published",
    "published_rows",
    "stage_columns",
    "topology_settings",
    "with_node",
    "write_corpus",
    "write_result",
    "write_stage_table",
]

ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "conf"
PUBLISHED = ROOT / "resources" / "published"
CATALOGUE = ROOT / "resources" / "catalogue" / "prices.csv"

#: A job for 64 chips, as plain settings.
SMALL_JOB: dict[str, Any] = {
    "model": {
        "name": "small",
        "layers": 8,
        "hidden": 512,
        "heads": 16,
        "kv_heads": 8,
        "feed_forward": 1024,
        "vocabulary": 1000,
    },
    "experts": None,
    "layout": {"mesh": {"tensor": 4}, "x": {"data": 4}, "y": {"pipeline": 4}},
    "sequence_tokens": 4096,
    "micro_batches": 3,
    "bytes_per_element": 2,
    "gradient_bytes_per_element": 4,
    "chip": {"peak_tflops": 100.0, "efficiency": 0.5},
}


def choice(group: str, name: str, **changes: Any) -> dict[str, Any]:
    """The plain settings of conf/``group``/``name``.yaml with ``changes``."""
    return read_choice(group, name) | changes


@cache
def _hints() -> dict[str, Any]:
    return groups()


def checked(group: str, name: str, **changes: Any) -> Any:
    """The settings of conf/``group``/``name``.yaml with ``changes``, checked."""
    return load(_hints()[group], choice(group, name, **changes), group)


def schema_of(hint: Any) -> dict[str, Any]:
    """The JSON Schema of a type hint alone; every key without a default is required."""
    writer = _Writer()
    return {**writer.of(hint, "whole"), "$defs": writer.definitions}


def topology_settings(name: str, **changes: Any) -> Any:
    """The settings of a topology of conf/ with ``changes``, checked."""
    return checked("topology", name, **changes)


def build(name: str, **changes: Any) -> Topology:
    """The graph of a topology of conf/ with ``changes``."""
    return build_topology(topology_settings(name, **changes))


def hyperx(m: int, n: int) -> Topology:
    """RailX of nodes of m x m chips; three and five rails have no directed rings (four
    and six nodes have no such decomposition).
    """
    return build("railx_hyperx", m=m, n=n, rings="undirected" if m * n in (3, 5) else "directed")


def drawn_batch(lengths: Sequence[int]) -> SampledBatch:
    """A batch of sequences of these lengths, numbered from 100."""
    return SampledBatch(np.arange(100, 100 + len(lengths)), np.array(lengths, dtype=np.int64))


def published_rows(file: str) -> list[dict[str, str]]:
    """The rows of resources/published/``file``."""
    with (PUBLISHED / file).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def published(file: str) -> dict[str, dict[str, str]]:
    """The rows of resources/published/``file`` by their id."""
    return {row["id"]: row for row in published_rows(file)}


def _table(output: str) -> Table:
    table = stage_of(output).outputs[output.partition(".")[2]]
    assert isinstance(table, Table)
    return table


def stage_columns(output: str) -> list[str]:
    """The columns that a stage declares for ``output`` (``network.bounds``)."""
    return list(_table(output).declared())


def write_stage_table(
    path: Path,
    output: str,
    rows: Iterable[Mapping[str, Any]],
    metadata: Mapping[str, Any] | None = None,
    **everywhere: Any,
) -> Path:
    """A table as the stage writes it: ``output`` (``network.bounds``) names its columns
    and types.

    ``everywhere`` holds values of all rows. What a row leaves out is null; optional
    columns are written where a row has one of them. A column that the stage does not
    declare and a value of another type are a ValueError.
    """
    table = _table(output)
    whole = [{**everywhere, **row} for row in rows]
    named = set().union(*whole)
    columns = dict(table.declared())
    if named & set(table.optional):
        columns |= table.optional
    if unknown := sorted(named - set(columns)):
        raise ValueError(f"{output}: got {', '.join(unknown)}; allowed: {', '.join(columns)}")
    arrays = {
        one.name: typed_array([row.get(one.name) for row in whole], one.type)
        for one in arrow_schema(columns)
    }
    write_table(path, pa.table(arrays), metadata=metadata)
    table.check(path)
    return path


def write_result(
    results: Path,
    output: str,
    rows: Iterable[Mapping[str, Any]],
    item: str = "",
    metadata: Mapping[str, Any] | None = None,
    **everywhere: Any,
) -> Path:
    """:func:`write_stage_table` at the place below ``results`` that the stage declares
    for ``item``.
    """
    path = results / stage_of(output).path(output.partition(".")[2], item)
    return write_stage_table(path, output, rows, metadata, **everywhere)


def write_corpus(path: Path, texts: Sequence[bytes | int], **metadata: Any) -> Path:
    """A corpus of texts, a number where only the length is known; ``metadata`` stands
    in the file.

    A token for the beginning of a sequence counts in the lengths of the texts.
    """
    begins = "beginning_of_sequence" in metadata
    rows = [
        {"sequence": number, "length_tokens": text}
        if isinstance(text, int)
        else {"sequence": number, "length_tokens": len(text) + begins, "tokens": text}
        for number, text in enumerate(texts)
    ]
    return write_stage_table(path, "corpus.sequences", rows, metadata)


def profile_row(
    point: Point,
    time: tuple[float, float, float],
    keeps: float = 8000.0,
    exchanges: float = 0.0,
    again: float = 0.9,
    attention_forward: float = 1 / 3,
) -> dict[str, Any]:
    """A point as exact coefficients give it, a third of the linear and the constant
    time forward.
    """
    own = point.tokens / point.degree
    exchanged, squared = 0, 0.0
    if point.part == "all_to_all":
        # 0.2 GB/s for two ranks, 0.4 GB/s for four, and 0.5 ms.
        exchanged = 4 * 4 * 192 * point.tokens // point.degree
        total, kept, left = 0.5 + exchanged / (0.1 * point.degree * 1e6), 0.0, 0.0
    elif point.part == "ends":
        total, kept, left = 0.004 * own + 0.3, 1024 * own, 0.0
    else:
        squares = (point.context + point.tokens) ** 2 - point.context**2
        squared = time[0] * squares / point.degree
        total = squared + time[1] * own + time[2]
        kept = (keeps + exchanges * (point.degree > 1)) * own
        kept = 576 * own if point.checkpointed else kept + 600 * point.context / point.degree
        # The gradient of the context keeps that of the slice's own tokens alive.
        left = 512 * (point.context + point.tokens) / point.degree if point.context else 0.0
    forward = total / 3 + squared * (attention_forward - 1 / 3)
    return {
        **vars(point),
        "model": "tiny",
        "device": "none",
        "dtype": "float32",
        "torch": "2.11.0",
        "forward_ms": forward,
        "backward_ms": total - forward + point.checkpointed * again * forward,
        "kept_bytes": kept,
        "left_bytes": left,
        "exchanged_bytes": exchanged,
        "fidelity": "measured_cpu",
    }


def profile_rows(
    time: tuple[float, float, float] = (3e-5, 0.02, 1.5), **changes: float
) -> list[dict[str, Any]]:
    """All points of the tiny profile, by :func:`profile_row`."""
    settings: ProfileSettings = checked("profile", "tiny")
    return [profile_row(point, time, **changes) for point in layer_points(settings)]


def with_node(settings: Any) -> Any:
    """The network with nodes of four or five chips where its chips stand alone."""
    if family_named(settings.family).has_nodes:
        return settings
    for chips in (4, 5):
        with suppress(SettingsError):
            composed = replace(settings, node=NodeSettings(chips, "switch", 450.0))
            check_topology(composed)
            return composed
    raise AssertionError(settings)
