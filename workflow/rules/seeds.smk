# Some of the seeds of a packet sweep, one job per shard.


rule seeds:
    input:
        unpack(files_in("seeds")),
    output:
        **files_out("seeds"),
    params:
        settings=settings("seeds"),
        code=code("seeds"),
    log:
        log_file("seeds"),
    benchmark:
        benchmark_file("seeds")
    message:
        words("seeds")
    script:
        "../scripts/stage.py"
