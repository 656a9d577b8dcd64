# Published numbers against ours.


rule evidence:
    input:
        unpack(files_in("evidence")),
    output:
        **files_out("evidence"),
    params:
        settings=settings("evidence"),
        code=code("evidence"),
    log:
        log_file("evidence"),
    benchmark:
        benchmark_file("evidence")
    message:
        words("evidence")
    script:
        "../scripts/stage.py"
