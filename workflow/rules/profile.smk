# Time and memory of a decoder layer. Profiles take the whole machine, one at a time, as training runs do.


rule profile:
    input:
        unpack(files_in("profile")),
    output:
        **files_out("profile"),
    params:
        settings=settings("profile"),
        code=code("profile"),
    threads: WHOLE_MACHINE
    resources:
        **cluster_resources("profile"),
    log:
        log_file("profile"),
    benchmark:
        benchmark_file("profile")
    message:
        words("profile")
    script:
        "../scripts/stage.py"
