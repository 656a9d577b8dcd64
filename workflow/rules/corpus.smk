# Corpora: how long the sequences are, and for real text the tokens themselves.


rule corpus:
    input:
        unpack(files_in("corpus")),
    output:
        **files_out("corpus"),
    params:
        settings=settings("corpus"),
        code=code("corpus"),
    log:
        log_file("corpus"),
    benchmark:
        benchmark_file("corpus")
    message:
        words("corpus")
    script:
        "../scripts/stage.py"
