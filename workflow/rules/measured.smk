# Stages whose results are times on this machine. A job takes every core, so that no two run at once and their times compare.

for name in ("profile", "training"):

    rule:
        name:
            name
        input:
            unpack(files_in(name)),
        output:
            **files_out(name),
        params:
            settings=settings(name),
            code=code(name),
        threads: WHOLE_MACHINE
        resources:
            **cluster_resources(name),
        log:
            log_file(name),
        benchmark:
            benchmark_file(name)
        message:
            words(name)
        script:
            "../scripts/stage.py"


# A program starts its own ranks: on a cluster it asks for one node, as its profile says.
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
