# Bills of materials at full scale, cost over scale, and the map of the cost claims.


rule economics:
    input:
        unpack(files_in("economics")),
    output:
        **files_out("economics"),
    params:
        settings=settings("economics"),
        code=code("economics"),
    log:
        log_file("economics"),
    benchmark:
        benchmark_file("economics")
    message:
        words("economics")
    script:
        "../scripts/stage.py"
