# Stages whose results are shown in Snakemake's own report (`make report`), each with its caption.


rule figure:
    input:
        unpack(files_in("figure")),
    output:
        **files_out("figure")
        | {"svg": report(files_out("figure")["svg"], caption="../report/figure.rst", category="Figures")},
    params:
        settings=settings("figure"),
        code=code("figure"),
    log:
        log_file("figure"),
    benchmark:
        benchmark_file("figure")
    message:
        words("figure")
    script:
        "../scripts/stage.py"


rule report:
    input:
        unpack(files_in("report")),
    output:
        **files_out("report")
        | {"report": report(files_out("report")["report"], caption="../report/report.rst", category="Report")},
    params:
        settings=settings("report"),
        code=code("report"),
    log:
        log_file("report"),
    benchmark:
        benchmark_file("report")
    message:
        words("report")
    script:
        "../scripts/stage.py"
