# Plans: which sequence runs where, in which order.


rule plan:
    input:
        unpack(files_in("plan")),
    output:
        **files_out("plan"),
    params:
        settings=settings("plan"),
        code=code("plan"),
    log:
        log_file("plan"),
    benchmark:
        benchmark_file("plan")
    message:
        words("plan")
    script:
        "../scripts/stage.py"
