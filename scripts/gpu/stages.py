"""The step on the memory of two pipeline stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .work import Findings, Work

#: How far the memory model may be off (InfiniPipe says so of its own).
_ERROR = 0.05


def recomputing(
    batches: Iterable[Any], layers_of: Callable[[Any, Any], tuple[int, ...]]
) -> tuple[Any, ...]:
    """Batches of pipelines, with other recomputed layers by pipeline and chunk."""
    return tuple(
        replace(
            batch,
            pipelines=tuple(
                replace(
                    one,
                    chunks=tuple(
                        replace(chunk, checkpoint_layers=layers_of(one, chunk))
                        for chunk in one.chunks
                    ),
                )
                for one in batch.pipelines
            ),
        )
        for batch in batches
    )


def stages(work: Work) -> Findings:
    """Two pipeline stages: measured peak of each against the memory model.

    Without, with half and with full checkpointing of the layers.
    """
    from railx.planning.format.files import read_plan, write_plan
    from railx.planning.format.schedule import stage_layers
    from railx.settings import to_dict
    from training.settings import load_run_settings

    found = work.findings()
    predicted: dict[int, list[int]] = {}
    measured: dict[int, list[int]] = {}
    rows = []
    for share in (0.0, 1.0) if work.dry else (0.0, 0.5, 1.0):
        settings = work.settings("stages")
        loaded = load_run_settings(settings)
        held = [len(own) for own in stage_layers(loaded.model.layers, 2)]
        plan = read_plan(settings["plan"])
        recomputed = tuple(round(share * layers) for layers in held)
        batches = recomputing(plan.pipeline_batches()[:3], lambda *_, layers=recomputed: layers)
        name = f"stages_{round(share * 100)}"
        path = work.out / "configs" / f"{name}_plan.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_plan(path, replace(plan, batches=batches))
        settings["plan"] = str(path)
        settings["training"] |= {
            "iterations": 2,
            "repeats": 1,
            "most_extra_repeats": 0,
            "on_demand_latencies_ms": [],
            "provisioned_latencies_ms": [],
        }
        timed = _timed(batches, settings["training"])
        result = work.train(name, settings)
        peaks = _peaks(work.out / "runs" / name / "iterations.parquet")
        for stage, layers in enumerate(held):
            fused = result["attention"] == "varlen"
            most = _predicted(loaded, timed, stage, layers, recomputed[stage], fused=fused)
            seen = peaks.get(stage)
            subject = f"stage {stage}, {recomputed[stage]} of {layers} layers recomputed"
            error = None if seen is None else abs(most / seen - 1)
            found.check("memory_error", error, "at_most", _ERROR, subject=subject, goal=True)
            found.measured("memory_error", error, subject=subject)
            found.measured("measured_peak", seen, subject=subject, unit="bytes")
            found.measured(
                "predicted_peak", most, subject=subject, unit="bytes", fidelity="analytic"
            )
            predicted.setdefault(stage, []).append(most)
            if seen is not None:
                measured.setdefault(stage, []).append(seen)
            rows.append(
                {
                    "stage": stage,
                    "recomputed": recomputed[stage],
                    "predicted": most,
                    "measured": seen,
                }
            )
    for stage, values in predicted.items():
        for what, series in (("predicted", values), ("measured", measured.get(stage, []))):
            falls = float(series == sorted(series, reverse=True)) if series else None
            found.check(
                f"{what}_memory_falls_with_recomputing", falls, "equal", 1, subject=f"stage {stage}"
            )
    found.details = {"rows": rows, "model": to_dict(loaded.model)}
    return found


def _timed(batches: Sequence[Any], training: Mapping[str, Any]) -> tuple[Any, ...]:
    """The batches of the steps whose memory is measured, those behind the warm-up."""
    first = training["warmup_iterations"]
    steps = range(first, first + training["iterations"])
    return tuple(batches[step % len(batches)] for step in steps)


def _predicted(
    loaded: Any, batches: tuple[Any, ...], stage: int, layers: int, recomputed: int, *, fused: bool
) -> int:
    """The peak of a stage by the memory model.

    A batch is as full as the fullest window of chunks that are alive at once.
    """
    from railx.performance.trainer_memory import ModelShard, Pass, rank_memory
    from railx.planning.format.schedule import peak_live_chunks

    low = loaded.training.precision == "bfloat16"
    held = ModelShard(
        layers,
        embeds=stage == 0,
        scores=stage == 1,
        cast=low,
        compute_bytes=2 if low else 4,
    )
    most = 0
    for pipeline in (one for batch in batches for one in batch.pipelines):
        window = peak_live_chunks(pipeline, stage)
        alive = [
            Pass(
                chunk.tokens,
                context=sum(part.start for part in chunk.slices),
                checkpoint_layers=recomputed,
                packed=len(chunk.slices) > 1,
            )
            for chunk in pipeline.chunks
        ]
        for at in range(max(1, len(alive) - window + 1)):
            memory = rank_memory(
                loaded.model,
                held,
                alive[at : at + window],
                loss_chunk_tokens=loaded.training.loss_chunk_tokens,
                fused_attention=fused,
            )
            most = max(most, memory.peak_bytes)
    return most


def _peaks(path: Path) -> dict[int, int]:
    """The most bytes of each rank; none on the CPU, where nothing counts them."""
    from railx.io import read_rows

    peaks: dict[int, int] = {}
    for row in read_rows(path):
        if row["peak_memory_bytes"] is not None:
            peaks[row["rank"]] = max(row["peak_memory_bytes"], peaks.get(row["rank"], 0))
    return peaks
