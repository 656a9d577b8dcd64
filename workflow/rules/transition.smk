# Plans from one setting of the optical switches to another.


rule transition:
    input:
        unpack(files_in("transition")),
    output:
        **files_out("transition"),
    params:
        settings=settings("transition"),
        code=code("transition"),
    log:
        log_file("transition"),
    benchmark:
        benchmark_file("transition")
    message:
        words("transition")
    script:
        "../scripts/stage.py"
