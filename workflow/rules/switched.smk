# Jobs on circuits that are set once, switched in the job, or both: the time of a step.


rule switched:
    input:
        unpack(files_in("switched")),
    output:
        **files_out("switched"),
    params:
        settings=settings("switched"),
        code=code("switched"),
    log:
        log_file("switched"),
    benchmark:
        benchmark_file("switched")
    message:
        words("switched")
    script:
        "../scripts/stage.py"
