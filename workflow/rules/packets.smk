# Packet by packet: latency against offered load, one job per sweep.


rule packets:
    input:
        unpack(files_in("packets")),
    output:
        **files_out("packets"),
    params:
        settings=settings("packets"),
        code=code("packets"),
    log:
        log_file("packets"),
    benchmark:
        benchmark_file("packets")
    message:
        words("packets")
    script:
        "../scripts/stage.py"
