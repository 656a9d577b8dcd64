# Size, hops and bisection of all topologies in one table.


rule metrics:
    input:
        unpack(files_in("metrics")),
    output:
        **files_out("metrics"),
    params:
        settings=settings("metrics"),
        code=code("metrics"),
    log:
        log_file("metrics"),
    benchmark:
        benchmark_file("metrics")
    message:
        words("metrics")
    script:
        "../scripts/stage.py"
