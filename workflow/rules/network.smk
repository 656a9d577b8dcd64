# Channel loads, throughput bounds and collectives on every topology.


rule network:
    input:
        unpack(files_in("network")),
    output:
        **files_out("network"),
    params:
        settings=settings("network"),
        code=code("network"),
    log:
        log_file("network"),
    benchmark:
        benchmark_file("network")
    message:
        words("network")
    script:
        "../scripts/stage.py"
