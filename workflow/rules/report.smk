# One self-contained page.


rule report:
    input:
        unpack(files_in("report")),
    output:
        report=report(files_out("report")["report"], caption="../report/report.rst", category="Report"),
        config=files_out("report")["config"],
        provenance=files_out("report")["provenance"],
        record=files_out("report")["record"],
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
