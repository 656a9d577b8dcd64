"""Stage buckets: how far FlexSP's buckets round up the batches of a plan."""

from __future__ import annotations

from workflow.outputs import Table
from workflow.stage import Config, FromStage, Item, Job, Stage, Summary

_PARTS = ("seed", "batch", "cluster", "model", "cost_model")


def run(job: Job) -> Summary:
    """Round the plan's batches up; return the worst errors of a batch."""
    from railx.performance.cluster import ClusterSettings
    from railx.performance.decoder import ModelSettings
    from railx.performance.sequence_cost import CostModelSettings, build_cost_model
    from railx.planning.sequence.blaster import rounding_rows
    from railx.workload.batches import BatchSettings, sample_batches
    from railx.workload.corpus import read_corpus_lengths

    settings = job.settings
    corpus, lengths = read_corpus_lengths(job.file("corpus"))
    cluster: ClusterSettings = job.load(ClusterSettings, "cluster")
    batches: BatchSettings = job.load(BatchSettings, "batch")
    batch = batches.filled(lengths)
    cost = build_cost_model(
        job.load(CostModelSettings, "cost_model"),
        cluster,
        job.load(ModelSettings, "model"),
        batch.max_length_tokens,
    )
    drawn = sample_batches(lengths, batch, settings["seed"])
    head = {"plan": job.item, "corpus": corpus}
    rows = [
        head | row | {"fidelity": "analytic"} for row in rounding_rows(drawn, cluster.devices, cost)
    ]
    job.write_table("errors", rows)
    return {"plan": job.item, "corpus": corpus, "rows": len(rows)}


def _items(experiment: Config) -> list[str]:
    """Plans of groups that adapt, on constants fitted to a cluster."""
    return [
        name
        for name, settings in experiment["plans"].items()
        if settings["planner"]["planner"] in ("flexsp", "flexsp_milp")
        and settings["cost_model"]["kind"] == "fitted"
        and settings["cluster"].get("topology") is None
    ]


STAGE = Stage(
    name="buckets",
    help="round the lengths of a plan's batches up to FlexSP's buckets",
    message="Buckets of {item}",
    item=Item("plan", _items),
    settings=lambda experiment, plan: {key: experiment["plans"][plan][key] for key in _PARTS},
    inputs=lambda experiment, plan: {
        "corpus": FromStage("corpus.sequences", experiment["plans"][plan]["corpus"])
    },
    outputs={
        "errors": Table(
            "text plan corpus, integer iteration micro_batch, text method,"
            " integer buckets sequences tokens rounded_tokens, text fidelity"
        )
    },
    run=run,
)
