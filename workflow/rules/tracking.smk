# One job writes all tracked runs: MLflow's SQLite store cannot take concurrent first writes.


rule tracking:
    input:
        unpack(files_in("tracking")),
    output:
        **files_out("tracking"),
    params:
        settings=settings("tracking"),
        code=code("tracking"),
    log:
        log_file("tracking"),
    benchmark:
        benchmark_file("tracking")
    message:
        words("tracking")
    script:
        "../scripts/stage.py"
