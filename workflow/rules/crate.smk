# How every file of the run was made, as a Workflow Run RO-Crate.


rule crate:
    input:
        unpack(files_in("crate")),
    output:
        **files_out("crate"),
    params:
        settings=settings("crate"),
        code=code("crate"),
    log:
        log_file("crate"),
    benchmark:
        benchmark_file("crate")
    message:
        words("crate")
    script:
        "../scripts/stage.py"
