# The flow model against the packet simulator on the same traffic.


rule agreement:
    input:
        unpack(files_in("agreement")),
    output:
        **files_out("agreement"),
    params:
        settings=settings("agreement"),
        code=code("agreement"),
    log:
        log_file("agreement"),
    benchmark:
        benchmark_file("agreement")
    message:
        words("agreement")
    script:
        "../scripts/stage.py"
