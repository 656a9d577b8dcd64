# One job a figure: SVG for the page and the paper, PNG to look at.

from railx.figures import figure_module, figure_of

# Where the tables are that figures name by stage and output.
TABLES = {
    "topology.graph": "topology/{topology}.parquet",
    "metrics.topologies": "topology/metrics.parquet",
    "network.bounds": "network/{topology}.parquet",
    "network.channels": "network/{topology}.channels.parquet",
    "network.collectives": "collectives/{topology}.parquet",
    "packets.points": "packets/{sweep}.parquet",
    "agreement.comparison": "flows/agreement.parquet",
    "mapping.steps": "steps/{mapped}.parquet",
    "corpus.sequences": "corpora/{corpus}.parquet",
    "plan.groups": "plans/{plan}.parquet",
    "plan.schedule": "plans/{plan}.schedule.parquet",
    "training.iterations": "training/{run}/iterations.parquet",
}


def figure_inputs(wildcards):
    """The files a figure is drawn from: those of the names under `only`, or of all that fit."""
    settings = EXPERIMENT.figures[wildcards.figure]
    files = {}
    for wanted in figure_of(settings.figure).inputs:
        pattern = TABLES.get(wanted.table, wanted.table.replace(".", "/") + ".parquet")
        everything = {
            "topology": list(EXPERIMENT.topologies),
            "sweep": list(EXPERIMENT.sweeps),
            "mapped": list(EXPERIMENT.mapping.topologies),
            "corpus": list(EXPERIMENT.corpora),
            "plan": plan_names(wanted.plan_kind),
            "run": list(EXPERIMENT.runs),
        }
        key = next((key for key in everything if f"{{{key}}}" in pattern), None)
        names = (getattr(settings, "only", ()) or everything[key]) if key else [None]
        files[wanted.key] = [RESULTS / pattern.format(**{key: name} if key else {}) for name in names]
    return files


rule figure:
    input:
        unpack(figure_inputs),
    output:
        svg=report(
            RESULTS / "figures/{figure}.svg",
            caption="../report/figure.rst",
            category="Figures",
        ),
        png=RESULTS / "figures/{figure}.png",
    params:
        settings=lambda wildcards: SETTINGS["figures"][wildcards.figure],
        caption=lambda wildcards: figure_of(EXPERIMENT.figures[wildcards.figure].figure).caption,
        code=lambda wildcards: code("figure", figure_module(EXPERIMENT.figures[wildcards.figure].figure)),
    log:
        RESULTS / "logs/figures/{figure}.log",
    benchmark:
        RESULTS / "benchmarks/figures/{figure}.tsv"
    message:
        "Figure {wildcards.figure}"
    script:
        "../scripts/figure.py"
