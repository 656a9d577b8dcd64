# Jobs and failures on the grid of nodes.


rule tenancy:
    output:
        **files_out("tenancy"),
    params:
        settings=settings("tenancy"),
        code=code("tenancy"),
    log:
        log_file("tenancy"),
    benchmark:
        benchmark_file("tenancy")
    message:
        words("tenancy")
    script:
        "../scripts/stage.py"
