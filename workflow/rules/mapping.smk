# Training jobs laid on topologies: the time of a step, at equal bandwidth and at equal cost.


rule mapping:
    input:
        unpack(files_in("mapping")),
    output:
        **files_out("mapping"),
    params:
        settings=settings("mapping"),
        code=code("mapping"),
    log:
        log_file("mapping"),
    benchmark:
        benchmark_file("mapping")
    message:
        words("mapping")
    script:
        "../scripts/stage.py"
