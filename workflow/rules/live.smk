# Programs in plain torch. They take the whole machine, one at a time, as training runs do.


rule live:
    input:
        unpack(files_in("live")),
    output:
        **files_out("live"),
    params:
        settings=settings("live"),
        code=code("live"),
    threads: WHOLE_MACHINE
    log:
        log_file("live"),
    benchmark:
        benchmark_file("live")
    message:
        words("live")
    script:
        "../scripts/stage.py"
