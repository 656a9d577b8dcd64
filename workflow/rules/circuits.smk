# Cross-connect lists of the optical switches.


rule circuits:
    input:
        unpack(files_in("circuits")),
    output:
        **files_out("circuits"),
    params:
        settings=settings("circuits"),
        code=code("circuits"),
    log:
        log_file("circuits"),
    benchmark:
        benchmark_file("circuits")
    message:
        words("circuits")
    script:
        "../scripts/stage.py"
