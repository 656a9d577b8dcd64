# What groups of ranks get from a topology: bandwidth and latency by size and placement.


rule bandwidth:
    input:
        unpack(files_in("bandwidth")),
    output:
        **files_out("bandwidth"),
    params:
        settings=settings("bandwidth"),
        code=code("bandwidth"),
    log:
        log_file("bandwidth"),
    benchmark:
        benchmark_file("bandwidth")
    message:
        words("bandwidth")
    script:
        "../scripts/stage.py"
