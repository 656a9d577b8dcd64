# Plans of sequence parallelism on every network under them.


rule underlay:
    input:
        unpack(files_in("underlay")),
    output:
        **files_out("underlay"),
    params:
        settings=settings("underlay"),
        code=code("underlay"),
    log:
        log_file("underlay"),
    benchmark:
        benchmark_file("underlay")
    message:
        words("underlay")
    script:
        "../scripts/stage.py"
