# Real training under emulated optical switching. Runs take the whole machine, one at a time, so that their times can be compared.


rule training:
    input:
        unpack(files_in("training")),
    output:
        **files_out("training"),
    params:
        settings=settings("training"),
        code=code("training"),
    threads: WHOLE_MACHINE
    resources:
        **cluster_resources("training"),
    log:
        log_file("training"),
    benchmark:
        benchmark_file("training")
    message:
        words("training")
    script:
        "../scripts/stage.py"
