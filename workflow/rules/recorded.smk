# Records of runs on a GPU, kept in results/recorded, as tables.


rule recorded:
    input:
        unpack(files_in("recorded")),
    output:
        **files_out("recorded"),
    params:
        settings=settings("recorded"),
        code=code("recorded"),
    log:
        log_file("recorded"),
    benchmark:
        benchmark_file("recorded")
    message:
        words("recorded")
    script:
        "../scripts/stage.py"
