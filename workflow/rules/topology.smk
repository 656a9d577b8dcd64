# Graphs of chips, switches and circuits.


rule topology:
    input:
        unpack(files_in("topology")),
    output:
        **files_out("topology"),
    params:
        settings=settings("topology"),
        code=code("topology"),
    log:
        log_file("topology"),
    benchmark:
        benchmark_file("topology")
    message:
        words("topology")
    script:
        "../scripts/stage.py"
