# Generated training steps on rails: times, windows, phases and traffic.


rule steps:
    input:
        unpack(files_in("steps")),
    output:
        **files_out("steps"),
    params:
        settings=settings("steps"),
        code=code("steps"),
    log:
        log_file("steps"),
    benchmark:
        benchmark_file("steps")
    message:
        words("steps")
    script:
        "../scripts/stage.py"
