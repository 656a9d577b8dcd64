# One job per figure: SVG for the page and the paper, PNG to look at.

from workflow.stages.figure import caption_of


rule figure:
    input:
        unpack(files_in("figure")),
    output:
        svg=report(files_out("figure")["svg"], caption="../report/figure.rst", category="Figures"),
        png=files_out("figure")["png"],
        record=files_out("figure")["record"],
    params:
        settings=settings("figure"),
        caption=lambda wildcards: caption_of(EXPERIMENT, wildcards.figure),
        code=code("figure"),
    log:
        log_file("figure"),
    benchmark:
        benchmark_file("figure")
    message:
        words("figure")
    script:
        "../scripts/stage.py"
