# One job a figure: SVG for the page and the paper, PNG to look at.

from railx.figures import FIGURES


def figure_inputs(wildcards):
    """The files a figure is drawn from: those of the names under `only`, or of all that fit."""
    settings = EXPERIMENT.figures[wildcards.figure]
    kind = FIGURES[settings.figure]
    schedules = any("schedule" in wanted.pattern for wanted in kind.inputs)
    everything = {
        "topology": list(EXPERIMENT.topologies),
        "sweep": list(EXPERIMENT.sweeps),
        "mapped": list(EXPERIMENT.mapping.topologies),
        "corpus": list(EXPERIMENT.corpora),
        "plan": plan_names("pipeline" if schedules else "sequence_parallel"),
        "run": list(EXPERIMENT.runs),
    }
    files = {}
    for wanted in kind.inputs:
        key = next((key for key in everything if f"{{{key}}}" in wanted.pattern), None)
        names = (getattr(settings, "only", ()) or everything[key]) if key else [None]
        files[wanted.key] = [RESULTS / wanted.pattern.format(**{key: name} if key else {}) for name in names]
    return files


def caption_of(name):
    """The caption of a figure, shared by Snakemake's report and the experiment's own."""
    return Path(workflow.basedir) / f"workflow/report/{EXPERIMENT.figures[name].figure}.rst"


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
        caption=lambda wildcards: caption_of(wildcards.figure).read_text(),
        code=lambda wildcards: code("figure", FIGURES[EXPERIMENT.figures[wildcards.figure].figure].module),
    log:
        RESULTS / "logs/figures/{figure}.log",
    benchmark:
        RESULTS / "benchmarks/figures/{figure}.tsv"
    message:
        "Figure {wildcards.figure}"
    script:
        "../scripts/figure.py"
